"""A table's change feed: every row change between the copy before and a run's own, in commit order, as files.

Its files have the columns of `feed_schema`. ``order`` goes on from one feed to the next that joins it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_cdc.core.run.staging import StagedFile

INSERT, UPDATE, DELETE = "insert", "update", "delete"


@dataclass(frozen=True)
class Feed:
    """The feed that a run made of a table: what comes after ``start``, the position of the copy that the run ``base``
    made. ``first`` is the order of its first change; ``files`` are in the run's folder, in their order."""

    base: str
    start: str
    first: int
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def next(self) -> int:
        """The order of the first change of the feed that joins this one."""
        return self.first + self.rows


def feed_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a feed.

    :param schema: of the table's copies.
    """
    # Where there is no row, its columns have no values.
    row = pa.struct([field.with_nullable(True) for field in schema])
    return pa.schema(
        [
            pa.field("operation", pa.string(), nullable=False),
            pa.field("position", pa.string(), nullable=False),
            pa.field("order", pa.int64(), nullable=False),
            pa.field("commit_time", pa.timestamp("us", "UTC")),
            pa.field("before", row),
            pa.field("after", row),
        ]
    )
