"""The interface of a source, through which jobs and operators access a database.

Every kind of database implements `Source`. `optional_capabilities` has protocols that only some kinds implement.

A source object has settings but no session. It is cheap to create, and can be pickled, because Spark sends it to
executors. Each call that needs a session opens a session.
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
        """The exact position at which all chunks are read. None: each chunk is read at a different time."""

    @property
    def lock_seconds(self) -> float:
        """The time for which a lock was held to fix ``upper``."""

    @property
    def nulled(self) -> Mapping[str, int]:
        """For each column, the number of values that were read as null so far, because no Arrow type holds them."""

    @property
    def odd(self) -> Sequence[OddValue]:
        """The values in the last batch of `read` that no Arrow type holds. With the policy ``error``, a placeholder
        replaces such a value. With other policies, ``odd`` has only the values that the table's condition treats as
        null, although another value is published for them."""

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the chunk's rows as batches. The schema of the batches is ``Source.arrow_schema`` of `Table.as_read`.
        The used memory is limited, even if the chunk is large.

        :raises SourceUnavailable: the session broke. All rows of the chunk must be discarded.
        :raises ValueNotRepresentable: the policy is ``error``, and no Arrow type holds a value of a key, or a value of
            a keyless table that is copied as a whole. Or a table without a condition has too many such values for
            ``odd``.
        """

    def settle(self) -> str:
        """Call this method after the last chunk. It waits until a crash of the server can no longer undo what was read,
        as far as the server can guarantee this. Then it returns the server's incarnation. The wait uses the session
        that read the chunks.

        The incarnation is an opaque value. It changes with every event that undoes what was read, at least with every
        restart after which data that was not yet durable is lost. The rows of a part count only if the bound of the
        reads has the same incarnation.

        :raises SourceUnavailable: the session broke. The part must be discarded.
        """


class SegmentReader(Protocol):
    """Iterates over the net changes of one log segment. ``summary`` is complete only when the iteration has ended."""

    summary: SegmentSummary

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of ``DELTA_SCHEMA``. For each part of the segment, there is at most one row for each pair of
        key and ``pending``. Rows of keyed tables should be ordered by the buckets of their keys
        (``row_bytes.buckets``). Otherwise, the caller must sort them.

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
        :raises PreflightError: there are problems. The error lists all of them.
        :raises LockNotGranted: a session has a lock that blocks readers of a table. The message names the session and
            the table.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        """Search a sample of each table's rows for values that would stop the run because no Arrow type holds them. The
        number of rows and the time are limited. Return a problem for each column with such values.
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
        """Fix the initial position, and then read the schemas. Because of this order, the window contains all DDL that
        is not yet in effect in the schemas.

        Several tries of a run may call this method at the same time. Each try creates its own objects on the server
        (`KeepsForRun`). The names of the objects begin with a prefix that is derived from ``run_id``. A try does not
        remove the objects of another try.

        :raises LockNotGranted: a table needs a lock, and the lock was not granted.
        """

    def of_run(self, identity: Mapping[str, str], position: Position) -> Source:
        """Return this source for the steps of one run.

        Some sessions read rows or the log, or bound reads. In its first round trip, each of these sessions checks that
        it has reached the server of ``identity``, and that this server has everything up to ``position``. The check is
        needed because several servers may share an address.

        The methods of the returned source raise `SourceReplaced` if a session reaches another server, or a server that
        lags behind.
        """

    def check_identity(self, identity: Mapping[str, str], position: Position) -> None:
        """Check that the server is still the server on which the run began, and that its history and settings are
        intact.

        :raises SourceReplaced: another server answered, or the server's history no longer contains ``position``.
        :raises LogGone: the log was purged past ``position``.
        :raises ExactnessError: a setting on which the proof depends was changed since the run began.
        """


class ReadsTables(Protocol):
    """A database whose tables are read in chunks."""

    def arrow_schema(self, table: Table) -> pa.Schema:
        """Return the Arrow schema of a table's rows, as they are published."""

    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        """Return chunks of about ``chunk_rows`` rows each. The server confirms that the bounds strictly increase."""

    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        """Open a session that reads chunks of ``table``."""

    def one_session(self) -> AbstractContextManager[Source]:
        """Return a context with a variant of this source, in which `plan_chunks` and `reader` reuse one session as far
        as possible. Only one thread may use the returned source, and only one of its readers may be open at a time.
        """

    def bound_reads(self) -> UpperBound:
        """Return a bound on everything that completed reads could have seen."""

    def check_tables(self, tables: Sequence[Table]) -> None:
        """Check that ``tables`` had no hidden change since the initial position. A hidden change is visible neither in
        the tables nor in the log. Call this method after the last read.

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
        """Open a session that reads the net changes of one segment, as far as they are after ``start``.

        :param changes: a function that is called during the read with batches of ``CHANGE_SCHEMA``. The batches have
            every single change of the tables for which single changes are requested.
        :param progress: a function that is called periodically with two numbers: the bytes of the segment that were
            read so far, and the number of row images so far.
        """

    def decode_images(
        self,
        table: Table,
        images: pa.BinaryArray,
        nulled: dict[str, int] | None = None,
        names: Collection[str] | None = None,
        odd: list[OddValue] | None = None,
    ) -> pa.RecordBatch:
        """Decode rows from the log's own bytes. The result is exactly what a SELECT returns.

        :param images: the log's bytes of each row, without nulls.
        :param nulled: counts by column. To each count, this method adds the number of values that became null because
            no Arrow type holds them.
        :param names: the columns to decode. None: all columns. Values of columns that are not decoded cause no errors.
        :param odd: a list to which values that no Arrow type holds are added, as in ``ChunkReader.odd``. Values of
            columns that identify rows are added, too.
        :raises DecodeError: the bytes are not an image of ``table``.
        :raises ValueNotRepresentable: no Arrow type holds a value, the policy is ``error``, and ``odd`` is None.
        """


class Source(PlansRuns, HasPositions, ReadsTables, ReadsLog, Protocol):
    """One database server, as the jobs and operators use it."""

    kind: ClassVar[str]
    """The name of the kind of database in ``sources.api.registry``."""
