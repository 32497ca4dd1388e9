"""The interface of a source, through which jobs and operators access a database.

Every kind of database implements `Source`. A method is abstract if every kind must have it. Other methods have a
default, for what a database may lack:

- If there is nothing to do, the default does nothing, or returns an empty result. For example, a server that
  keeps no objects for runs has none to release.
- If a user may request something that the database cannot do, the default raises `ConfigurationError`, or returns the
  reason. It never looks as if the request were fulfilled.

`tests/sources/api/test_source.py` lists the methods that each kind overrides.

A source object has settings but no session. It is cheap to create, and can be pickled, because Spark sends it to
executors. Each call that needs a session opens a session. `Source` itself has no state.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from airflow_provider_cdc.core.options.run import AS_DECLARED, LockPolicy, StepOptions, TableOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.facts import Facts, Finding, HistoryRelation, Trace
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Column, Era, Evolution, Parts, Table, TableName, whole_tables
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    PreflightError,
    Problem,
    SchemaChanged,
    TransientError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_cdc.sources.api.unrepresentable import OddValue
    from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable, UpperBound


# The part of `Source` that reads the log, whole or in pieces, and reports how much of it there is.


class SegmentReader(Protocol):
    """Iterates over the net changes of one log segment. ``summary`` is complete only when the iteration has ended."""

    summary: SegmentSummary

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of ``DELTA_SCHEMA``. For each part of the segment, there is at most one row for each pair of
        key and ``pending``. Rows of keyed tables should be ordered by the buckets of their keys
        (``row_bytes.buckets``). Otherwise, the caller must sort them.

        :raises ExactnessError: something in the segment violates a condition of the proof.
        """


