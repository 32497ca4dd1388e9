"""What a source can do, the same for every kind of database.

The jobs and the operators know sources only through this module. A source object holds settings and no session: it is
cheap to build, safe to pickle (Spark sends it to executors), and opens a session of its own in each call that needs
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from airflow_provider_cdc.core.chunk import Chunk
from airflow_provider_cdc.core.options import LockPolicy
from airflow_provider_cdc.core.table import Table, TableName
from airflow_provider_cdc.sources.odd_values import OddValue

DELTA_SCHEMA = pa.schema(
    [
        pa.field("table", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("order", pa.int64(), nullable=False),
        pa.field("suborder", pa.int64(), nullable=False),
        pa.field("before", pa.binary()),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("pending", pa.string()),
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
    Keyless tables: the row itself.
``count``
    keyless tables: times added minus times removed. Keyed tables: 0.
``pending``
    null, or the id of a prepared transaction that the segment prepares but does not decide: the changes count only if
    ``SegmentSummary.decided`` of some segment names that id, and then at that order.
"""


@dataclass(frozen=True)
class ConnectionSettings:
    """How to reach a source. ``password`` never shows in a repr. ``options`` is what else one kind of source needs to
    be told, such as a ``publication`` that exists already.

    ``tls`` holds paths and modes for the driver: ``mode`` (``disabled``, ``preferred``, ``required``, ``verify_ca``,
    ``verify_identity``), ``ca``, ``cert``, ``key``, and what ``sources.trust`` and the kind of source add to them.
    """

    kind: str
    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    database: str = ""
    tls: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """``user@host:port``, fit for messages."""
        return f"{self.user}@{self.host}:{self.port}"


