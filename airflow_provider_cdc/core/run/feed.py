"""A table's change feed: the files with every row change between the previous copy and the run's copy, in commit order.

The files have the columns of `feed_schema`. The numbers in the column ``order`` continue from one feed to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_cdc.core.run.staging import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Feed:
    """The feed of a table in a run. It has all changes after the position ``start``. The copy of the run ``base`` is
    exact at this position.

    ``first`` is the order number of the first change. ``files`` are in the run's folder, sorted by the order of their
    changes.
    """

    base: str
    start: str
    first: int
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def next(self) -> int:
        """The order number of the first change of the next feed."""
        return self.first + self.rows


def feed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a feed.

    :param schema: the columns of the table's copies.
    """
    # Before an insert and after a delete, there is no row, so every column may be null.
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
