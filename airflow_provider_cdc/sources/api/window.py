"""The window of a run: its two ends, the log segments that it consists of, and the net changes of each segment."""

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
    keyed tables: ``core.tables.row_bytes.encode`` of the key columns. Keyless tables: of all columns.
``order``, ``suborder``
    the place in the whole log: the pair increases along the log. The first change of a key has the smallest pair.
``before``
    keyed tables: the row before the segment, as the log's own bytes (``Source.decode_images`` decodes them); null: no
    row. Keyless tables: the row itself. Tables of which only keys are read: the key, as the log's own bytes.
``count``
    keyless tables: times added minus times removed. Keyed tables: 0. Tables of which only keys are read: 1 if the row
    exists after the last change of the key, else 0; ``order`` is then the order of the last change.
``pending``
    null, or the id of a prepared transaction that the segment prepares, but neither commits nor rolls back. The changes
    count only if ``SegmentSummary.decided`` of a segment has that id, and then with the order given there.
``after``
    keyed tables that are rolled forward: the row after the segment, in the form of ``before``. Null for other tables.
"""


BUCKETS = 64
"""The number of buckets into which keys are divided (``core.tables.row_bytes.buckets``)."""

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
    as in ``DELTA_SCHEMA``. The changes of one table are in this order. All changes of a transaction that the segment
    prepares and commits have the order of its commit.
``position``, ``commit_time``
    the position and the time of the transaction's commit; null while the transaction is pending. The position is text,
    which the change feed publishes unchanged.
``before``, ``after``
    the rows as the log's own bytes; null: no row.
"""


@dataclass(frozen=True)
class UpperBound:
    """A bound on everything that completed reads could have seen.

    ``upper`` is ``snapshot_upper``, a position of the source. ``log_end`` is the same bound as the place in the log up
    to which the window is read. ``incarnation`` is the value of `ChunkReader.settle` for parts that no crash has
    undone. Parts with another value are read again.
    """

    upper: Position
    log_end: LogEnd
    incarnation: str = ""


@dataclass(frozen=True)
class LogSegment:
    """A part of the log that one task reads: ``name`` from byte (or LSN) ``start`` up to ``stop``; None: to its end.

    ``mark``: a text, in a notation of the source, that the log must have before this part. If the log does not have
    this mark there, it is no longer the log of the reads. Empty: no mark is required. ``also``: the names that follow
    ``name`` in the log and are read together with it, each from its beginning; ``stop`` is then in the last of them.
    ``bytes``: the approximate size; 0: unknown.
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
        """The name in which the segment ends: the last one of ``name`` and ``also``."""
        return (self.name, *self.also)[-1]


@dataclass(frozen=True)
class TrackedTable:
    """A table whose changes the log reader returns, and how.

    ``index`` is the value in ``DELTA_SCHEMA.table``. ``upper`` is the exact position up to which changes count: for a
    table that was read at one position, this position; for a table that is rolled forward, the position to publish.
    None for other tables, whose changes count up to the window's end. ``forward``: the reader also returns the rows
    after the changes. ``changes``: the reader also returns each single change. ``keys_only``: the reader returns only
    the keys of changes. ``looked_at``: the reader returns no changes of this table, but stops at changes that it could
    not read.
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
        """Return ``upper`` of a table that is ``bounded`` by it.

        :raises PositionError: ``upper`` is not known.
        """
        if self.upper is None:
            raise PositionError(
                "the position at which the table was read is unknown, and the table has no key to identify its changes",
                where=str(self.table.name),
                hint="trigger a new run",
            )
        return self.upper

    def pending(self, transaction: str) -> str:
        """Return the id for the changes of a prepared transaction to this table, if the table is ``bounded``."""
        return f"{transaction}/{self.index}"


@dataclass(frozen=True)
class StatementWrite:
    """Row changes of a ``table`` that is not copied. The log has only the statements that made these changes.

    ``read`` are the other tables that the statements read, without copied tables. ``place`` is the place of the last
    change.
    """

    table: TableName
    read: tuple[TableName, ...]
    place: str


@dataclass(frozen=True)
class Committed:
    """The commit of a prepared transaction: its ``order`` among the row changes of the log, its position as text (as in
    ``CHANGE_SCHEMA``), and its time in microseconds since 1970 (None: the log does not have it)."""

    order: int
    position: str
    time: int | None


@dataclass
class SegmentSummary:
    """A summary of one segment.

    ``decided`` maps the ids of prepared transactions that the segment commits to the orders of their commits.
    ``rolled_back`` has the ids that the segment rolls back. ``seconds`` is the time that the read took. ``parts`` is
    the number of net changes that the reader returned for the segment, one after the other: if the keys do not fit into
    memory, the segment is netted in parts. ``writes`` has the tables, by name, that are not copied and that statements
    changed. ``redefined`` has the tables of which a statement may have changed whether they are views or have triggers
    (`optional_capabilities.LogsStatements`). ``commits`` has the details of the commits in ``decided``, if single
    changes are read.
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
