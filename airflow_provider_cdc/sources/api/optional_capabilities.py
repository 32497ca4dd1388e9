"""Protocols for capabilities that only some kinds of source have. Each kind of source implements only the protocols
that it needs."""

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
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.source import Source

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary


@runtime_checkable
class OrdersChunks(Protocol):
    """A source in which some chunks are ranges of a key."""

    def key_order(self, table: Table) -> str | None:
        """Return the key's first column if two conditions are met: chunks are ranges of this column, and its published
        values sort in the same order as in the source. If so, the column's values in one chunk are not greater than the
        values in the next chunk. Return None if this order is not guaranteed."""


@runtime_checkable
class ReadsKeyRanges(Protocol):
    """A source that can read a range of a key whose first column is a whole number."""

    def key_range(self, table: Table, low: int | None, high: int | None) -> list[Chunk]:
        """Return chunks with all rows whose first key column is from ``low`` (included) to ``high`` (excluded), and
        with no other rows. None: unbounded. The result is empty if such ranges of the table cannot be read."""


@runtime_checkable
class SharesReads(Protocol):
    """A source whose sessions can all read one snapshot (consistency ``exported``)."""

    def share_reads(self, lock: LockPolicy) -> AbstractContextManager[Source]:
        """Return a context with a source that reads the chunks of tables with the consistency ``exported``. The
        snapshot stays open as long as the context is open.

        :param lock: how long other sessions may delay the snapshot.
        :raises LockNotGranted: open transactions delayed the snapshot for longer than ``lock`` allows.
        :raises SourceUnavailable: the snapshot could not be opened.
        """


@runtime_checkable
class PreparesBeforeWindow(Protocol):
    """A source whose log has the changes of a prepared transaction at the place where the transaction was prepared, not
    at the place of the commit. The window may contain only one of these two places."""

    def segments_before(self, segment: LogSegment, count: int) -> list[LogSegment]:
        """Return up to ``count`` whole segments directly before ``segment``, in log order. The numbers of these
        segments precede the number of ``segment``. The result is empty if the log does not reach further back.
        """


@runtime_checkable
class LogsStatements(Protocol):
    """A source whose log may contain a statement that changed rows, instead of the changed rows."""

    def check_writes(self, summaries: Sequence[SegmentSummary]) -> None:
        """Check that the statements in a window did not change a copied table. This method need not check statements
        that name a copied table, because the reader has already stopped at such statements.

        :param summaries: the summaries of all segments of the window, in log order.
        :raises ImageNotWhole: a statement may have changed a copied table.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class KeepsForRun(Protocol):
    """A source whose server keeps objects for a run, such as a replication slot. The objects exist from
    `record_initial` until they are released.

    If a run has several tries, each try may have created such objects.
    """

    def release(self, run_id: str) -> None:
        """Remove the objects that the tries of the run created on the server. It is not an error if no object is left.

        :raises SourceUnavailable: the server cannot be reached; the objects stay.
        """

    def discard(self, identity: Mapping[str, str]) -> None:
        """Remove the objects that one call of `record_initial` created on the server, because the run does not use the
        position of this call. It is not an error if no object is left.

        :param identity: the identity that this call of `record_initial` returned.
        :raises SourceUnavailable: the server cannot be reached; the objects stay.
        """


@runtime_checkable
class GoesBack(Protocol):
    """A source whose copies can be exact at a past position, as far back as its log reaches."""

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Check that a copy of these tables can be exact at ``as_of``. Everything on which the copy depends must be
        unchanged since ``as_of``.

        :raises PreflightError: a copy cannot be exact at ``as_of``. The error lists every problem, and the earliest
            time at which a copy can be exact.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        """Record the initial position as `HasPositions.record_initial` does, but at the position that ``as_of`` names.
        The position of a time is final: no later commit can belong to it.

        :raises PreflightError: a copy of these tables cannot be exact at the position that ``as_of`` names.
        :raises SourceUnavailable: the position of the time ``as_of`` does not become final, because of a fault of the
            server.
        """


@runtime_checkable
class KeepsPast(Protocol):
    """A source whose server keeps its log from run to run only on request (by a standing slot)."""

    def keep_past(self, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Make the server keep, from now on, the log that `GoesBack` needs for these tables. If the server already
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
        method on the source that `of_run` returned, and before `KeepsForRun.release`. The objects that the server keeps
        for the run prove that the server's history is the history of the copies.

        :param copies: for each lake, the positions of the tables' latest copies in this lake, by table name.
        :param incarnation: if these positions are after the run's initial position, the incarnation of the server when
            it reached them. Otherwise empty. If the server is set back to a point before these positions, the server's
            incarnation changes (`ChunkReader.settle`).
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


@runtime_checkable
class ChecksServer(Protocol):
    """A source that can be checked before the tables to copy are known."""

    def check_server(self) -> list[Problem]:
        """Return the problems of the server's settings and of the user's privileges that do not depend on the copied
        tables.

        :raises ConfigurationError: the connection cannot work, or the server is too old.
        :raises SourceUnavailable: the server cannot be reached.
        """


@dataclass(frozen=True)
class Runway:
    """How long the source will keep its log from now on. ``seconds`` is None if the time is unknown, or if no setting
    limits the time. In the second case, ``unbounded`` is true. ``why`` is the explanation."""

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
        """Return the approximate size of the log from ``initial`` to the current end of the log, in bytes.

        :param identity: the identity that `record_initial` returned.
        :raises SourceUnavailable: the server cannot be reached.
        """


@dataclass(frozen=True)
class Reach:
    """Whether a server has reached a target.

    If the server has not reached the target, ``lacks`` describes the missing part. ``at`` is an opaque value for the
    place that the server had reached at the time of the call. As long as ``at`` does not change, the server has not
    reached the target.
    """

    reached: bool
    lacks: str = ""
    at: str = ""


@runtime_checkable
class TellsReach(Protocol):
    """A source that reports how far its server has advanced. The server may be a replica or a standby."""

    def has_reached(self, target: AsOf, seen: Reach | None = None) -> Reach:
        """Return whether the server has reached ``target``.

        A server has reached a position if it has everything up to this position. On MySQL, this means that readers see
        all transactions of the position. On a PostgreSQL primary, the log up to the position is on disk. On a
        PostgreSQL standby, readers see the changes up to the position. A server has reached a time if no commit from
        now on can belong to the state at that time.

        :param seen: the previous result, which may save the server some work.
        :raises ConfigurationError: the target is a position of another kind of database.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class ContinuesReads(Protocol):
    """A source whose finished reads can be brought to a later position of the same run by the log."""

    def stays(self, table: Table) -> str:
        """Return the reason why the finished read of a table cannot be brought to a later position. Empty: it can."""

    def check_continued(self, tables: Sequence[Table]) -> None:
        """Check that ``tables`` are unchanged since the initial point of the run, so that the log has all changes of
        their rows up to a position that is fixed before the call. More changes count than in
        `ReadsTables.check_tables`, because the rows at the later position are published. For example, a new
        partition may have rows there.

        :raises SchemaChanged: a table was changed.
        """

    def segments_since(
        self, start: Position, end: Position, identity: Mapping[str, str], slots: int = 1
    ) -> list[LogSegment]:
        """Return the segments with all changes after ``start`` up to ``end``, in log order.

        :param identity: the identity of the initial point under which the reads began.
        :param slots: how many segments are read at once.
        :raises LogGone: the log no longer reaches back to ``start``.
        """


