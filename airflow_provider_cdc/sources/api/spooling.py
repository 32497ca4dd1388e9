"""The capability of a source to let a run spool its log: to read it piece by piece, while the tables are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.api.window import LogSegment


class Waiting(NamedTuple):
    """The log after a place. ``bytes`` is its approximate size. ``again`` is the size of the older log that the server
    must decode again before it returns the first change after the place. ``obstacle`` is the reason why the log should
    not be read now, or empty."""

    bytes: int
    again: int = 0
    obstacle: str = ""


@runtime_checkable
class SpoolsLog(Protocol):
    """A source whose log can be read in pieces. The first piece is read with `ReadsLog.log_segments`.

    A place in the log is ``UpperBound.log_end``. An empty place is the beginning of the run's window.
    """

    def waiting(self, initial: Position, identity: Mapping[str, str], place: LogEnd) -> Waiting:
        """Return how much log there is after ``place``.

        :raises SourceUnavailable: the server cannot be reached.
        """

    def segments_from(
        self, start: LogEnd, end: LogEnd, identity: Mapping[str, str], number: int, slots: int = 1
    ) -> list[LogSegment]:
        """Return the segments with all changes from the place ``start`` to the place ``end``.

        :param number: the number of the first segment.
        :param slots: how many segments are read at once.
        :raises LogGone: the log no longer reaches back to ``start``.
        """

    def check_joined(self, start: LogEnd, end: LogEnd, initial: Position, identity: Mapping[str, str]) -> None:
        """Check that the log still has the stretch from ``start`` to ``end``, which a piece covers. Call this if the
        incarnation of the server has changed since the piece was read.

        :raises LogGone: the server has lost a part of this stretch.
        """

    def incarnation_at(self, identity: Mapping[str, str]) -> str:
        """Return the incarnation of the server when the run began, if the number of its restarts matters. Otherwise
        empty."""

    def place_of(self, position: Position) -> LogEnd:
        """Return the place in the log before which all transactions of ``position`` are, and no others.

        :raises LogGone: the log no longer reaches back to ``position``.
        """

    def is_before(self, one: LogEnd, other: LogEnd) -> bool:
        """Return whether the place ``one`` is before the place ``other``."""

    def is_within(self, position: str, upper: Position) -> bool:
        """Return whether the transaction with this ``position`` (``CHANGE_SCHEMA.position``) is in the position
        ``upper``."""

    def acknowledge(self, identity: Mapping[str, str], end: LogEnd) -> None:
        """Allow the server to remove the log before ``end``. Nothing happens if this was allowed before, or if another
        session uses the slot at the moment.

        :raises SourceUnavailable: the server cannot be reached.
        """


@runtime_checkable
class TellsPrepared(Protocol):
    """A source that reports the transactions that are prepared now."""

    def prepared_now(self) -> set[str] | None:
        """Return the ids of the prepared transactions, as in ``SegmentSummary.prepared``. None: this user may not see
        them."""


@runtime_checkable
class NotesTables(Protocol):
    """A source whose checks of tables search the log from the beginning of the run on."""

    def note_tables(self, end: LogEnd, tables: Sequence[Table]) -> str:
        """Check ``tables`` as `ReadsTables.check_tables` does. From then on, this source searches the log only from the
        place ``end`` on. The place was noted before this call.

        :returns: what later sessions must know, as text (`Link.known`).
        :raises SchemaChanged: a table was replaced.
        """
