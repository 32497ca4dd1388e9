"""Protocols for capabilities that only some kinds of source have. A kind of source implements only those that it
needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from airflow_provider_cdc.core.copies.history import Finding, Trace
from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.plan import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.source import Source

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary


@runtime_checkable
class OrdersChunks(Protocol):
    """A source in which some chunks are ranges of a key."""

    def key_order(self, table: Table) -> str | None:
        """Return the key's first column if chunks are ranges of it and its published values sort as the source sorts
        them. Then the values in one chunk are below the values in the next chunk. Return None if this order is not
        guaranteed."""


@runtime_checkable
class SharesReads(Protocol):
    """A source whose sessions can all read one snapshot (consistency ``exported``)."""

    def share_reads(self, lock: LockPolicy) -> AbstractContextManager[Source]:
        """Return a context with the source for reading the chunks of tables with the consistency ``exported``. The
        snapshot stays open as long as the context is open.

        :param lock: how long other sessions may delay the snapshot.
        :raises LockNotGranted: transactions delayed the snapshot for longer.
        :raises SourceUnavailable: the snapshot could not be opened.
        """


@runtime_checkable
class PreparesBeforeWindow(Protocol):
    """A source whose log has the changes of a prepared transaction at the place where the transaction was prepared, not
    at the place of its commit. The window may contain only one of the two places."""

    def segments_before(self, segment: LogSegment, count: int) -> list[LogSegment]:
        """Return up to ``count`` whole segments directly before ``segment``, in log order. The numbers of these
        segments precede the number of ``segment``. Empty: the log does not reach further back.
        """


@runtime_checkable
class LogsStatements(Protocol):
    """A source whose log may contain the statement that made a change, instead of the changed rows."""

    def check_writes(self, summaries: Sequence[SegmentSummary]) -> None:
        """Check that the statements in a window changed no copied table. The reader has already stopped at statements
        that name a copied table.

        :param summaries: the summaries of all segments of the window, in log order.
        :raises ImageNotWhole: a statement may have changed a copied table.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class KeepsForRun(Protocol):
    """A source whose server keeps objects for a run (a replication slot), from `record_initial` until they are
    released.

    Each of several tries of a run may have created such objects.
    """

    def release(self, run_id: str) -> None:
        """Remove the objects that any try of the run created on the server. It is no error if no object is left.

        :raises SourceUnavailable: the server cannot be reached; the objects stay.
        """

    def discard(self, identity: Mapping[str, str]) -> None:
        """Remove the objects that one `record_initial` created on the server, because its position does not count. It
        is no error if no object is left.

        :param identity: the identity that this `record_initial` returned.
        :raises SourceUnavailable: the server cannot be reached; the objects stay.
        """


@runtime_checkable
class GoesBack(Protocol):
    """A source whose copies can be exact at a past position, as far back as its log reaches."""

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Check that a copy of these tables can be exact at ``as_of``. The things on which the copy depends must not
        have changed since then.

        :raises PreflightError: a copy cannot be exact at ``as_of``; the error lists every problem, and the earliest
            time that is possible.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        """Do what `HasPositions.record_initial` does, but at the position that ``as_of`` names. If ``as_of`` is a time,
        wait for the first commit after this time, up to ``options.as_of_wait_seconds``.

        :raises PreflightError: a copy of these tables cannot be exact at that position.
        :raises SourceUnavailable: no transaction has been committed after that time yet.
        """