@runtime_checkable
class TellsReplaced(Protocol):
    """A source that detects whether a table was replaced without an entry in the log."""

    def check_replaced(
        self, identity: Mapping[str, str], tables: Sequence[Table], until: Mapping[str, str], now: Sequence[Table]
    ) -> None:
        """Check that no table in ``tables`` was replaced without an entry in the log. An earlier run recorded the
        tables on the server of ``identity``. The check covers the time since this run.

        :param until: the identity that was recorded by the run that depends on the tables. Changes that were logged
            after the beginning of that run are irrelevant.
        :param now: the tables as they were recorded by the run that depends on them, just before its position. Empty:
            the position of that run is in the past (``as_of``).

        :raises SchemaChanged: a table was replaced.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class KeepsWindow(Protocol):
    """A source whose server must be told to keep the log with which a run rolls copies forward."""

    def keep_window(
        self, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
    ) -> InitialPoint:
        """Make the server keep the log between the last copies and the run's ``point``, so that ``plans`` can roll the
        copies forward. The server keeps this log until the run is released (`KeepsForRun`). Return ``point`` with an
        identity that also names this log. Before this method raises an error, it discards the objects that were created
        for ``point``.

        :raises PreflightError: the log no longer exists, or a table was altered after its last copy.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class TellsHistory(Protocol):
    """A source that recognizes whether it still has the history of an earlier copy. For this purpose, the identity at
    an initial position contains a mark. The mark shows to which history the position belongs
    (`core.copies.history.MARK`)."""

    def relations(self, identity: Mapping[str, str], position: Position, traces: Sequence[Trace]) -> list[Finding]:
        """Compare the history of the server of ``identity`` with the histories of earlier copies of this server, and
        return the relations. The server has everything up to ``position``.

        Return `Relation.OTHER` only if it is proved that the histories differ. If they differ, copies of the present
        history supersede the earlier copies.

        :raises SourceReplaced: the connection reaches another server.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class ToldInPart(Protocol):
    """A source whose tables can be copied in part."""

    def tables_of(self, plans: Sequence[TablePlan]) -> list[Table]:
        """Return the planned tables in their current state.

        :raises SchemaChanged: a table no longer exists.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def comparable_texts(self, table: Table) -> dict[str, str]:
        """Return the columns that are published as text and whose text can be compared, each with the kind of its text:
        ``plain``, ``label`` or ``uuid``. In all other columns that are published as text, the text is the printed form
        of a value of another type."""

    def pushed_condition(self, table: Table) -> str:
        """Return the part of the table's condition that the server itself evaluates, in the server's SQL. Empty: the
        server does not evaluate any part of the condition, and sends all rows."""


@runtime_checkable
class IdentifiesColumns(Protocol):
    """A source in which a column has an identity other than its name."""

    def column_identities(self, table: Table) -> dict[str, str]:
        """Return the identity of each column, by the column's name. A renamed column keeps its identity. No other
        column ever gets it, in this table or in another table."""
