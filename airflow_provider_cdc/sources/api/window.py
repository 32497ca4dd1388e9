"""A run's window: its two ends, the segments of the log that it is cut into, and the net change of each."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import PositionError

DELTA_SCHEMA = pa.schema(
    [
        pa.field("table", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("order", pa.int64(), nullable=False),
        pa.field("suborder", pa.int64(), nullable=False),
        pa.field("before", pa.binary()),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("pending", pa.string()),
        pa.field("after", pa.binary()),
    ]
)
"""One net change of one log segment.

``table``
    index into the run's list of tables.
``key``
    keyed tables: ``core.row_bytes.encode`` of the key columns. Keyless tables: of all columns.
``order``, ``suborder``
    place in the whole log: the pair grows along it. The first change of a key is the one with the smallest pair.
``before``
    keyed tables: the row before the segment as the log's own bytes (``Source.decode_images`` reads them); null: no row.
    Keyless tables: the row itself. Tables of which only the keys are read: the key, as the log's own bytes.
``count``
    keyless tables: times added minus times removed. Keyed tables: 0. Tables of which only the keys are read: 1 if the
    last change of the key left a row there, 0 if it left none; ``order`` is that of the last change then.
``pending``
    null, or the id of a prepared transaction that the segment prepares but does not decide: the changes count only if
    ``SegmentSummary.decided`` of some segment names that id, and then at that order.
``after``
    keyed tables that are rolled forward: the row after the segment, as ``before``. Null for all others.
"""


BUCKETS = 64
"""Into so many buckets keys are divided (``core.row_bytes.buckets``)."""

CHANGE_SCHEMA = pa.schema(
    [
        pa.field("table", pa.int32(), nullable=False),
        pa.field("order", pa.int64(), nullable=False),
        pa.field("position", pa.string()),
        pa.field("commit_time", pa.timestamp("us", "UTC")),
        pa.field("before", pa.binary()),
        pa.field("after", pa.binary()),
        pa.field("pending", pa.string()),
    ]
)
"""One row change of one log segment, as it was logged.

``table``, ``order``, ``pending``
    as in ``DELTA_SCHEMA``; changes of one table come in this order. Those of a transaction that the segment prepares
    and commits all have the order of its commit.
``position``, ``commit_time``
    of the transaction's commit, the position as text: the feed publishes it as it is; null while it is pending.
``before``, ``after``
    the rows as the log's own bytes; null: no row.
"""


@dataclass(frozen=True)
class UpperBound:
    """A bound on everything that reads before now could have seen.

    ``upper`` is ``snapshot_upper``, a position of the source; ``log_end`` is the same bound as a place in the log up to
    which the window is to be read. ``incarnation`` is what `ChunkReader.settle`
    returns for parts that the server still stands by: those with another one are read again.
    """

    upper: Position
    log_end: LogEnd
    incarnation: str = ""


@dataclass(frozen=True)
class LogSegment:
    """A part of the log that one task reads: ``name`` from byte (or LSN) ``start`` up to ``stop``; None: to its end.

    ``mark``: what the log must have before that if it still is the one that was read, in the source's own notation;
    empty: nothing. ``also``: what follows ``name`` in the log and is read as one with it, each from its beginning;
    ``stop`` then is in the last. ``bytes`` of log, about; 0: that is not known.
    """

    number: int
    name: str
    start: int
    stop: int | None
    mark: str = ""
    also: tuple[str, ...] = ()
    bytes: int = 0

    @property
    def last_name(self) -> str:
        """Of ``name`` and ``also``, the one in which it ends."""
        return (self.name, *self.also)[-1]


@dataclass(frozen=True)
class TrackedTable:
    """A table as the log reader follows it.

    ``index`` is what ``DELTA_SCHEMA.table`` says. ``upper`` is the exact position up to which changes count: of a table
    that was read at one, that; of one that is rolled forward, the position to publish. None for other tables, whose
    changes count up to the window's end. ``forward``: the rows after the changes are wanted, too. ``changes``: and each
    single change. ``keys_only``: of its changes only the keys are read. ``looked_at``: nothing is read, but the
    reader stops for what it could not read.
    """

    index: int
    table: Table
    upper: Position | None = None
    keys_only: bool = False
    forward: bool = False
    looked_at: bool = False
    changes: bool = False

    @property
    def bounded(self) -> bool:
        """Whether only the changes up to ``upper`` count."""
        return not self.looked_at and (self.upper is not None or self.table.keyless)

    def known_upper(self) -> Position:
        """``upper`` of a table that is ``bounded`` by it.

        :raises PositionError: it is not known.
        """
        if self.upper is None:
            raise PositionError(
                "the position that the table was read at is not known, and it has no key to tell its changes by",
                where=str(self.table.name),
                hint="trigger a new run",
            )
        return self.upper

    def pending(self, transaction: str) -> str:
        """The id of what a prepared transaction did to this table, if that is ``bounded``."""
        return f"{transaction}/{self.index}"


@dataclass(frozen=True)
class StatementWrite:
    """Changes of rows of a ``table`` that is not copied, which the log has as statements only.

    ``read`` are the other tables that they read, but for copied ones. The last change is at ``place``.
    """

    table: TableName
    read: tuple[TableName, ...]
    place: str


@dataclass(frozen=True)
class Committed:
    """Where a prepared transaction was committed: its ``order`` among the row changes of the log, the position as text
    (as in ``CHANGE_SCHEMA``), and the time in microseconds since 1970 (None: the log does not say)."""

    order: int
    position: str
    time: int | None


@dataclass
class SegmentSummary:
    """What one segment held. ``decided`` maps a prepared transaction's id to the order at which it was committed here.

    ``rolled_back`` are ids rolled back here. ``seconds`` is the time it took to read it. ``parts`` is how many net
    changes the segment was given as, one after the other: whose keys do not fit into memory is netted in parts.
    ``writes`` are the tables that are not copied and were written to by statements, by their names; ``redefined`` those
    of which some statement may have changed whether they are views, or have triggers (`sources.optional`).
    ``commits`` says more of what ``decided`` has, if single changes are wanted.
    """

    segment: LogSegment
    transactions: int = 0
    row_images: int = 0
    bytes: int = 0
    seconds: float = 0.0
    decided: dict[str, int] = field(default_factory=dict)
    rolled_back: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    parts: int = 1
    writes: dict[str, StatementWrite] = field(default_factory=dict)
    redefined: list[TableName] = field(default_factory=list)
    commits: dict[str, Committed] = field(default_factory=dict)
