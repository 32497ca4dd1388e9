"""What only some kinds of source can do: protocols that a kind implements only where it has something to do, and the
functions that ask whether it does.
"""

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
    """A source some of whose chunks are ranges of a key."""

    def key_order(self, table: Table) -> str | None:
        """The key's first column if chunks are ranges of it and its published values sort as the source sorts them:
        then the values in one chunk are below those in the next. None if nothing of the kind can be said."""


@runtime_checkable
class SharesReads(Protocol):
    """A source whose sessions can all read one view of the data (consistency ``exported``)."""

    def share_reads(self, lock: LockPolicy) -> AbstractContextManager[Source]:
        """The source to read the chunks of such tables with. The caller holds the view open as long as the context is.

        :param lock: how long others may hold it up.
        :raises LockNotGranted: transactions held it up for longer.
        :raises SourceUnavailable: the view could not be opened.
        """


@runtime_checkable
class PreparesBeforeWindow(Protocol):
    """A source whose log has the changes of a prepared transaction where it was prepared, not where it was committed:
    the window may have the one without the other."""

    def segments_before(self, segment: LogSegment, count: int) -> list[LogSegment]:
        """Up to ``count`` whole segments right before ``segment``, in log order. Their numbers lead up to its number.
        None: the log goes no further back.
        """


@runtime_checkable
class LogsStatements(Protocol):
    """A source whose log may have a change as the statement that made it, and not as the rows that it changed."""

    def check_writes(self, summaries: Sequence[SegmentSummary]) -> None:
        """Make sure that the statements in a window, of which ``summaries`` are those of all segments in log order,
        changed no copied table. The reader has stopped for those that name one.

        :raises ImageNotWhole: one may have.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class KeepsForRun(Protocol):
    """A source whose server keeps something for a run (a replication slot), from `record_initial` until it is released.

    Several tries of a run may each have had it keep something.
    """

    def release(self, run_id: str) -> None:
        """Remove all that any try of the run had the server keep. No error if nothing is left of it.

        :raises SourceUnavailable: the server cannot be reached; what it keeps stays.
        """

    def discard(self, identity: Mapping[str, str]) -> None:
        """Remove what one `record_initial`, which gave ``identity``, had the server keep, for its position does not
        count. No error if nothing is left of it.

        :raises SourceUnavailable: the server cannot be reached; what it keeps stays.
        """


@runtime_checkable
class GoesBack(Protocol):
    """A source of which a copy can be exact at a position in the past, as far back as its log reaches."""

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Make sure that a copy of these tables can be exact at ``as_of``: that nothing of what it rests on changed
        since then.

        :raises PreflightError: with every problem found, and the earliest time that is possible.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        """As `HasPositions.record_initial`, at the position that ``as_of`` means. The first commit after a time is
        waited for, up to ``options.as_of_wait_seconds``.

        :raises PreflightError: a copy of these tables cannot be exact there.
        :raises SourceUnavailable: nothing was committed after the time yet.
        """


@runtime_checkable
class KeepsPast(Protocol):
    """A source whose server keeps its log from run to run only if it is told to (by a standing slot)."""

    def keep_past(self, plans: Sequence[TablePlan], options: StepOptions) -> None:
        """Have the server keep, from now on, the log that `GoesBack` needs for these tables; where it does so already,
        nothing changes.

        :raises LockNotGranted: transactions held it up.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def note_position(self, point: InitialPoint, options: StepOptions) -> None:
        """Record on the server that a run of ``point`` began. So its copies can be rolled forward even if `note_copies`
        fails, unless they are exact at a later position.

        :raises TransientError: the server cannot be reached, or others keep changing the record.
        """

    def note_copies(self, options: StepOptions, copies: Mapping[str, Mapping[str, Position]], incarnation: str) -> None:
        """Tell the server of copies that a run has published: only those of which it knows are rolled forward. Called
        on the source `of_run`, before `KeepsForRun.release`: what is kept for the run says that the server's history is
        the one that the copies are of.

        :param copies: by the lake, the positions of the copies that are the latest ones there now, by the table's name.
        :param incarnation: of the server when it reached them, if that was after the run's initial position: whatever
            took it back to before them changed that (`ChunkReader.settle`). Else empty.
        :raises ExactnessError: another server answers, one whose disk was put back, or nothing is kept any more.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def give_up_past(self, options: StepOptions) -> None:
        """Have the server give up what is older than ``options.standing_slot_hours``, but not the log since the last
        copies that are to be rolled forward: for some days, of each table and lake that it was told of
        (`note_copies`).

        :raises SourceUnavailable: the server cannot be reached; it keeps what it kept.
        """


@runtime_checkable
class ChecksServer(Protocol):
    """A source that can be checked before it is known what is to be copied."""

    def check_server(self) -> list[Problem]:
        """What is wrong with the server's settings and with what the user may do, whichever tables are copied.

        :raises ConfigurationError: the connection cannot work, or the server is too old.
        :raises SourceUnavailable: the server cannot be reached.
        """


@dataclass(frozen=True)
class Runway:
    """How long the source will have its log from now on: ``seconds``, or None where no setting bounds the time
    (``unbounded``) or it is not known; and ``why``, in words."""

    seconds: float | None
    why: str
    unbounded: bool = False


@runtime_checkable
class TellsRunway(Protocol):
    """A source that says how long a run may take before the log that it needs is thrown away."""

    def runway(self) -> Runway:
        """How long the server will have its log from now on, as far as its settings tell.

        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class TellsBacklog(Protocol):
    """A source that says how much log has been written since a position, for those who watch a run."""

    def backlog(self, initial: Position, identity: Mapping[str, str]) -> int:
        """The bytes of log from ``initial`` to its present end, about.

        :param identity: what `record_initial` gave.
        :raises SourceUnavailable: the server cannot be reached.
        """


