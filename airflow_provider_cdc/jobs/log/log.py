"""The log since a start of the run (`core.run.manifest.RunStart`): the pieces that are recorded, and the rest.

Each start has its own position, and on PostgreSQL its own slot and publication. The log of a table is that of the start
from which the table is read. So the checks of a table need the source as of this start, too.

A piece ends where the log ended at that moment, or at the position to which the run moves. So no piece has changes from
both sides of the run's position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.ledger import SPOOL, Link, reaching
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, LogGone, ValueNotRepresentable
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import CarriedImages
from airflow_provider_cdc.jobs.log.read_segment import ReadSegment, SegmentRecord
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.verify_files import Checked, require_whole
from airflow_provider_cdc.sources.api.source import AT_START, Source, Start
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable, UpperBound

NAME = "spool"
EARLIER_BYTES = 4 * 2**30
"""The most log before the window that is searched for prepared transactions."""


@dataclass(frozen=True)
class Piece:
    """The files of a piece. ``segments`` are in the order of the log. The first piece also has the earlier segments in
    which transactions were prepared that had not ended when the piece was read."""

    segments: tuple[SegmentRecord, ...]


def tracked_table(index: int, table: Table, upper: Position) -> TrackedTable:
    """Return the way in which a piece has the changes of a table.

    A piece has both images of each changed row of a keyed table: the row before its first change in the piece, and the
    row after its last change. So the piece can be applied in both directions. Changes of a keyless table count only up
    to the position at which the table is read, which is not known yet. So a piece has each single change of it.

    :param upper: a bound on all transactions in the piece.
    """
    if table.keyless:
        return TrackedTable(index, table, upper, forward=True, changes=True)
    return TrackedTable(index, table, forward=True)


@dataclass(frozen=True)
class RunLog:
    """The log since the start ``id`` of the run. ``pieces`` are the recorded ones, and ``entries`` are tables that are
    read from this start, with their indices. ``pieces`` are empty for tables that are carried over a schema change, if
    the source cannot carry pieces."""

    step: Step
    id: str
    pieces: tuple[Link, ...]
    entries: tuple[tuple[int, RunTable], ...]

    @property
    def position(self) -> Position:
        return self.step.manifest.position_of(self.id)

    @property
    def start(self) -> Start:
        """The start, with the facts that the source recorded there."""
        return Start(self.position, self.step.manifest.all_starts[self.id].facts)

    @property
    def identity(self) -> Facts:
        """The facts with which the source must be checked: those of the start, with the end of the recorded pieces."""
        facts = self.start.facts
        return reaching(facts, self.pieces[-1]) if self.pieces else facts

    @property
    def tables(self) -> list[Table]:
        return [entry.table for _, entry in self.entries]

    @property
    def end(self) -> LogEnd:
        """The end of the last piece."""
        return self.pieces[-1].end if self.pieces else AT_START

    @property
    def name(self) -> str:
        """A name that no other log of the step has."""
        tables = (entry.basis.table for _, entry in self.entries if entry.basis is not None)
        return f"{self.id}-altered" if not self.pieces and any(tables) else self.id

    @property
    def before(self) -> tuple[Link, ...]:
        """The pieces up to the position of the run."""
        return self.pieces[: self.step.run.state.before.get(self.id, 0)]

    @cached_property
    def source(self) -> Source:
        """The source as of the start."""
        if self.id == self.step.manifest.start:
            return self.step.source
        source = self.fresh_source()
        # The facts about the tables were renewed when the run moved.
        return source if self.pieces else source.with_facts_of(self.step.manifest.identity)

    def fresh_source(self) -> Source:
        """Return the source as of the start, which knows all pieces. That of the step knows those that were recorded
        before the step began."""
        return self.step.source.of_run(self.identity, self.position)

    def check(self) -> None:
        """Check that the log has been complete since the start.

        :raises LogGone: the source no longer has the log.
        :raises ExactnessError: the source or its settings were changed, so the log may lack changes.
        """
        retry("check the source since the start", partial(self.source.check_identity, self.identity, self.position))

    def refreshed(self) -> RunLog:
        """Return the log with all pieces that are recorded by now."""
        return RunLog(self.step, self.id, self.step.run.pieces(self.id), self.entries)

    def rest(self, until: LogEnd, slots: int) -> list[LogSegment]:
        """Return the segments after the last piece, up to the place ``until``."""
        if not self.pieces:
            return self.step.source.segments(self.start, AT_START, until, slots=slots)
        if not self.step.source.is_before(self.end, until):
            return []
        number = self.pieces[-1].next_segment
        return self.step.source.segments(self.start, self.end, until, number=number, slots=slots)

    def segments_to(self, source: Source, bound: UpperBound) -> list[LogSegment]:
        """Return the segments of the next piece: the log from the end of the last piece up to a bound.

        :param source: the source as of the start.
        :raises LogGone: the log after the last piece is gone, or the server has lost a part of the log.
        """
        last = self.pieces[-1] if self.pieces else None
        if last is not None and bound.incarnation != last.incarnation:
            source.check_joined(last.start, last.end, self.position, self.identity)
        number = last.next_segment if last is not None else 0
        return source.segments(Start(self.position, self.identity), self.end, bound.log_end, number=number)

    def read_on(
        self,
        source: Source,
        bound: UpperBound,
        segments: Sequence[LogSegment],
        manifest: int,
        prepared: set[str] | None = None,
    ) -> tuple[Link, int]:
        """Read the next piece. Return its link, which is not recorded yet, and the number of row images.

        :param source: the source as of the start.
        :param segments: those of the piece (`segments_to`).
        :param manifest: the number of the manifest with the tables of this log.
        :param prepared: the transactions that were prepared before the log was bounded. None: unknown.
        :raises SchemaChanged: a table was altered.
        """
        step, last = self.step, self.pieces[-1] if self.pieces else None
        if last is None:
            began = source.incarnation_at(self.start.facts)
            restarts = int(bool(began) and began != bound.incarnation)
        else:
            restarts = last.restarts + (bound.incarnation != last.incarnation)
        tracked = tuple(tracked_table(index, entry.table, bound.upper) for index, entry in self.entries)
        known = source.note_tables(bound.log_end, self.tables)
        keyless = tuple(one.index for one in tracked if one.table.keyless)
        # A piece leaves out no table. It has more images than `extract_delta` decodes, so a value that no Arrow type
        # can hold ends the spool, and `extract_delta` decides whether this value matters.
        work = ReadSegment(step.staging, NAME, source, NAME, self.position, tracked, events=keyless)
        read = [work.read(segment) for segment in segments]
        earlier = _prepared_earlier(source, work, read, prepared) if last is None else []
        link = Link(
            number=len(self.pieces) + 1,
            token=step.token,
            start=self.end,
            end=bound.log_end,
            upper=str(bound.upper),
            incarnation=bound.incarnation,
            restarts=restarts,
            next_segment=max(segment.number for segment in segments) + 1,
            record=records.write_named(step.folder, f"{SPOOL}/piece", Piece((*earlier, *read))),
            known=known,
            manifest=manifest,
        )
        return link, sum(one.summary.row_images for one in read)

    def up_to(self, end: Position, source: Source, manifest: int) -> Link | None:
        """Read the last piece up to the position ``end``, to which the run moves. None: the last piece ends there.

        :param source: the source as of the start. It contains all transactions before the end of the last piece.
        :raises LogGone, SchemaChanged: as in `read_on`.
        """
        place = retry("find the later position in the log", partial(source.place_of, end))
        if not source.is_before(self.end, place):
            return None

        def read() -> Link:
            bound = UpperBound(end, source.place_of(end), self.step.source.bound_reads().incarnation)
            link, images = self.read_on(source, bound, self.segments_to(source, bound), manifest)
            log(f"spool: the log up to the later position: {format_count(images, 'row image')}")
            return link

        try:
            return retry("read the log up to the later position", read)
        except ValueNotRepresentable as error:
            # Whether the value matters is known only when all changes are composed.
            raise LogGone(f"a piece of the log cannot hold a value: {error.message}", where=error.where) from error

    def segments_of(self, links: Sequence[Link]) -> tuple[SegmentRecord, ...]:
        """Return the records of all segments of some pieces.

        :raises FileDamaged: a file of a piece is damaged. The source may no longer have its log.
        """
        pieces = [records.read_named(Piece, self.step.folder, link.record) for link in links]
        found = tuple(record for piece in pieces for record in piece.segments)
        files = [file for record in found for file in (*record.all_files, *record.changes)]
        require_whole(self.step, [Checked(file, "the spooled log") for file in files])
        return found

    def carried_images(self, links: Sequence[Link]) -> CarriedImages | None:
        """Return the earlier columns of tables that were altered since the pieces were read. None: there are none."""
        state, present = self.step.run.state, dict[int, Table]()
        columns = dict[int, dict[int, tuple[Column, ...]]]()
        for link in links:
            tables = state.manifest_of(link.manifest).tables
            then = {
                index: tables[index].table.columns
                for index, entry in self.entries
                if (tables[index].table.columns, tables[index].table.eras) != (entry.table.columns, entry.table.eras)
            }
            if then:
                present |= {index: entry.table for index, entry in self.entries if index in then}
                for record in records.read_named(Piece, self.step.folder, link.record).segments:
                    columns[record.segment] = then
        return CarriedImages(self.step.source, present, columns) if columns else None


def _prepared_earlier(
    source: Source, work: ReadSegment, read: list[SegmentRecord], prepared: set[str] | None
) -> list[SegmentRecord]:
    """Read the log before the first piece in which transactions were prepared that had not ended. Later, the server may
    have removed it.

    :param prepared: the transactions that were prepared before the piece was bounded. None: unknown.
    """
    if prepared is None:
        log("spool: this user may not run XA RECOVER, so earlier log is searched only if it is needed later")
    _, unmatched = net_change_files.match_prepared([one.summary for one in read])
    wanted = (prepared or set()) | {*unmatched}
    wanted -= {xid for one in read for xid in one.summary.prepared}
    earlier: list[SegmentRecord] = []
    size = 0
    while wanted and size < EARLIER_BYTES:
        first: LogSegment = (earlier or read)[0].summary.segment
        if not (segments := source.segments_before(first, 1)):
            break
        earlier = [work.read(segment) for segment in segments] + earlier
        size += sum(segment.bytes for segment in segments)
        wanted -= {xid for one in earlier for xid in one.summary.prepared}
    return earlier


def logs_of(step: Step, entries: Iterable[RunTable], *, refresh: bool = False) -> Iterator[RunLog]:
    """Yield the log of each start from which ``entries`` are read. Tables that are rolled forward from a copy belong to
    the start that recorded them last.

    :param refresh: with all pieces that are recorded by now, and not only those in the state of the step.
    """
    indices = {entry.table.name: index for index, entry in enumerate(step.tables)}
    groups = dict[tuple[str, bool], list[tuple[int, RunTable]]]()
    for entry in entries:
        in_pieces = entry.basis is None or entry.basis.table is None or step.source.carries_pieces
        groups.setdefault((entry.start, in_pieces), []).append((indices[entry.table.name], entry))
    for (id, in_pieces), group in groups.items():
        pieces = step.run.pieces(id) if refresh else step.run.state.pieces.get(id, ())
        yield RunLog(step, id, pieces if in_pieces else (), tuple(group))


def tidy(step: Step) -> None:
    """Let the source remove what no table of the run needs after a move. Every attempt does this when it begins,
    because the one that moved the run may have been killed.

    On PostgreSQL, each start has its own slot and publication. They are dropped if no table needs the log since the
    start. Otherwise the slot is advanced to the end of the pieces up to the present position.
    """
    manifest, state = step.manifest, step.run.state
    if not manifest.restarts:
        return
    # If this fails, the source keeps more log than the run needs, and the end of the run drops what is left.
    for id, start in manifest.starts.items():
        if pieces := state.pieces.get(id, ())[: state.before.get(id, 0)]:
            with suppress(CdcError):
                step.source.acknowledge(start.facts, pieces[-1].end)
    used = [start.facts for start in manifest.all_starts.values()]
    for earlier in state.earlier:
        if earlier.identity not in used:
            with suppress(CdcError):
                step.source.discard(earlier.identity)
