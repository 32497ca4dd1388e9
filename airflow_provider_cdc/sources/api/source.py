"""The interface of a source, through which jobs and operators access a database.

Every kind of database implements `Source`. `optional_capabilities` has protocols that only some kinds implement.

A source object has settings but no session. A source is cheap to create and safe to pickle (Spark sends it to
executors). Each call that needs a session opens one.
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
        """The exact position at which all chunks are read; None: each chunk is read at its own time."""

    @property
    def lock_seconds(self) -> float:
        """The time for which a lock was held to fix ``upper``."""

    @property
    def nulled(self) -> Mapping[str, int]:
        """The number of values of each column that were read as null so far because no Arrow type holds them."""

    @property
    def odd(self) -> Sequence[OddValue]:
        """The values in the last batch of `read` that no Arrow type holds. With the policy ``error``, a placeholder
        replaces such a value. With other policies, ``odd`` has the values that the table's condition treats as null
        although they are published as something else."""

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the chunk's rows as batches of ``Source.arrow_schema`` of the table as it is read (`Table.as_read`).
        Memory is bounded whatever the size of the chunk.

        :raises SourceUnavailable: the session broke. All rows of the chunk must be discarded.
        :raises ValueNotRepresentable: with the policy ``error``, no Arrow type holds a value of a key, or of a keyless
            table that is copied as a whole; or a table without a condition has too many such values for ``odd``.
        """

    def settle(self) -> str:
        """After the last chunk, wait until no crash of the server can undo what was read, as far as the server can
        guarantee this, and return the server's incarnation. The wait uses the session that read the chunks.

        The incarnation is opaque. The incarnation changes with every event that undoes a read: at least with every
        restart before which the read was not durable. A part counts only if the bound of the reads has the same
        incarnation.

        :raises SourceUnavailable: the session broke. The part must be discarded.
        """


class SegmentReader(Protocol):
    """Iterates over the net changes of one log segment. ``summary`` is complete when the iteration has ended."""

    summary: SegmentSummary

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of ``DELTA_SCHEMA``. Each part of the segment has at most one row per key and ``pending``. Rows
        of keyed tables should be ordered by the buckets of their keys (``row_bytes.buckets``); otherwise the caller
        must sort them.

        :raises ExactnessError: something in the segment violates a condition of the proof.
        """


class PlansRuns(Protocol):
    """A database that checks whether a run can work, and plans the run."""

    def preflight(
        self, patterns: Sequence[str], options: TableOptions = AS_DECLARED, parts: Parts = whole_tables
    ) -> list[TablePlan]:
        """Check all requirements of a run, and decide how each table is read.

        :param patterns: ``schema.table``. ``*`` matches any sequence of characters in either part. A pattern that
            begins with ``!`` excludes tables that earlier patterns named (``!shop._*_gho``).
        :param parts: the part of each table that is copied. Columns that the run does not read cause no problems.
        :raises PreflightError: there are problems; the error lists all of them.
        :raises LockNotGranted: a lock of a session blocks readers of a table; the message names both.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        """Search a limited number of rows of each table, for a limited time, for values that would stop the run because
        no Arrow type holds them. Return a problem for each column with such values.
        """


class HasPositions(Protocol):
    """A database whose history has positions."""

    position_key: ClassVar[str]
    """The name of the initial position in XComs, manifests and ``_latest.json``: ``initial_gtid_set``,
    ``initial_lsn``."""

    def here(self) -> tuple[Mapping[str, str], Position]:
        """Return the identity of the connected server, as in `InitialPoint`, and the latest position of its history.

        :raises SourceUnavailable: the server cannot be reached.
        """

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        """Fix the initial position, and then read the schemas. In this order, the window contains any DDL that the
        schemas do not show.

        Several tries of a run may do this at once. Each creates its own objects on the server (`KeepsForRun`), whose
        names begin with a prefix derived from ``run_id``. No try removes the objects of another try.

        :raises LockNotGranted: a table needs a lock, which was not granted.
        """

    def of_run(self, identity: Mapping[str, str], position: Position) -> Source:
        """Return this source for the steps of one run.

        Every session that reads rows or the log, or that bounds reads, checks in its first round trip that it reached
        the server of ``identity``, and that this server has all of ``position``. Several servers may share an address.

        The methods of the returned source raise `SourceReplaced` if a session reaches another server, or a server that
        lags behind.
        """

    def check_identity(self, identity: Mapping[str, str], position: Position) -> None:
        """Check that this is still the server on which the run began, with its history and settings intact.

        :raises SourceReplaced: this is another server, or its history no longer contains ``position``.
        :raises LogGone: the log was purged past ``position``.
        :raises ExactnessError: a setting on which the proof depends was changed since the run began.
        """


class ReadsTables(Protocol):
    """A database whose tables are read in chunks."""

    def arrow_schema(self, table: Table) -> pa.Schema:
        """Return the Arrow schema of a table's rows, as they are published."""

    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        """Return chunks of about ``chunk_rows`` rows each. The server checks that the bounds strictly increase."""

    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        """Open a session that reads chunks of ``table``."""

    def one_session(self) -> AbstractContextManager[Source]:
        """Return a context with this source, in which `plan_chunks` and `reader` reuse one session as far as they can.
        Only one thread, and one reader at a time, may use this source.
        """

    def bound_reads(self) -> UpperBound:
        """Return a bound on everything that completed reads could have seen."""

    def check_tables(self, tables: Sequence[Table]) -> None:
        """After the last read, check that ``tables`` had no hidden change since the initial position. A hidden change
        is visible neither in the tables nor in the log.

        :raises SchemaChanged: there was a hidden change.
        """


class ReadsLog(Protocol):
    """A database whose log has the old row of every change."""

    def log_segments(
        self, initial: Position, log_end: LogEnd, identity: Mapping[str, str], slots: int = 1
    ) -> list[LogSegment]:
        """Return the segments with all changes after ``initial`` up to ``log_end``, in log order.

        :param identity: the identity that `record_initial` returned. The identity names the objects that the server
            keeps for the run.
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
        """Open a session that reads the net changes after ``start`` in one segment.

        :param changes: called during the read with every single change of the tables that request this, in batches of
            ``CHANGE_SCHEMA``.
        :param progress: called periodically with the number of bytes of the segment, and of row images, read so far.
        """

    def decode_images(
        self,
        table: Table,
        images: pa.BinaryArray,
        nulled: dict[str, int] | None = None,
        names: Collection[str] | None = None,
        odd: list[OddValue] | None = None,
    ) -> pa.RecordBatch:
        """Return rows decoded from the log's own bytes, exactly as a SELECT returns them.

        :param images: the log's bytes of each row, without nulls.
        :param nulled: counts by column. The number of values that became null because no Arrow type holds them is added
            to the counts.
        :param names: the columns to decode; None: all. Values of other columns cause no errors.
        :param odd: values that no Arrow type holds are noted here, as in ``ChunkReader.odd``, including values of
            columns that identify rows.
        :raises DecodeError: the bytes are not an image of ``table``.
        :raises ValueNotRepresentable: no Arrow type holds a value, the policy is ``error``, and ``odd`` is None.
        """


class Source(PlansRuns, HasPositions, ReadsTables, ReadsLog, Protocol):
    """One database server, as the jobs and operators use it."""

    kind: ClassVar[str]
    """The name of the kind of database in ``sources.api.registry``."""