@dataclass(frozen=True)
class Reach:
    """Whether a server has reached a target, in words what it lacks if not, and where it was then.

    ``at`` is opaque: a server that is still there still lacks it.
    """

    reached: bool
    lacks: str = ""
    at: str = ""


@runtime_checkable
class TellsReach(Protocol):
    """A source that says how far its server has come, be it one that only follows another: a replica, a standby."""

    def has_reached(self, target: AsOf, seen: Reach | None = None) -> Reach:
        """Whether the server has come to ``target``.

        It has come to a position if it has all of it: MySQL shows these transactions to readers, PostgreSQL has that
        part of its log on disk, and a standby shows it to readers. It has come to a time if no commit that begins from
        now on belongs to that time.

        :param seen: the answer before, which may spare the server some work.
        :raises ConfigurationError: the target is a position of another kind of database.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class RollsForward(Protocol):
    """A source whose log tells what every changed row became: a published copy can be rolled forward by it."""

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
        """Why copies of ``tables``, exact at ``position`` of the server of ``identity``, cannot be rolled forward to
        ``to`` (None: to now); tables that can be are not in it.

        :param keys_only: of what was touched only the keys are to be read (consistency ``again``).
        :param bases: how many positions the run may roll copies forward from.
        :raises ExactnessError: none can be.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def check_since(self, identity: Mapping[str, str], position: Position) -> None:
        """Make sure that this is the server of ``identity``, which had ``position``, with its history since then
        intact, and unchanged whatever the log does not show.

        :raises ExactnessError: it is not.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def segments_between(
        self, start: Position, end: Position, since: Mapping[str, str], identity: Mapping[str, str], slots: int = 1
    ) -> list[LogSegment]:
        """The segments that hold every change after ``start`` up to ``end``, in log order.

        :param since: the identity of the server as it was at ``start``.
        :param identity: that of the run.
        :param slots: how many segments are read at once.
        :raises LogGone: the log no longer reaches back to ``start``.
        """


@runtime_checkable
class TellsReplaced(Protocol):
    """A source that tells whether a table was replaced although its log does not say so."""

    def check_replaced(
        self, identity: Mapping[str, str], tables: Sequence[Table], until: Mapping[str, str], now: Sequence[Table]
    ) -> None:
        """Make sure that ``tables``, as a run on the server of ``identity`` recorded them, were not replaced since then
        but by what the log says.

        :param until: the identity of the run that rests on them: what is logged after it begins does not matter.
        :param now: the tables as that run recorded them just before its position; none if that is a past one.

        :raises SchemaChanged: one was.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class KeepsWindow(Protocol):
    """A source whose server keeps the log since the copies that a run rolls forward only if it is told to."""

    def keep_window(
        self, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
    ) -> InitialPoint:
        """Have the server keep, until the run is released (`KeepsForRun`), the log between the copies that ``plans``
        are rolled forward from and the run's ``point``; return the point with the identity that names it. If it raises,
        it has discarded what was made for ``point``.

        :raises PreflightError: the log is not there any more, or a table was altered since its copy.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class TellsHistory(Protocol):
    """A source that recognizes whether it still has the history of an earlier copy. Its servers leave a mark in the
    identity of an initial position (`core.history.MARK`)."""

    def relations(self, identity: Mapping[str, str], position: Position, traces: Sequence[Trace]) -> list[Finding]:
        """How the history of the server of ``identity``, which has all of ``position``, is related to those of earlier
        copies of this server.

        `Relation.OTHER` has to be proved: these copies then give way to those of the present history.

        :raises SourceReplaced: another server answers.
        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class ToldInPart(Protocol):
    """A source of whose tables a part can be copied."""

    def tables_of(self, plans: Sequence[TablePlan]) -> list[Table]:
        """The tables that are planned, as they are now.

        :raises SchemaChanged: one is gone.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def comparable_texts(self, table: Table) -> dict[str, str]:
        """Of the columns that are published as text, those whose text can be compared, and what it is: ``plain``, a
        ``label``, or a ``uuid``. All others are the print of some other type."""

    def pushed_condition(self, table: Table) -> str:
        """What of the condition that a table is copied by the server itself looks at, in its own SQL; empty: nothing,
        so that it sends all rows."""