@dataclass(frozen=True)
class TablePlan:
    """What preflight decided for one table, and why. ``unrepresentable`` is one of ``core.options.UNREPRESENTABLE``."""

    name: TableName
    consistency: str
    reason: str
    rows: int = 0
    bytes: int = 0
    unrepresentable: str = "error"

    def to_json(self) -> dict[str, Any]:
        return {
            "table": str(self.name),
            "consistency": self.consistency,
            "reason": self.reason,
            "rows": self.rows,
            "bytes": self.bytes,
            "unrepresentable": self.unrepresentable,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TablePlan:
        return cls(
            TableName.parse(data["table"]),
            data["consistency"],
            data["reason"],
            data["rows"],
            data["bytes"],
            data["unrepresentable"],
        )


def with_policy(table: Table, unrepresentable: str) -> Table:
    """``table`` with the policy in every column's details, where whoever makes Arrow of its rows finds it."""
    if unrepresentable == "error":
        return table
    policy = {"unrepresentable": unrepresentable}
    columns = tuple(replace(column, details={**column.details, **policy}) for column in table.columns)
    return replace(table, columns=columns)


@dataclass(frozen=True)
class InitialPoint:
    """The initial position, the tables' schemas there, and the identity of the server that has it.

    ``lock_seconds`` is how long a lock was held; 0.0 if none was.
    """

    position: str
    identity: Mapping[str, str]
    tables: tuple[Table, ...]
    lock_seconds: float


@dataclass(frozen=True)
class UpperBound:
    """A bound on everything that reads before now could have seen.

    ``position`` is ``snapshot_upper`` as a position of the source; ``log_end`` is the same bound as a place in the log
    up to which the window is to be read, in the source's own notation. ``incarnation`` is what `ChunkReader.settle`
    returns for parts that the server still stands by: those with another one are read again.
    """

    position: str
    log_end: str
    incarnation: str = ""


@dataclass(frozen=True)
class LogSegment:
    """A part of the log that one task reads: ``name`` from byte (or LSN) ``start`` up to ``stop``; None: to its end."""

    number: int
    name: str
    start: int
    stop: int | None


@dataclass(frozen=True)
class TrackedTable:
    """A table as the log reader follows it.

    ``index`` is what ``DELTA_SCHEMA.table`` says. ``upper`` is the exact position at which a keyless table was read;
    the changes after it do not count. Empty for keyed tables, whose changes count up to the end of the window.
    """

    index: int
    table: Table
    upper: str = ""


@dataclass
class SegmentSummary:
    """What one segment held. ``decided`` maps a prepared transaction's id to the order at which it was committed here.

    ``rolled_back`` are ids rolled back here. ``seconds`` is the time it took to read it. ``parts`` is how many net
    changes the segment was given as, one after the other: whose keys do not fit into memory is netted in parts.
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


class ChunkReader(Protocol):
    """A session that reads chunks of one table."""

    @property
    def upper(self) -> str:
        """The exact position that everything is read at, or empty where each chunk is read at a time of its own."""

    @property
    def lock_seconds(self) -> float:
        """How long a lock was held to fix ``upper``."""

    @property
    def nulled(self) -> Mapping[str, int]:
        """How many values of each column were read as null so far because no Arrow type holds them."""

    @property
    def odd(self) -> Sequence[OddValue]:
        """The values of the batch that `read` gave last that no Arrow type holds, with the policy ``error``: a
        placeholder stands in for each."""

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The chunk's rows as batches of ``Source.arrow_schema``; memory is bounded whatever the chunk's size.

        :raises SourceUnavailable: the session broke. Nothing of the chunk counts then.
        :raises ValueNotRepresentable: a value that tells rows apart fits no Arrow type and the policy is ``error``; or
            so many values do that they are not in ``odd``.
        """

    def settle(self) -> str:
        """After the last chunk: wait, in the session that read them, until no crash of the server can take back what
        was read, as far as the server can promise that, and return the server's incarnation.

        The incarnation is opaque. It changes with whatever takes back what was read: at least with every restart
        before which the read was not durable. A part counts only if the bound of the reads has the same one.

        :raises SourceUnavailable: the session broke. Nothing of the part counts then.
        """


class SegmentReader(Protocol):
    """Iterates over the net changes of one log segment; ``summary`` is complete once the iteration ended."""

    summary: SegmentSummary

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches of ``DELTA_SCHEMA``. In each part of the segment, at most one row per key and ``pending``.

        :raises ExactnessError: something in the segment broke what the proof rests on.
        """


class Source(Protocol):
    """One database server, as the jobs and operators use it."""

    kind: ClassVar[str]
    position_key: ClassVar[str]
    """The initial position's name in XComs, manifests and ``_latest.json``: ``initial_gtid_set``, ``initial_lsn``."""

    def preflight(self, patterns: Sequence[str], consistency: str, unrepresentable: str = "error") -> list[TablePlan]:
        """Check everything that a run needs, and decide how each table is read.

        :param patterns: ``schema.table``; ``*`` matches any run of characters in either part, and a pattern
            that begins with ``!`` leaves out what those before it named (``!shop._*_gho``).
        :param unrepresentable: one of ``core.options.UNREPRESENTABLE``.
        :raises PreflightError: with every problem found.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def here(self) -> tuple[Mapping[str, str], str]:
        """The identity of the server that answers, as `InitialPoint` has it, and the latest position of its history.

        :raises SourceUnavailable: the server cannot be reached.
        """

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        """Fix the initial position; then read the schemas, so that any DDL they might miss lies in the window.

        What the server must keep for the run (a replication slot) is created under a name made from ``run_id``, and
        replaces what an earlier try left under it; `release` removes it.

        :raises LockNotGranted: a table needs the lock and it was not granted.
        """

    def of_run(self, identity: Mapping[str, str], position: str) -> Source:
        """This source for the steps of one run: every session that reads rows or the log, or bounds reads, checks in
        the round trip that prepares it that it reached the server of ``identity``, which has all of ``position``.
        Behind one address there may be several servers.

        Its methods raise `SourceReplaced` where a session reached another server, or one that lags behind.
        """

    def check_identity(self, identity: Mapping[str, str], position: str) -> None:
        """Make sure that this is still the server the run began on, with its history and settings intact.

        :raises SourceReplaced: another server, or one whose history no longer contains ``position``.
        :raises LogGone: the log was purged past ``position``.
        :raises ExactnessError: a setting that the proof rests on was changed since the run began.
        """

    def release(self, identity: Mapping[str, str], run_id: str = "") -> None:
        """Remove what `record_initial` had the server keep for the run. No error if nothing is left of it.

        :param identity: the run's; empty where it was never recorded: then ``run_id`` tells what to remove.
        :raises SourceUnavailable: the server cannot be reached; what it keeps stays.
        """

    def check_tables(self, tables: Sequence[Table]) -> None:
        """After the last read: make sure that nothing happened to ``tables`` since the initial position that could be
        seen neither there nor in the log.

        :raises SchemaChanged: something did.
        """

    def share_reads(self, consistencies: Collection[str], lock: LockPolicy) -> AbstractContextManager[Source]:
        """The source to read all chunks of a step with, while the context is open in the driver.

        Where reads share one view of the data (``exported`` is among ``consistencies``), the driver holds it open, and
        the source that it yields knows it.

        :param lock: how long others may hold it up.
        :raises LockNotGranted: transactions held it up for longer.
        :raises SourceUnavailable: the view could not be opened.
        """

    def one_session(self) -> AbstractContextManager[Source]:
        """This source, whose `plan_chunks` and `reader` use one session after the other, as far as they can, while the
        context is open. For one thread, and one reader at a time.
        """

    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        """Chunks of about ``chunk_rows`` rows each. Strict increase of the bounds is checked by the server."""

    def key_order(self, table: Table) -> str | None:
        """The key's first column if chunks are ranges of it and its published values sort as the source sorts them:
        then the values in one chunk are below those in the next. None if nothing of the kind can be said."""

    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        """A session to read chunks of ``table`` with."""

    def bound_reads(self) -> UpperBound:
        """A bound on everything that reads that have ended could have seen."""

    def log_segments(self, initial: str, log_end: str, identity: Mapping[str, str]) -> list[LogSegment]:
        """The segments that hold every change after ``initial`` up to ``log_end``, in log order.

        :param identity: what `record_initial` gave; it names what the server keeps for the run.

        :raises LogGone: the log no longer reaches back to ``initial``.
        """

    def segments_before(self, segment: LogSegment, count: int) -> list[LogSegment]:
        """Up to ``count`` whole segments right before ``segment``, in log order: what was prepared there may have been
        committed in the window. Their numbers lead up to its number. None: the log goes no further back.
        """

    def read_segment(
        self, segment: LogSegment, initial: str, tables: Sequence[TrackedTable]
    ) -> AbstractContextManager[SegmentReader]:
        """A session that reads the net changes after ``initial`` in one segment."""

    def arrow_schema(self, table: Table) -> pa.Schema:
        """The Arrow schema of a table's rows: the published one."""

    def decode_images(
        self, table: Table, images: pa.BinaryArray, nulled: dict[str, int] | None = None
    ) -> pa.RecordBatch:
        """Rows from the log's own bytes (no nulls among them), exactly as a SELECT gives them.

        :param nulled: told how many values of each column became null because no Arrow type holds them; what it holds
            already is added to.
        :raises DecodeError: bytes that are not an image of ``table``.
        """
