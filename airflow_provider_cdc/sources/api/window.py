"""The window of a run: its two ends, the log segments that it consists of, and the net changes of each segment."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from airflow_provider_cdc import errors
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import CdcError, PositionError

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
    the place of the change in the whole log. The pair of both numbers increases along the log. The first change of a
    key has the smallest pair.
``before``
    keyed tables: the row as it was before the segment, as the log's own bytes (``Source.decode_images`` decodes them).
    Null: the row did not exist. Keyless tables: the row itself. Tables of which only keys are read: the key, as the
    log's own bytes.
``count``
    keyless tables: the number of times that the row was added, minus the number of times that it was removed. Keyed
    tables: 0. Tables of which only keys are read: 1 if the row exists after the last change of the key, otherwise 0.
    For these tables, ``order`` is the order of the last change.
``pending``
    null, or the id of a transaction that is prepared in the segment, but neither committed nor rolled back there. The
    changes count only if ``SegmentSummary.decided`` of a segment has this id. In that case, the changes have the order
    that ``decided`` gives for the id.
``after``
    keyed tables that are rolled forward: the row as it is after the segment, in the same form as ``before``. Other
    tables: null.
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
    as in ``DELTA_SCHEMA``. The changes of one table are sorted by ``order``. If a transaction is prepared and committed
    in the segment, all its changes have the order of the commit.
``position``, ``commit_time``
    the position and the time of the transaction's commit. Null while the transaction is pending. The position is text,
    and the change feed publishes this text unchanged.
``before``, ``after``
    the row before and after the change, as the log's own bytes. Null: the row did not exist.
"""


@dataclass(frozen=True)
class UpperBound:
    """A bound on everything that completed reads could have seen.

    ``upper`` is ``snapshot_upper``, a position of the source. ``log_end`` is the same bound as a place in the log: the
    window is read up to this place. ``incarnation`` is the result of `ChunkReader.wait_until_durable` for parts that
    were not undone by a crash. Parts with another incarnation are read again.
    """

    upper: Position
    log_end: LogEnd
    incarnation: str = ""


@dataclass(frozen=True)
class LogSegment:
    """A part of the log that one task reads: the log file (or slot) ``name``, from byte (or LSN) ``start`` up to
    ``stop``. If ``stop`` is None, the segment extends to the end of its last file or slot.

    ``mark`` is a text, in a notation of the source, that the log must have before this part. If the log does not have
    this mark there, it is no longer the log of the reads. An empty text means that no mark is required. ``also`` has
    the names that follow ``name`` in the log and are read together with it, each from its beginning. If ``also`` is not
    empty, ``stop`` is a place in the last of these names. ``bytes`` is the approximate size in bytes, or 0 if the size
    is unknown. ``passed`` has the schema changes before this part that the run carries through (`Era.ends`).
    """

    number: int
    name: str
    start: int
    stop: int | None
    mark: str = ""
    also: tuple[str, ...] = ()
    bytes: int = 0
    passed: tuple[str, ...] = ()

    @property
    def last_name(self) -> str:
        """The name in which the segment ends: the last name in ``also``, or ``name`` if ``also`` is empty."""
        return (self.name, *self.also)[-1]


@dataclass(frozen=True)
class TrackedTable:
    """A table whose changes the log reader returns, and the way in which it returns them.

    ``index`` is the value in ``DELTA_SCHEMA.table``. ``upper`` is the exact position up to which changes count. For a
    table that was read at one position, ``upper`` is this position. For a table that is rolled forward, ``upper`` is
    the position to publish. For other tables, ``upper`` is None, and changes count up to the end of the window. If
    ``forward`` is true, the reader also returns the rows after the changes. If ``changes`` is true, the reader also
    returns each single change. If ``keys_only`` is true, the reader returns only the keys of changed rows. If
    ``looked_at`` is true, the reader does not return changes of this table, but stops at changes that it could not
    read.
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
        """Return ``upper`` of a table that is ``bounded``.

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
        """Return the id under which a prepared transaction's changes to this table are stored. Only for tables that are
        ``bounded``."""
        return f"{transaction}/{self.index}"


@dataclass(frozen=True)
class StatementWrite:
    """Row changes in a ``table`` that is not copied. The log has only the statements that made these changes, not the
    rows.

    ``read`` has the other tables that the statements read, except copied tables. ``place`` is the place of the last
    change in the log.
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


@dataclass(frozen=True)
class PreparedError:
    """An error in the changes of a prepared transaction. It stops the run only if the transaction is committed.
    ``kind`` is the name of its class."""

    kind: str
    message: str
    where: str
    hint: str

    @classmethod
    def of(cls, error: CdcError) -> PreparedError:
        return cls(type(error).__name__, error.message, error.where, error.hint)

    @property
    def error(self) -> CdcError:
        kind: type[CdcError] = getattr(errors, self.kind)
        return kind(self.message, where=self.where, hint=self.hint)


@dataclass
class SegmentSummary:
    """A summary of one segment.

    ``decided`` has the ids of the prepared transactions that are committed in the segment, each with the order of its
    commit. ``rolled_back`` has the ids of the prepared transactions that are rolled back in the segment. ``seconds`` is
    the duration of the read. ``parts`` is the number of net changes that the reader returned for the segment. If the
    keys do not fit into memory, the segment is netted in several parts, one after the other. ``writes`` has, by table
    name, the tables that are not copied and that were changed by logged statements. ``redefined`` has the tables that a
    statement may have turned into a view, or whose triggers it may have changed
    (`Source.check_writes`). If single changes are read, ``commits`` has the details of the commits in
    ``decided``. ``errors`` has the errors of transactions in ``prepared``, by their ids.
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
    errors: dict[str, PreparedError] = field(default_factory=dict)
