"""The part of `Source` that reads the log, whole or in pieces, and reports how much of it there is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.table import Column, Evolution, Table
from airflow_provider_cdc.errors import ConfigurationError, SchemaChanged

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_cdc.sources.api.unrepresentable import OddValue
    from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable


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