@runtime_checkable
class KeepsPast(Protocol):
    """A source whose server keeps its log from run to run only on request (by a standing slot)."""

    def keep_past(self, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Let the server keep, from now on, the log that `GoesBack` needs for these tables. If it already does, nothing
        changes.

        :raises LockNotGranted: transactions delayed this for too long.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def note_position(self, point: InitialPoint, options: StepOptions) -> None:
        """Record on the server that a run began at ``point``. So its copies can be rolled forward even if `note_copies`
        fails, unless they are exact at a later position.

        :raises TransientError: the server cannot be reached, or other runs keep changing the record.
        """

    def note_copies(self, options: StepOptions, copies: Mapping[str, Mapping[str, Position]], incarnation: str) -> None:
        """Record on the server the copies that a run has published. Only recorded copies are rolled forward. Called on
        the source `of_run`, before `KeepsForRun.release`: the objects that the server keeps for the run prove that its
        history is the history of the copies.

        :param copies: for each lake, the positions of the copies that are now the latest ones in this lake, by table
            name.
        :param incarnation: the incarnation of the server when it reached these positions, if they are after the run's
            initial position; otherwise empty. If the server is set back to a point before these positions, its
            incarnation changes (`ChunkReader.settle`).
        :raises ExactnessError: the connection reaches another server, or a server whose disk was put back, or the
            server no longer keeps the log.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def give_up_past(self, options: StepOptions) -> None:
        """Let the server remove log that is older than ``options.standing_slot_hours``. The server still keeps the log
        since the last copies that may be rolled forward. For some days, it does so for every table and lake that
        `note_copies` recorded.

        :raises SourceUnavailable: the server cannot be reached; it still keeps all of this log.
        """


@runtime_checkable
class ChecksServer(Protocol):
    """A source that can be checked before the tables to copy are known."""

    def check_server(self) -> list[Problem]:
        """Return the problems of the server's settings and of the user's privileges, whichever tables are copied.

        :raises ConfigurationError: the connection cannot work, or the server is too old.
        :raises SourceUnavailable: the server cannot be reached.
        """


@dataclass(frozen=True)
class Runway:
    """How long the source will keep its log from now on. ``seconds`` is None if no setting limits the time
    (``unbounded``), or if the time is unknown. ``why`` is the explanation."""

    seconds: float | None
    why: str
    unbounded: bool = False


@runtime_checkable
class TellsRunway(Protocol):
    """A source that reports how long a run may take before the log that it needs is removed."""

    def runway(self) -> Runway:
        """Return how long the server will keep its log from now on, according to its settings.

        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class TellsBacklog(Protocol):
    """A source that reports how much log has been written since a position, for monitoring a run."""

    def backlog(self, initial: Position, identity: Mapping[str, str]) -> int:
        """Return the approximate number of bytes of log from ``initial`` to the present end of the log.

        :param identity: the identity that `record_initial` returned.
        :raises SourceUnavailable: the server cannot be reached.
        """


@dataclass(frozen=True)
class Reach:
    """Whether a server has reached a target.

    ``lacks`` describes the missing part, if the server has not reached the target. ``at`` is the place that the server
    had reached when it was asked. ``at`` is opaque. As long as ``at`` does not change, the server has not reached the
    target.
    """

    reached: bool
    lacks: str = ""
    at: str = ""


@runtime_checkable
class TellsReach(Protocol):
    """A source that reports how far its server has advanced. The server may be a replica or a standby."""

    def has_reached(self, target: AsOf, seen: Reach | None = None) -> Reach:
        """Return whether the server has reached ``target``.

        A server has reached a position if it has everything up to this position. On MySQL, readers see all of these
        transactions. On PostgreSQL, the log up to the position is on disk. On a standby, readers see the changes up to
        the position. A server has reached a time if no commit that begins from now on belongs to the state at that
        time.

        :param seen: the previous result, which may save the server some work.
        :raises ConfigurationError: the target is a position of another kind of database.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class RollsForward(Protocol):
    """A source whose log has the new row of every change, so that a published copy can be rolled forward."""

    def refusals_since(
        self,
        identity: Mapping[str, str],
        position: Position,
        tables: Sequence[Table],
        to: AsOf | None,
        options: StepOptions,
        *,
        keys_only: bool = False,
        bases: int = 1,
    ) -> dict[TableName, str]:
        """Return, by table, the reasons why copies cannot be rolled forward. Tables whose copies can be rolled forward
        are not in the result.

        :param identity: the identity of the server of the copies.
        :param position: the position at which the copies are exact.
        :param to: the position or time to roll forward to; None: now.
        :param keys_only: read only the keys of touched rows (consistency ``again``).
        :param bases: the number of positions from which the run may roll copies forward.
        :raises ExactnessError: no copy can be rolled forward.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def check_since(self, identity: Mapping[str, str], position: Position) -> None:
        """Check three conditions. This is the server of ``identity``, which had ``position``. Its history since then is
        intact. Nothing else has changed outside the log.

        :raises ExactnessError: one of these conditions does not hold.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def segments_between(
        self, start: Position, end: Position, since: Mapping[str, str], identity: Mapping[str, str], slots: int = 1
    ) -> list[LogSegment]:
        """Return the segments with all changes after ``start`` up to ``end``, in log order.

        :param since: the server's identity as it was recorded at ``start``.
        :param identity: the identity in the run's initial point.
        :param slots: how many segments are read at once.
        :raises LogGone: the log no longer reaches back to ``start``.
        """


@runtime_checkable
class TellsReplaced(Protocol):
    """A source that detects whether a table was replaced without an entry in the log."""

    def check_replaced(
        self, identity: Mapping[str, str], tables: Sequence[Table], until: Mapping[str, str], now: Sequence[Table]
    ) -> None:
        """Check that ``tables``, as a run on the server of ``identity`` recorded them, were not replaced since then
        without an entry in the log.

        :param until: the identity of the run that depends on them. Changes that are logged after that run began are
            irrelevant.
        :param now: the tables as that run recorded them just before its position; empty if its position is a past one.

        :raises SchemaChanged: a table was replaced.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class KeepsWindow(Protocol):
    """A source whose server keeps the log that a run needs to roll copies forward only if it is requested to do so."""

    def keep_window(
        self, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
    ) -> InitialPoint:
        """Let the server keep the log between the copies from which ``plans`` roll forward and the run's ``point``,
        until the run is released (`KeepsForRun`). Return ``point`` with an identity that also names this log. If this
        method raises an error, it has discarded the objects that were created for ``point``.

        :raises PreflightError: the log no longer exists, or a table was altered since its copy.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class TellsHistory(Protocol):
    """A source that recognizes whether it still has the history of an earlier copy. For this, the identity of an
    initial position contains a mark: a value that shows to which history the position belongs
    (`core.copies.history.MARK`)."""

    def relations(self, identity: Mapping[str, str], position: Position, traces: Sequence[Trace]) -> list[Finding]:
        """Return the relations between the history of the server of ``identity``, which has all of ``position``, and
        the histories of earlier copies of this server.

        Return `Relation.OTHER` only if it is proved, because copies of the present history then supersede the earlier
        copies.

        :raises SourceReplaced: the connection reaches another server.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class ToldInPart(Protocol):
    """A source whose tables can be copied in part."""

    def tables_of(self, plans: Sequence[TablePlan]) -> list[Table]:
        """Return the planned tables as they are now.

        :raises SchemaChanged: a table no longer exists.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def comparable_texts(self, table: Table) -> dict[str, str]:
        """Return the columns that are published as text and whose text can be compared, with the kind of the text:
        ``plain``, ``label`` or ``uuid``. The text of all other columns is the printed form of another type."""

    def pushed_condition(self, table: Table) -> str:
        """Return the part of the table's condition that the server itself evaluates, in its SQL. Empty: the server
        evaluates no part of it, and sends all rows."""