class LogTail(Protocol):
    """Reads the log in steps, from the initial position on, and returns only the touched keys."""

    @property
    def order(self) -> int:
        """A number that is greater than the orders of all changes so far, and less than the orders of all later
        changes. Valid after `read` has ended."""

    @property
    def transactions(self) -> int:
        """The number of transactions that were read so far."""

    @property
    def row_images(self) -> int:
        """The number of row images that were read so far."""

    def go_on_from(self, order: int) -> None:
        """Make the orders of all later changes greater than the argument ``order``. The argument must not be less than
        the property `order`."""

    def read(self, log_end: LogEnd | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the keys that were touched since the last call, as batches of ``DELTA_SCHEMA``. If a key occurs in
        several rows, the last row counts. After an error, the log must be opened again from the start.

        :param log_end: the place at which to stop. None: stop at the current end of the log, or shortly after it.
        :raises ExactnessError: something in the log violates a condition of the proof.
        """


class Waiting(NamedTuple):
    """The log after a place. ``bytes`` is its approximate size. ``again`` is the size of the older log that the server
    must decode again before it returns the first change after the place. ``obstacle`` is the reason why the log should
    not be read now, or empty."""

    bytes: int
    again: int = 0
    obstacle: str = ""


@dataclass(frozen=True)
class NeededLog:
    """The state of the log that a run needs, at one moment.

    ``written`` is the place of the end of the log in bytes. It only increases, so two values show how fast the log
    grows. ``kept`` is the number of bytes from the beginning of the needed log to the end of the log. ``seconds`` is
    the time after which a setting lets the server remove the beginning of the needed log. ``room`` is the number of
    bytes that can be written before the server removes it. Both are None if there is no such limit, or if the limit is
    unknown. ``limit`` names the setting with its value, for messages. ``hint`` says how to make the server keep its log
    for longer. ``begins`` is the beginning of the needed log. It moves if the run lets log go that it has recorded.
    ``certain`` is false if ``seconds`` is only the earliest time, and the server may as well never remove the log.
    """

    written: int
    kept: int
    seconds: float | None = None
    room: int | None = None
    limit: str = ""
    hint: str = ""
    begins: str = ""
    certain: bool = True


AT_START = LogEnd("")
"""The place at which the log since a `Start` begins."""


@dataclass(frozen=True)
class Start:
    """A position since which the log is read, and the ``facts`` that the source recorded there.

    ``kept_by`` is set for the position of copies that are rolled forward: the facts of the run that makes the server
    keep the log since then (`Source.keep_window`). Otherwise ``facts`` name what keeps the log.
    """

    position: Position
    facts: Facts
    kept_by: Facts | None = None


class Log(ABC):
    """The methods of `sources.api.source.Source` for the log. The log has the old row of every change."""

    kind: ClassVar[str]
    carries_pieces: ClassVar[bool] = False
    """Whether reads can also be carried over schema changes if the log since then is in recorded pieces, and perhaps no
    longer on the server (`carry_images`)."""

    @abstractmethod
    def segments(
        self,
        start: Start,
        since: LogEnd,
        until: LogEnd,
        tables: Sequence[Table] = (),
        number: int = 0,
        slots: int = 1,
    ) -> list[LogSegment]:
        """Return the segments with all changes after the place ``since`` up to the place ``until``, in log order.

        :param since: `AT_START`, or the end of a piece of the log since ``start`` that is recorded.
        :param tables: tables whose rows are brought over schema changes. Since `AT_START`, no segment contains rows
            from both sides of one of these changes (`Table.eras`).
        :param number: the number of the first segment, if it follows a recorded piece.
        :param slots: how many segments are read at once.
        :raises LogGone: the log no longer reaches back to ``since``.
        """

    def segments_up_to(self, start: Start, end: Position, tables: Sequence[Table], slots: int) -> list[LogSegment]:
        """Return the `segments` from ``start`` up to a position."""
        return self.segments(start, AT_START, self.place_of(end), tables, slots=slots)

    @abstractmethod
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

    @abstractmethod
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

    def segments_before(self, segment: LogSegment, count: int) -> list[LogSegment]:
        """Return up to ``count`` whole segments directly before ``segment``, in log order. The numbers of these
        segments precede the number of ``segment``. The result is empty if the log does not reach further back.
        """
        return []

    def prepared_now(self) -> set[str] | None:
        """Return the ids of the prepared transactions, as in ``SegmentSummary.prepared``. None: this user may not see
        them."""
        return set()

    def check_writes(self, summaries: Sequence[SegmentSummary]) -> None:
        """Check that the statements in a window did not change a copied table. This method need not check statements
        that name a copied table, because the reader has already stopped at such statements.

        Call this method only if a summary has such statements (``SegmentSummary.writes``).

        :param summaries: the summaries of all segments of the window, in log order.
        :raises ImageNotWhole: a statement may have changed a copied table.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise self._cannot("tell what logged statements changed")

    def follow(
        self, start: Position, identity: Facts, tables: Sequence[TrackedTable]
    ) -> AbstractContextManager[LogTail]:
        """Read the log from ``start`` on.

        :param start: the run's initial position. For tables that are rolled ``forward``: the position of their copies.
        """
        raise self._cannot("keep the log of which only keys are read")

    def backlog(self, initial: Position, identity: Facts) -> int | None:
        """Return the approximate size of the log from ``initial`` to the current end of the log, in bytes. None: it is
        unknown.

        :param identity: the identity that `record_initial` returned.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return None

    def needed_log(self, identity: Facts, since: Sequence[Facts]) -> NeededLog | None:
        """Return the state of the needed log. If several limits apply, return the first one that will be reached. None:
        it is unknown.

        :param identity: the identity in the run's initial point.
        :param since: the identities that were recorded at the positions of the copies that the run rolls forward.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return None

    # Finished reads that the log brings to a later position

    def carry_read(
        self,
        identity: Facts,
        start: Position,
        table: Table,
        now: Table,
        ended: LogEnd,
        end: Position,
        recorded: LogEnd | None = None,
    ) -> Evolution:
        """Return the schema changes of a table since it was read.

        :param identity: the identity of the initial point ``start`` under which the read began.
        :param table: the table as it was recorded at ``start``.
        :param now: the table as it was recorded after ``end``.
        :param ended: an end of the log after the end of the read.
        :param end: the position to which the read is brought.
        :param recorded: the end of the recorded pieces of the log since ``start`` (`carries_pieces`). None: the log is
            read from the source.
        :raises SchemaChanged: the rows of the read cannot be carried over the changes.
        :raises ExactnessError: the log since ``start`` is not complete.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise SchemaChanged(
            f"reads of a {self.kind} source cannot be carried over schema changes", where=str(table.name)
        )

    def carry_images(self, table: Table, columns: Sequence[Column], images: pa.BinaryArray) -> pa.BinaryArray:
        """Return images of the present ``table`` for images of the table with earlier ``columns``. Nulls stay.

        :param table: the present table, with the schema changes since it was read (`Table.eras`).
        :raises DecodeError: the bytes are not images of the table with these columns.
        """
        raise self._cannot("carry recorded pieces of the log over schema changes")

    # The log in pieces, which a run reads and records while it reads the tables (the spool). A place in the log is
    # ``UpperBound.log_end``, or `AT_START`.

    def waiting(self, initial: Position, identity: Facts, place: LogEnd) -> Waiting:
        """Return how much log there is after ``place``.

        :raises SourceUnavailable: the server cannot be reached.
        """
        return Waiting(0, obstacle=f"the log of a {self.kind} source cannot be read in pieces")

    def check_joined(self, start: LogEnd, end: LogEnd, initial: Position, identity: Facts) -> None:
        """Check that the log still has the stretch from ``start`` to ``end``, which a piece covers. Call this if the
        incarnation of the server has changed since the piece was read.

        :raises LogGone: the server has lost a part of this stretch.
        """
        raise self._cannot("read it in pieces")

    def incarnation_at(self, identity: Facts) -> str:
        """Return the incarnation of the server when the run began, if the number of its restarts matters. Otherwise
        empty."""
        return ""

    def place_of(self, position: Position) -> LogEnd:
        """Return the place in the log before which all transactions of ``position`` are, and no others.

        :raises LogGone: the log no longer reaches back to ``position``.
        """
        raise self._cannot("read it in pieces")

    def is_before(self, one: LogEnd, other: LogEnd) -> bool:
        """Return whether the place ``one`` is before the place ``other``."""
        raise self._cannot("read it in pieces")

    def is_within(self, position: str, upper: Position) -> bool:
        """Return whether the transaction with this ``position`` (``CHANGE_SCHEMA.position``) is in the position
        ``upper``."""
        raise self._cannot("read it in pieces")

    def acknowledge(self, identity: Facts, end: LogEnd) -> None:
        """Allow the server to remove the log before ``end``. Nothing happens if this was allowed before, or if another
        session uses the slot at the moment.

        :raises SourceUnavailable: the server cannot be reached.
        """

    def _cannot(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"the log of a {self.kind} source cannot be used to {what}",
            where="parameter source_conn_id",
            hint="name a connection to another kind of source",
        )


# The part of `Source` that a run needs before it begins: plans of tables, and facts about the server.


@dataclass(frozen=True)
class Runway:
    """How long the source will keep its log from now on. ``seconds`` is None if the time is unknown, or if no setting
    limits the time. In the second case, ``unbounded`` is true. ``why`` is the explanation."""

    seconds: float | None
    why: str
    unbounded: bool = False


@dataclass(frozen=True)
class Reach:
    """Whether a server has reached a target.

    If the server has not reached the target, ``lacks`` describes the missing part.
    """

    reached: bool
    lacks: str = ""


class Planning(ABC):
    """The methods of `sources.api.source.Source` for plans and for questions about the server."""

    kind: ClassVar[str]
    """The name of the kind of database in ``sources.api.registry``."""

    load_signals: ClassVar[frozenset[str]] = frozenset()
    """The names of the signals that this kind of source can measure (`load`)."""

    def check_server(self) -> list[Problem]:
        """Return the problems of the server's settings and of the user's privileges that do not depend on the copied
        tables.

        :raises ConfigurationError: the connection cannot work, or the server is too old.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return []

    @abstractmethod
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

    @abstractmethod
    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        """Search a sample of each table's rows for values that would stop the run because no Arrow type holds them. The
        number of rows and the time are limited. Return a problem for each column with such values.
        """

    def tables_of(self, plans: Sequence[TablePlan]) -> list[Table]:
        """Return the planned tables in their current state.

        :raises SchemaChanged: a table no longer exists.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise ConfigurationError(
            f"tables of a {self.kind} source can only be copied as a whole",
            where="parameter where (Table.where)",
            hint="leave `Table.where` and `Table.columns` empty, and give no `Merge`",
        )

    def comparable_texts(self, table: Table) -> dict[str, str]:
        """Return the columns that are published as text and whose text can be compared, each with the kind of its text:
        ``plain``, ``label`` or ``uuid``. In all other columns that are published as text, the text is the printed form
        of a value of another type."""
        return {}

    def pushed_condition(self, table: Table) -> str:
        """Return the part of the table's condition that the server itself evaluates, in the server's SQL. Empty: the
        server does not evaluate any part of the condition, and sends all rows."""
        return ""

    @abstractmethod
    def arrow_schema(self, table: Table) -> pa.Schema:
        """Return the Arrow schema of a table's rows, as they are published."""

    def column_identities(self, table: Table) -> dict[str, str]:
        """Return the identity of each column, by the column's name. A renamed column keeps its identity. No other
        column ever gets it, in this table or in another table."""
        return {}

    @abstractmethod
    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        """Return chunks of about ``chunk_rows`` rows each. The server confirms that the bounds strictly increase."""

    def key_order(self, table: Table) -> str | None:
        """Return the key's first column if two conditions are met: chunks are ranges of this column, and its published
        values sort in the same order as in the source. If so, the column's values in one chunk are not greater than the
        values in the next chunk. Return None if this order is not guaranteed."""
        return None

    def key_range(self, table: Table, low: int | None, high: int | None) -> list[Chunk]:
        """Return chunks with all rows whose first key column is from ``low`` (included) to ``high`` (excluded), and
        with no other rows. None: unbounded. The result is empty if such ranges of the table cannot be read."""
        return []

    def load(self, signals: Sequence[str]) -> Mapping[str, float]:
        """Return the present number of each signal. A signal is a name or a query (`is_query`).

        :raises ConfigurationError: a signal cannot be measured: a privilege is missing, or a query does not return one
            number.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise ConfigurationError(
            f"the load of a {self.kind} source cannot be measured",
            where="parameter governor (Limits.governor)",
            hint="leave `Limits.governor` empty",
        )

    @abstractmethod
    def runway(self) -> Runway:
        """Return how long the server will keep its log from now on, according to its settings.

        :raises SourceUnavailable: the server cannot be reached.
        """

    def after_failover(self, options: StepOptions) -> str:
        """Return what happens to the runs of this source if another server takes over from its server, in one line.
        Empty: it is unknown.

        :raises SourceUnavailable: the server cannot be reached.
        """
        return ""

    def has_reached(self, target: AsOf) -> Reach:
        """Return whether the server has reached ``target``.

        A server has reached a position if it has everything up to this position. On MySQL, this means that readers see
        all transactions of the position. On a PostgreSQL primary, the log up to the position is on disk. On a
        PostgreSQL standby, readers see the changes up to the position. A server has reached a time if no commit from
        now on can belong to the state at that time.

        :raises ConfigurationError: the target is a position of another kind of database.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise ConfigurationError(
            f"a {self.kind} source does not report how far its server has advanced",
            where="parameter source_conn_id",
            hint="name a connection to another kind of source",
        )


# The load of a server, for the governor of a run.


THREADS_RUNNING, REPLICA_LAG = "threads_running", "replica_lag_seconds"
HISTORY_LIST, OLDEST_XMIN = "history_list_length", "oldest_xmin_age"
MEASURE_SECONDS = 5
"""The maximum number of seconds that the server may take for a measurement."""
_QUERY = re.compile(r"\s*SELECT\b", re.IGNORECASE)


def is_query(signal: str) -> bool:
    """Return whether a signal is an operator's own query."""
    return bool(_QUERY.match(signal))


def one_number(signal: str, rows: Sequence[Sequence[object]]) -> float:
    """Return the number in the result of a query.

    :raises ConfigurationError: the result is not one number.
    """
    try:
        ((found,),) = rows
        number = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if number != number:
        raise ConfigurationError(
            "the query does not return one row with one number",
            where=f"parameter governor (Limits.governor), {signal}",
            hint="correct the query; COALESCE(…, 0) replaces a NULL",
        )
    return number


def check_load(source: Planning, signals: Collection[str]) -> None:
    """Check, before a run begins, that each signal can be measured.

    :raises PreflightError: some signals cannot be measured. The error lists all of them.
    """
    problems = []
    for signal in signals:
        where = f"parameter governor (Limits.governor), {signal}"
        if not source.load_signals:
            problems.append(
                Problem(where, "the load of this source cannot be measured", "leave `Limits.governor` empty")
            )
        elif signal not in source.load_signals and not is_query(signal):
            known = f"use one of {', '.join(sorted(source.load_signals))}, or a query that begins with SELECT"
            problems.append(Problem(where, f"a {source.kind} source has no signal of this name", known))
        else:
            try:
                source.load([signal])
            except TransientError:
                raise
            except CdcError as error:
                problems.append(Problem(where, error.message, error.hint))
    if problems:
        raise PreflightError(problems)


# The part of `Source` that reads the rows of tables, and checks that the tables stay as the run recorded them.


@dataclass(frozen=True)
class ReplicaRead:
    """A read of chunks on a replica: the replica's ``server_uuid`` and ``address``, the number of ``rows``, the seconds
    that the read ``waited`` for positions, and a position, as text, with everything that the replica may have
    ``shown``. A server of PostgreSQL has no UUID: ``server_uuid`` is the time at which it was started."""

    server_uuid: str
    address: str
    rows: int
    waited: float
    shown: str


class ChunkReader(Protocol):
    """A session that reads chunks of one table."""

    @property
    def replica_read(self) -> ReplicaRead | None:
        """The read, after `wait_until_durable`, if the chunks were read on a replica. None: the source itself was
        read."""

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

    def wait_until_durable(self) -> str:
        """Call this method after the last chunk. It waits until a crash of the server can no longer undo what was read,
        as far as the server can guarantee this. Then it returns the server's incarnation. The wait uses the session
        that read the chunks.

        The incarnation is an opaque value. It changes with every event that undoes what was read, at least with every
        restart after which data that was not yet durable is lost. The rows of a part count only if the bound of the
        reads has the same incarnation.

        :raises SourceUnavailable: the session broke. The part must be discarded.
        """


class KeyReader(ChunkReader, Protocol):
    """A session that also reads rows by their keys."""

    def find(self, keys: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these keys, in the same form as `read`. The result may also have rows with other keys, if
        the source considers these keys equal to the requested keys.

        :param keys: the keys, as the log's own bytes.
        :raises SourceUnavailable: the session broke. All rows that this call returned must be discarded.
        """


class Reading(ABC):
    """The methods of `sources.api.source.Source` for reads of tables."""

    kind: ClassVar[str]

    @abstractmethod
    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        """Open a session that reads chunks of ``table``."""

    @abstractmethod
    def one_session(self) -> AbstractContextManager[Self]:
        """Return a context with a variant of this source, in which `plan_chunks` and `reader` reuse one session as far
        as possible. Only one thread may use the returned source, and only one of its readers may be open at a time.
        """

    def close_idle(self) -> None:
        """Close the sessions that are kept open. No reader may be open. The next reader opens a new session."""

    @abstractmethod
    def bound_reads(self) -> UpperBound:
        """Return a bound on everything that completed reads could have seen."""

    @abstractmethod
    def check_tables(self, tables: Sequence[Table]) -> None:
        """Check that ``tables`` had no hidden change since the initial position. A hidden change is visible neither in
        the tables nor in the log. Call this method after the last read.

        :raises SchemaChanged: there was a hidden change.
        """

    def note_tables(self, end: LogEnd, tables: Sequence[Table]) -> str:
        """Check ``tables`` as `check_tables` does. From then on, this source searches the log only from the
        place ``end`` on. The place was noted before this call.

        :returns: what later sessions must know, as text (`Link.known`).
        :raises SchemaChanged: a table was replaced.
        """
        return ""

    # Reads in one snapshot that all sessions share (consistency ``exported``), and touched rows that are read again in
    # such a snapshot (consistency ``again``).

    def key_reader(self, table: Table) -> AbstractContextManager[KeyReader]:
        """Open a session on the source itself that reads rows of ``table`` by their keys, for the consistency
        ``again``. It reads the shared snapshot, if `share_reads` returned this source."""
        raise ConfigurationError(
            f"rows of a {self.kind} source cannot be read again by their keys",
            where="parameter consistency (Read.consistency)",
            hint="use `auto`",
        )

    def share_reads(self, lock: LockPolicy) -> AbstractContextManager[Self]:
        """Return a context with a source that reads the chunks of tables with the consistency ``exported``. The
        snapshot stays open as long as the context is open.

        :param lock: how long other sessions may delay the snapshot.
        :raises LockNotGranted: open transactions delayed the snapshot for longer than ``lock`` allows.
        :raises SourceUnavailable: the snapshot could not be opened.
        """
        return nullcontext(self)

    def shared_reads(self, consistencies: Collection[str], lock: LockPolicy) -> AbstractContextManager[Self]:
        """Return a context with a source that reads tables with these consistencies. If one of the consistencies is
        ``exported``, all sessions of the source read one shared snapshot (`share_reads`)."""
        return self.share_reads(lock) if "exported" in consistencies else nullcontext(self)

    def wait_until_visible(self, lock: LockPolicy) -> None:
        """Wait until readers see all commits that are in the log at the time of the call.

        :raises LockNotGranted: some commits were not visible within the time limit of the policy.
        """

    def bound_view(self, tables: Sequence[Table]) -> UpperBound:
        """Return the position of the shared snapshot. Call this method only on the source that
        `share_reads` returned.

        :raises SchemaChanged: the definition of a table in the snapshot differs from the definition that the run
            recorded.
        :raises SourceUnavailable: the snapshot no longer exists.
        """
        raise ConfigurationError(
            f"sessions of a {self.kind} source cannot share a snapshot",
            where="parameter consistency (Read.consistency)",
            hint="use `auto`",
        )

    # Finished reads that the log brings to a later position of the run

    def reason_not_rollable(self, table: Table) -> str:
        """Return the reason why the finished read of a table cannot be brought to a later position. Empty: it can."""
        return f"reads of a {self.kind} source cannot be brought to a later position"

    def check_continued(self, tables: Sequence[Table]) -> None:
        """Check that ``tables`` are unchanged since the initial point of the run, so that the log has all changes of
        their rows up to a position that is fixed before the call. More changes count than in
        `check_tables`, because the rows at the later position are published. For example, a new
        partition may have rows there.

        :raises SchemaChanged: a table was changed.
        """
        raise ConfigurationError(
            f"reads of a {self.kind} source cannot be brought to a later position",
            where="parameter on_schema_change (On.schema_change)",
            hint="set `On.schema_change` to `fail`",
        )

    def ends_of_reads(self, tables: Sequence[Table]) -> dict[TableName, LogEnd]:
        """Return the present end of the log for tables whose reads have ended. `carry_read` takes it.

        The schema changes after this end come after the reads. There is no end for a table if earlier schema changes
        cannot be ruled out, where the source needs this.

        :param tables: the tables as they were recorded when their reads began.
        """
        return {}

    def new_columns(self, table: Table, era: Era) -> pa.RecordBatch:
        """Return the published values of the columns of ``table`` that rows of ``era`` do not have, as one row."""
        raise ConfigurationError(
            f"rows of a {self.kind} source cannot be carried over schema changes",
            where=str(table.name),
            hint="set `refresh` to `full`",
        )


# The part of `Source` for the positions from which a run reads tables or rolls copies forward, and for the objects
# that the server keeps for them.


SLOT, PUBLICATION = "replication slot", "publication"


@dataclass(frozen=True)
class LeftByRun:
    """A run for which the server still keeps objects, and the names by which Airflow identifies the DAG run."""

    run_id: str
    dag_id: str
    dag_run_id: str


@dataclass(frozen=True)
class KeptObject:
    """An object that a server keeps for a run.

    :param kind: `SLOT` or `PUBLICATION`.
    :param run_id: the run; empty: unknown.
    :param dag_id: the names of the task that created the object; empty: unknown.
    :param pid: the session that uses the object; 0: none.
    :param bytes: the size of the log that the server keeps because of the object.
    """

    kind: str
    name: str
    run_id: str
    dag_id: str = ""
    dag_run_id: str = ""
    task_id: str = ""
    pid: int = 0
    bytes: int = 0


class Starts(ABC):
    """The methods of `sources.api.source.Source` for positions."""

    kind: ClassVar[str]
    position_key: ClassVar[str]
    """The name of the initial position in XComs, manifests and ``_latest.json``: ``initial_gtid_set``,
    ``initial_lsn``."""

    @abstractmethod
    def here(self) -> tuple[Facts, Position]:
        """Return the identity of the connected server, as in `InitialPoint`, and the latest position of its history.

        :raises SourceUnavailable: the server cannot be reached.
        """

    @abstractmethod
    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        """Fix the initial position, and then read the schemas. Because of this order, the window contains all DDL that
        is not yet in effect in the schemas.

        Several tries of a run may call this method at the same time. Each try creates its own objects on the server
        (`release`). The names of the objects begin with a prefix that is derived from ``run_id``. A try does not
        remove the objects of another try.

        :raises LockNotGranted: a table needs a lock, and the lock was not granted.
        """

    @abstractmethod
    def of_run(self, identity: Facts, position: Position) -> Self:
        """Return this source for the steps of one run.

        Some sessions read rows or the log, or bound reads. In its first round trip, each of these sessions checks that
        it has reached the server of ``identity``, and that this server has everything up to ``position``. The check is
        needed because several servers may share an address.

        The methods of the returned source raise `SourceReplaced` if a session reaches another server, or a server that
        lags behind.
        """

    @abstractmethod
    def check_identity(self, identity: Facts, position: Position) -> None:
        """Check that the server is still the server on which the run began, and that its history and settings are
        intact.

        :raises SourceReplaced: another server answered, or the server's history no longer contains ``position``.
        :raises LogGone: the log was purged past ``position``.
        :raises ExactnessError: a setting on which the proof depends was changed since the run began.
        """

    def take_over(self, identity: Facts, position: Position, tables: Sequence[Table]) -> Facts:
        """Return the facts by which the connected server continues what rests on ``position`` of the server of
        ``identity``: a copy of ``tables``. If it is the same server, these facts are ``identity``.

        :raises SourceReplaced: the position is not in the history of the connected server.
        :raises ExactnessError: it is unknown whether it is, or the server no longer has the log since the position.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return identity

    def relations(self, identity: Facts, position: Position, traces: Sequence[Trace]) -> list[Finding]:
        """Compare the history of the server of ``identity`` with the histories of earlier copies of this source, and
        return the relations. The server has everything up to ``position``.

        Return `Relation.OTHER` only if it is proved that the histories differ. If they differ, copies of the present
        history supersede the earlier copies.

        :raises SourceReplaced: the connection reaches another server.
        :raises SourceUnavailable: the server cannot be reached.
        """
        why = f"a {self.kind} source does not recognize its history"
        return [Finding(HistoryRelation.UNKNOWN, why) for _ in traces]

    # Objects that the server keeps for a run, such as a replication slot. They exist from `record_initial` until they
    # are released. If a run has several tries, each try may have created such objects.

    def release(self, run_id: str) -> bool:
        """Remove the objects that the tries of the run created on the server. It is not an error if no object is left.
        Return whether servers of this kind keep such objects.

        :raises SourceUnavailable: the server cannot be reached; the objects stay.
        """
        return False

    def discard(self, identity: Facts) -> None:
        """Remove the objects that one call of `record_initial` created on the server, because the run does not use the
        position of this call. It is not an error if no object is left.

        :param identity: the identity that this call of `record_initial` returned.
        :raises SourceUnavailable: the server cannot be reached; the objects stay.
        """

    def left_by_runs(self) -> list[LeftByRun]:
        """Return the runs for which the server keeps objects, including runs in progress.

        :raises SourceUnavailable: the server cannot be reached.
        """
        return []

    def kept_objects(self, run_ids: Collection[str]) -> list[KeptObject]:
        """Return the objects that the server keeps for runs, including runs in progress.

        :param run_ids: the runs that are known. An object may have a name that only the run's id explains.
        :raises SourceUnavailable: the server cannot be reached, or is a standby.
        """
        return []

    def drop_unused(self, one: KeptObject) -> str:
        """Drop an object unless a session uses it. Return why the object stays; empty: it no longer exists."""
        return f"a {self.kind} source keeps no objects for runs"

    # Positions of the past

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Check that a copy of these tables can be exact at ``as_of``. Everything on which the copy depends must be
        unchanged since ``as_of``.

        :raises PreflightError: a copy cannot be exact at ``as_of``. The error lists every problem, and the earliest
            time at which a copy can be exact.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise self._no_past()

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        """Record the initial position as `record_initial` does, but at the position that ``as_of`` names.
        The position of a time is final: no later commit can belong to it.

        :raises PreflightError: a copy of these tables cannot be exact at the position that ``as_of`` names.
        :raises SourceUnavailable: the position of the time ``as_of`` does not become final, because of a fault of the
            server.
        """
        raise self._no_past()

    def keep_past(self, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Make the server keep, from now on, the log that `record_past` needs for these tables. If the server already
        keeps this log, nothing changes.

        :raises LockNotGranted: open transactions delayed this operation for too long.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def note_position(self, point: InitialPoint, options: StepOptions) -> None:
        """Record on the server that a run began at ``point``. If `note_copies` fails later, the copies of the run can
        still be rolled forward from ``point``. This does not apply to copies that are exact at a later position.

        :raises TransientError: the server cannot be reached, or other runs repeatedly changed the record at the same
            time.
        """

    def note_copies(self, options: StepOptions, copies: Mapping[str, Mapping[str, Position]], incarnation: str) -> None:
        """Record on the server the copies that a run has published. Only recorded copies are rolled forward. Call this
        method on the source that `of_run` returned, and before `release`. The objects that the server keeps
        for the run prove that the server's history is the history of the copies.

        :param copies: for each lake, the positions of the tables' latest copies in this lake, by table name.
        :param incarnation: if these positions are after the run's initial position, the incarnation of the server when
            it reached them. Otherwise empty. If the server is set back to a point before these positions, the server's
            incarnation changes (`ChunkReader.wait_until_durable`).
        :raises ExactnessError: the connection reaches another server, or the server's disk was set back to an earlier
            state, or the server no longer keeps the log.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def give_up_past(self, options: StepOptions) -> None:
        """Allow the server to remove log that is older than ``options.standing_slot_hours``. The server still keeps the
        log since the last copies, so that they can be rolled forward. The server keeps this log for some days, for
        every table and lake that `note_copies` recorded.

        :raises SourceUnavailable: the server cannot be reached, so it continues to keep all log.
        """

    def _no_past(self) -> ConfigurationError:
        return ConfigurationError(
            f"a run cannot copy a {self.kind} source as of a past position",
            where="parameter as_of",
            hint="leave the option `as_of` empty",
        )

    # Copies that are rolled forward

    def refusals_since(
        self,
        identity: Facts,
        position: Position,
        tables: Sequence[Table],
        to: AsOf | None,
        options: StepOptions,
        *,
        keys_only: bool = False,
        bases: int = 1,
        evolutions: dict[TableName, Evolution] | None = None,
    ) -> dict[TableName, str]:
        """Return the reasons why copies cannot be rolled forward, by table. Tables whose copies can be rolled forward
        are not in the result.

        :param identity: the identity of the server from which the copies were made.
        :param position: the position at which the copies are exact.
        :param to: the position or time to which the copies are rolled forward. None: now.
        :param keys_only: read only the keys of touched rows (consistency ``again``).
        :param bases: the number of different positions of the copies that the run may roll forward.
        :param evolutions: receives the schema changes of tables that can be rolled forward over them. None: tables with
            schema changes are refused.
        :raises ExactnessError: no copy can be rolled forward.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return {table.name: "copies of this kind of source cannot be rolled forward yet" for table in tables}

    def check_since(self, identity: Facts, position: Position) -> None:
        """Check three conditions. The connected server must be the server of ``identity``, which had ``position``. The
        server's history since ``position`` must be intact. Everything that the log does not show must be unchanged
        since ``position``.

        :raises ExactnessError: one of these conditions does not hold.
        :raises SourceUnavailable: the server cannot be reached.
        """
        raise ConfigurationError(
            f"copies of a {self.kind} source cannot be rolled forward yet",
            where="parameter refresh",
            hint="set `refresh` to `full` or `auto`: the run then reads the tables in full",
        )

    def keep_window(
        self, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
    ) -> InitialPoint:
        """Make the server keep the log between the last copies and the run's ``point``, so that ``plans`` can roll the
        copies forward. The server keeps this log until the run is released (`release`). Return ``point`` with an
        identity that also names this log. Before this method raises an error, it discards the objects that were created
        for ``point``.

        :raises PreflightError: the log no longer exists, or a table was altered after its last copy.
        :raises SourceUnavailable: the server cannot be reached.
        """
        return point

    def check_replaced(self, identity: Facts, tables: Sequence[Table], until: Facts, now: Sequence[Table]) -> None:
        """Check that no table in ``tables`` was replaced without an entry in the log. An earlier run recorded the
        tables on the server of ``identity``. The check covers the time since this run.

        :param until: the identity that was recorded by the run that depends on the tables. Changes that were logged
            after the beginning of that run are irrelevant.
        :param now: the tables as they were recorded by the run that depends on them, just before its position. Empty:
            the position of that run is in the past (``as_of``).

        :raises SchemaChanged: a table was replaced.
        :raises SourceUnavailable: the server cannot be reached.
        """

    # Tables whose finished reads are kept when a run moves to a later position

    def altered_in_log(self, tables: Sequence[Table]) -> Mapping[TableName, SchemaChanged]:
        """Return the tables that a statement in the log since the position of the run changes, each with an error that
        names the statement. If the log has something at which a run stops anyway, later statements may be missing.

        :raises LogGone: the log no longer reaches back to the position.
        """
        return {}

    def refresh_identities(self, tables: Sequence[Table]) -> Sequence[Table]:
        """Check that nothing has changed ``tables`` without an entry in the log since they were recorded, and return
        them with the present facts. Later checks compare the tables with these facts.

        :raises SchemaChanged: a table was changed without an entry in the log.
        :raises LogGone: the log no longer reaches back to the position of the run.
        """
        return tables

    def with_facts_of(self, identity: Facts) -> Self:
        """Return this source for tables whose facts were renewed just before a later position of the run was fixed.
        ``identity`` is what was recorded with that position. The log before it explains no later change."""
        return self


class Source(Planning, Starts, Reading, Log):
    """One database server, as the jobs and operators use it."""


# The settings of a connection to a source.


TLS_FILES = ("ca", "cert", "key", "server_key")
"""The settings in ``ConnectionSettings.tls`` that are paths of files."""


@dataclass(frozen=True)
class ConnectionSettings:
    """The settings of a connection to a source. Secrets never appear in a repr. ``options`` has settings that are
    specific to one kind of source, such as ``publication`` (the name of an existing publication). ``files`` has the
    contents of the files that ``tls`` names, for machines without these files.

    ``auth`` is empty if sessions log in with ``password``. Otherwise, they log in with tokens that are made from
    ``credentials`` (`sources.tokens`).

    ``secret_ref`` names a secret from which each process reads the password (`sources.secret_store`). Empty: it is
    ``password``.

    ``tls`` has paths and modes for the driver: ``mode`` (``disabled``, ``preferred``, ``required``, ``verify_ca``,
    ``verify_identity``), ``ca``, ``cert`` and ``key``. ``sources.session`` and the kind of source define more
    fields.

    ``replicas`` are the servers from which tables are read (the option ``read_conn_ids``). Empty: tables are read from
    the source itself.

    ``log_server`` is the server from which the log is read (the option ``log_conn_id``). None: the source itself.
    ``replica_wait_seconds`` is how long a run waits for it.
    """

    kind: str
    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    database: str = ""
    tls: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: str = ""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    replicas: Sequence[ConnectionSettings] = ()
    secret_ref: str = ""
    log_server: ConnectionSettings | None = None
    replica_wait_seconds: int = 600

    def __post_init__(self) -> None:
        if self.files:
            paths = {name: _in_memory(content) for name, content in self.files.items()}
            object.__setattr__(self, "tls", {**self.tls, **paths})

    def __reduce__(self) -> Any:
        # Each process that gets the settings has its own paths.
        return type(self), tuple(getattr(self, one.name) for one in fields(self))

    def with_files(self) -> ConnectionSettings:
        """Return the settings for another machine, with the contents of the files. Each byte is one character, because
        such files may have comments in any encoding.

        :raises ConfigurationError: a file cannot be read.
        """
        try:
            files = {name: Path(path).read_text("latin-1") for name in TLS_FILES if (path := self.tls.get(name))}
        except OSError as error:
            hint = "correct the path, or give this process the right to read the file"
            raise ConfigurationError(str(error), where=self.address, hint=hint) from error
        replicas = tuple(one.with_files() for one in self.replicas)
        log_server = self.log_server and self.log_server.with_files()
        return replace(self, files=files, replicas=replicas, log_server=log_server)

    @property
    def address(self) -> str:
        """``user@host:port``, for messages."""
        return f"{self.user}@{self.host}:{self.port}"


@cache
def _in_memory(content: str) -> str:
    """Return the path of a file with this content. The file is only in the memory of this process."""
    file = os.memfd_create("tls")
    os.write(file, content.encode("latin-1"))
    # PostgreSQL's library refuses a key that others may read.
    os.fchmod(file, 0o600)
    return f"/proc/self/fd/{file}"
