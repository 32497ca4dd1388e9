"""The plan of a run. It says how to read each table, and at which point the run begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.options.run import TEXT, TableOptions
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.tables.selection import WHOLE, Selection
from airflow_provider_cdc.core.tables.table import CopyName, Evolution, Shard, Table, TableName

FEW_KEYS = 10_000
"""If a table has at most this number of touched keys, they are looked up only in the exported snapshot. This number of
lookups takes about a second, so an earlier pass is not worthwhile."""


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


@dataclass(frozen=True)
class TablePlan:
    """The decision of preflight for one table, with the reason. ``unrepresentable`` is one of
    `core.options.run.UNREPRESENTABLE`. ``arrays`` is the option of this name.

    ``at_upper`` says whether the table is published at the position where its reads end, and not at the initial
    position. The snapshot step determines the position where the reads end. ``at_upper`` is the same for all tables of
    a run. ``base`` is the id of the run whose copy is rolled forward. It is empty if the table is read.
    ``base_position`` is the position of that copy, as text because a plan is stored as a record. ``selection`` is the
    part of the table that is copied. ``evolution`` has the schema changes since that copy; None: there are none.
    ``shard`` is set if the rows are published in a merged table. ``feed_gap`` is set if the run publishes row changes,
    but none of this table, although the table has a copy.
    """

    table: TableName
    consistency: str
    reason: str
    rows: int = 0
    bytes: int = 0
    unrepresentable: str = "error"
    at_upper: bool = False
    base: str = ""
    base_position: str = ""
    selection: Selection = WHOLE
    arrays: str = TEXT
    evolution: Evolution | None = None
    shard: Shard | None = None
    feed_gap: FeedGap | None = None

    @property
    def lake_name(self) -> TableName:
        """The name of the table of the lake, as in `Table.lake_name`."""
        return self.table if self.shard is None else self.shard.merged

    @property
    def copy_name(self) -> TableName:
        """The name of the table's copies in the lake."""
        return CopyName.of(self.lake_name, self.selection)

    @property
    def locked(self) -> bool:
        """Whether the table must be locked for a moment."""
        return self.consistency == "lock" and not self.base

    @property
    def options(self) -> TableOptions:
        """The options with which the table is read and published."""
        return TableOptions(self.consistency, self.unrepresentable, self.arrays)


@dataclass(frozen=True)
class MissedPast:
    """A point of the past that a run cannot reach. ``as_of`` is the value of the option, and ``why`` is the reason. The
    run copies the present state of the tables instead."""

    as_of: str
    why: str


@dataclass(frozen=True)
class InitialPoint:
    """The initial position, the schemas of the tables at that position, and the identity of the server.

    ``lock_seconds`` is how long a lock was held; 0.0 without a lock. ``superseded`` has the identities that earlier
    tries of the run recorded. The slots and publications with these identities are dropped once the manifest contains
    this initial position.
    """

    position: Position
    identity: Mapping[str, str]
    tables: tuple[Table, ...]
    lock_seconds: float
    superseded: tuple[Mapping[str, str], ...] = ()
