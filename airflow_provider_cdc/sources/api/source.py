"""What a source can do: the only thing that the jobs and the operators know of a database.

`Source` is what every kind of database can do. `sources.optional` has what only some can.

A source object holds settings and no session: it is cheap to build, safe to pickle (Spark sends it to executors), and
opens a session of its own in each call that needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Protocol

from airflow_provider_cdc.core.options.run import AS_DECLARED, LockPolicy, TableOptions
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.plan import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Parts, Table, whole_tables
from airflow_provider_cdc.errors import Problem

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_cdc.sources.api.unrepresentable import OddValue
    from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable, UpperBound


class ChunkReader(Protocol):
    """A session that reads chunks of one table."""

    @property
    def upper(self) -> Position | None:
        """The exact position that everything is read at; None: each chunk is read at a time of its own."""

    @property
    def lock_seconds(self) -> float:
        """How long a lock was held to fix ``upper``."""

    @property
    def nulled(self) -> Mapping[str, int]:
        """How many values of each column were read as null so far because no Arrow type holds them."""

    @property
    def odd(self) -> Sequence[OddValue]:
        """The values of the batch that `read` gave last that no Arrow type holds: with the policy ``error``, where a
        placeholder stands in for each, and those that the table's condition takes for null though they are published
        as something else."""

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """The chunk's rows as batches of ``Source.arrow_schema`` of the table as it is read (`Table.as_read`);
        memory is bounded whatever the chunk's size.

        :raises SourceUnavailable: the session broke. Nothing of the chunk counts then.
        :raises ValueNotRepresentable: a value of a key, or of a keyless table that is copied as a whole, fits no Arrow
            type and the policy is ``error``; or so many values of a table without a condition do that they are not in
            ``odd``.
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
        """Batches of ``DELTA_SCHEMA``. In each part of the segment, at most one row per key and ``pending``. Those of
        keyed tables had better come by the buckets of their keys (``row_bytes.buckets``): else they are sorted by them.

        :raises ExactnessError: something in the segment broke what the proof rests on.
        """


class PlansRuns(Protocol):
    """A database that says whether a run can work, and how."""

    def preflight(
        self, patterns: Sequence[str], options: TableOptions = AS_DECLARED, parts: Parts = whole_tables
    ) -> list[TablePlan]:
        """Check everything that a run needs, and decide how each table is read.

        :param patterns: ``schema.table``; ``*`` matches any run of characters in either part, and a pattern
            that begins with ``!`` leaves out what those before it named (``!shop._*_gho``).
        :param parts: the part of each table that is copied: what the run does not read of a table refuses nothing.
        :raises PreflightError: with every problem found.
        :raises LockNotGranted: a session keeps a table locked against readers; the message names both.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        """Look at some rows of each table, a bounded number in a bounded time, for values that would stop the run
        because no Arrow type holds them; return a problem for each column that has such.
        """


class HasPositions(Protocol):
    """A database whose history has positions."""

    position_key: ClassVar[str]
    """The initial position's name in XComs, manifests and ``_latest.json``: ``initial_gtid_set``, ``initial_lsn``."""

    def here(self) -> tuple[Mapping[str, str], Position]:
        """The identity of the server that answers, as `InitialPoint` has it, and the latest position of its history.

        :raises SourceUnavailable: the server cannot be reached.
        """

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        """Fix the initial position; then read the schemas, so that any DDL they might miss lies in the window.

        Several tries of a run may do so at once: each has the server keep something of its own (`KeepsForRun`), under
        names that begin with what is made of ``run_id``, and none removes what another made.

        :raises LockNotGranted: a table needs the lock and it was not granted.
        """

    def of_run(self, identity: Mapping[str, str], position: Position) -> Source:
        """This source for the steps of one run: every session that reads rows or the log, or bounds reads, checks in
        the round trip that prepares it that it reached the server of ``identity``, which has all of ``position``.
        Behind one address there may be several servers.

        Its methods raise `SourceReplaced` where a session reached another server, or one that lags behind.
        """

    def check_identity(self, identity: Mapping[str, str], position: Position) -> None:
        """Make sure that this is still the server the run began on, with its history and settings intact.

        :raises SourceReplaced: another server, or one whose history no longer contains ``position``.
        :raises LogGone: the log was purged past ``position``.
        :raises ExactnessError: a setting that the proof rests on was changed since the run began.
        """


class ReadsTables(Protocol):
    """A database whose tables are read in chunks."""

    def arrow_schema(self, table: Table) -> pa.Schema:
        """The Arrow schema of a table's rows: the published one."""

    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        """Chunks of about ``chunk_rows`` rows each. Strict increase of the bounds is checked by the server."""

    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        """A session to read chunks of ``table`` with."""

    def one_session(self) -> AbstractContextManager[Source]:
        """This source, whose `plan_chunks` and `reader` use one session after the other, as far as they can, while the
        context is open. For one thread, and one reader at a time.
        """

    def bound_reads(self) -> UpperBound:
        """A bound on everything that reads that have ended could have seen."""

    def check_tables(self, tables: Sequence[Table]) -> None:
        """After the last read: make sure that nothing happened to ``tables`` since the initial position that could be
        seen neither there nor in the log.

        :raises SchemaChanged: something did.
        """


class ReadsLog(Protocol):
    """A database whose log tells what every changed row was before."""

    def log_segments(
        self, initial: Position, log_end: LogEnd, identity: Mapping[str, str], slots: int = 1
    ) -> list[LogSegment]:
        """The segments that hold every change after ``initial`` up to ``log_end``, in log order.

        :param identity: what `record_initial` gave; it names what the server keeps for the run.
        :param slots: how many segments are read at once.

        :raises LogGone: the log no longer reaches back to ``initial``.
        """

    def read_segment(
        self,
        segment: LogSegment,
        start: Position,
        tables: Sequence[TrackedTable],
        changes: Callable[[pa.RecordBatch], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> AbstractContextManager[SegmentReader]:
        """A session that reads the net changes after ``start`` in one segment.

        :param changes: told, while these are read, of each single change of the tables of which that is wanted, in
            batches of ``CHANGE_SCHEMA``.
        :param progress: told, now and then, how many bytes of the segment, and row images, were read so far.
        """

    def decode_images(
        self,
        table: Table,
        images: pa.BinaryArray,
        nulled: dict[str, int] | None = None,
        names: Collection[str] | None = None,
        odd: list[OddValue] | None = None,
    ) -> pa.RecordBatch:
        """Rows from the log's own bytes (no nulls among them), exactly as a SELECT gives them.

        :param nulled: told how many values of each column became null because no Arrow type holds them; what it holds
            already is added to.
        :param names: the columns that are decoded; None: all. Whatever the others hold, they stop nothing.
        :param odd: where values that fit no Arrow type are noted, as in ``ChunkReader.odd``, also those that tell rows
            apart.
        :raises DecodeError: bytes that are not an image of ``table``.
        :raises ValueNotRepresentable: a value fits no Arrow type, the policy is ``error``, and ``odd`` is None.
        """


class Source(PlansRuns, HasPositions, ReadsTables, ReadsLog, Protocol):
    """One database server, as the jobs and operators use it."""

    kind: ClassVar[str]
    """The name of its kind in ``sources.registry``."""
