"""A table's change feed: the files with every row change between the previous copy and the run's copy, in commit order.

The files have the columns of `feed_schema`. The numbers in the column ``order`` continue from one feed to the next.
Where no changes lead from the previous copy to the run's copy, the feed has a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_provider_cdc.core.run.staging import StagedFile

INSERT, UPDATE, DELETE = "insert", "update", "delete"


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


@dataclass(frozen=True)
class FeedGap:
    """The feed of a table ends at the copy of the run ``base``, which is exact at ``start``, and begins anew at the
    copy of the run that has this record. ``reason`` says why, with the statement and its place in the log if they are
    known. ``base`` and ``start`` are empty if the record of the last copy cannot be read.

    ``first`` is the order number of the first change of the new feed. It is 0 until the run's commit fixes it.
    """

    base: str
    start: str
    reason: str
    first: int = 0

    def with_reason(self, reason: str) -> FeedGap:
        """Return the gap with another reason in addition to its own."""
        return replace(self, reason=f"{self.reason}; {reason}")

    def described(self, position: str) -> str:
        """Describe the gap in words.

        :param position: the position at which the copy of the run is exact.
        """
        ended = f"{self.start} (run {self.base})" if self.base else "the last copy"
        return f"the feed ended at {ended}, and begins anew at {position}: {self.reason}"


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
