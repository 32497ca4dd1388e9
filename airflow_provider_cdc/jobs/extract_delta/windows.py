"""The windows of a run: the parts of the log that are applied to its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_provider_cdc.core.positions.as_of import reaches
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import LogGone, SchemaChanged
from airflow_provider_cdc.jobs.changes.filter_images import CarriedImages
from airflow_provider_cdc.jobs.extract_delta.read_segment import DONE, SegmentRecord
from airflow_provider_cdc.jobs.restart.altered import may_restart
from airflow_provider_cdc.jobs.restart.carry import carried_images
from airflow_provider_cdc.jobs.restart.earlier_reads import by_manifest
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.table_files import ReadFiles, read_table_files
from airflow_provider_cdc.jobs.spool.adopt import Adopted, records_of, spooled_part
from airflow_provider_cdc.jobs.spool.kept_pieces import pieces_of, tracked_table
from airflow_provider_cdc.jobs.spool.keyless import UnitsByPosition, by_position
from airflow_provider_cdc.sources.api.log import AT_START, Start
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable

PLAN = "delta/plan.json"
BACK = "segment"
"""The name of the window of tables that were read."""


@dataclass(frozen=True)
class Window:
    """A part of the log that is applied to some tables: from ``start`` up to the position that each table requires.

    ``name`` is the prefix of the names of its files. ``spooled`` has the segments at the beginning of the window that
    were read before, in this number of ``pieces``. ``segments`` returns the other segments. ``units`` has the keyless
    tables whose ranges were read at several positions, by index. Of these tables, and of the tables with the indices
    ``events``, the log is read change by change.

    If the pieces were read under another manifest, ``numbers`` has the index of each table, by its index in the files
    of the pieces. ``since`` has the positions at which keyless tables were read, by their indices in these files:
    changes up to this position do not count. ``images`` has the earlier columns of tables that were altered since. Such
    a window has no ``units``: a table that was read at several positions is read again when the run moves.
    """

    name: str
    start: Position
    tables: tuple[TrackedTable, ...]
    segments: Callable[[], list[LogSegment]]
    spooled: tuple[SegmentRecord, ...] = ()
    pieces: int = 0
    numbers: Mapping[int, int] = field(default_factory=dict)
    since: Mapping[int, Position] = field(default_factory=dict)
    units: Mapping[int, UnitsByPosition] = field(default_factory=dict)
    events: tuple[int, ...] = ()
    images: CarriedImages | None = None

    @property
    def forward(self) -> bool:
        """Whether the window ends at the position of the run, and not at the end of the reads."""
        return self.name != BACK

    @property
    def stored_tables(self) -> tuple[TrackedTable, ...]:
        """The tables, with their indices in the files of the pieces."""
        stored = {number: index for index, number in self.numbers.items()}
        return tuple(replace(one, index=stored.get(one.index, one.index)) for one in self.tables)

    def earlier(self) -> Window:
        """Return the window as which the log before it is read, to find prepared transactions. If the run has recorded
        pieces, they name a transaction's changes by the indices of tables in their files, and by the way in which they
        have the changes of a table. So the earlier log is read in the same way."""
        if not self.spooled:
            return self
        tables = [
            # Only a keyless table needs a bound, and has one.
            tracked_table(one.index, one.table, self.start if one.upper is None else one.upper)
            for one in self.stored_tables
        ]
        events = tuple(one.index for one in tables if one.table.keyless)
        return replace(self, tables=tuple(tables), events=events)

    @property
    def plan_name(self) -> str:
        if self.pieces:
            return f"delta/plan-{self.name}-after-{self.pieces}.json"
        return PLAN if self.name == BACK else f"delta/plan-{self.name}.json"

    def record_name(self, segment: LogSegment) -> str:
        return f"{DONE}/{self.name}-{segment.number:06}.json"


def windows_of(step: Step) -> list[Window]:
    """Return the windows of the run, each with its tables."""
    manifest, source = step.manifest, step.source
    snapshot = step.run.result_of(SnapshotResult)
    check_bases(step)
    windows = []
    for number, (run_id, base) in enumerate(sorted(manifest.bases.items())):
        rolled = rolled_forward(manifest, run_id)
        if tables := tuple(tracked for tracked in rolled if str(tracked.table.name) not in step.altered):
            start, end = manifest.start_of(run_id), manifest.initial
            evolved = [tracked.table for tracked in tables if tracked.table.eras]
            of_copies = Start(start, base.identity, kept_by=manifest.identity)
            segments = partial(source.segments_up_to, of_copies, end, evolved, step.slots)
            windows.append(Window(f"forward-{number}", start, tables, segments))
    read = read_table_files(step.run)
    windows += _windows_of_earlier_reads(step, read)
    live = {
        index: read[str(entry.table.name)]
        for index, entry in enumerate(step.tables)
        if entry.is_read and str(entry.table.name) not in snapshot.skipped | step.altered
    }
    units = {index: by_position(manifest.kind, one.units) for index, one in live.items() if one.units}
    tracked = tuple(
        TrackedTable(index, step.tables[index].table, _last(units[index]), forward=True, changes=True)
        if index in units
        else TrackedTable(index, step.tables[index].table, _upper(manifest, one))
        for index, one in live.items()
    )
    if tracked:
        of_run = Start(manifest.initial, manifest.identity)
        segments = partial(source.segments, of_run, AT_START, snapshot.log_end, slots=step.slots)
        adopted = spooled_part(step, tracked) or Adopted((), segments, 0)
        spooled = (adopted.rest, adopted.records, adopted.pieces)
        windows.append(Window(BACK, manifest.initial, tracked, *spooled, units=units))
    return windows


def _windows_of_earlier_reads(step: Step, read: Mapping[str, ReadFiles]) -> list[Window]:
    """Return the windows of the tables that were read under an earlier manifest. The windows end at the initial
    position."""
    manifest, source = step.manifest, step.source
    tables: dict[tuple[str, str], list[TrackedTable]] = {}
    for index, entry in enumerate(step.tables):
        if entry.read_in and str(entry.table.name) not in step.altered:
            if manifest.earlier_reads[entry.read_in].pieces:
                continue
            start_position = read[str(entry.table.name)].upper or manifest.earlier_reads[entry.read_in].position
            tracked = TrackedTable(index, entry.table, manifest.initial, forward=True)
            tables.setdefault((entry.read_in, start_position), []).append(tracked)
    windows = []
    for number, ((key, start_text), tracked_tables) in enumerate(sorted(tables.items(), key=lambda item: item[0])):
        start, identity = manifest.position_in(start_text), manifest.earlier_reads[key].identity
        evolved = [tracked.table for tracked in tracked_tables if tracked.table.eras]
        segments = partial(source.segments_up_to, Start(start, identity), manifest.initial, evolved, step.slots)
        windows.append(Window(f"earlier-{number}", start, tuple(tracked_tables), segments))
    return windows + _windows_of_pieces(step, read)


def _windows_of_pieces(step: Step, read: Mapping[str, ReadFiles]) -> list[Window]:
    """Return the windows of the tables that were read under an earlier manifest, if the run has recorded the log since
    then (`jobs.spool.kept_pieces`). Nothing of these windows is left to be read."""
    manifest = step.manifest
    windows = []
    for key, reads in sorted(manifest.earlier_reads.items()):
        entries = {
            str(entry.table.name): (index, entry)
            for index, entry in enumerate(step.tables)
            if entry.read_in == key and str(entry.table.name) not in step.altered
        }
        pieces = pieces_of(step, reads)
        if pieces is None or not entries:
            continue
        log(
            f"extract_delta: {format_count(len(pieces.links), 'piece')} of the log for {', '.join(entries)}, "
            "read earlier"
        )
        windows.append(
            Window(
                f"earlier-pieces-{key}",
                manifest.begin_of(reads),
                tuple(
                    TrackedTable(index, entry.table, manifest.initial, forward=True)
                    for index, entry in entries.values()
                ),
                list,
                records_of(step, pieces.links),
                len(pieces.links),
                {pieces.tables[name]: index for name, (index, _) in entries.items()},
                {
                    pieces.tables[name]: manifest.position_in(read[name].upper)
                    for name, (_, entry) in entries.items()
                    if entry.table.keyless
                },
                images=carried_images(step, pieces, entries),
            )
        )
    return windows


def _upper(manifest: Manifest, read: ReadFiles) -> Position | None:
    """Return the exact position at which a table was read; None: the table does not need an exact position."""
    return manifest.position_in(read.upper) if read.upper else None


def _last(units: UnitsByPosition) -> Position:
    """Return the position that contains all others at which a table was read. The positions are of one server, so one
    of them does."""
    return next(upper for upper, _ in units if all(reaches(upper, other) for other, _ in units))


def check_bases(step: Step) -> None:
    """Check that no change was made outside the log since the positions of the base copies, and of earlier reads.

    :raises SchemaChanged: the source has removed the log since earlier reads. The run may read these tables again.
    """
    for run_id, base in step.manifest.bases.items():
        check = partial(step.source.check_since, base.identity, step.manifest.start_of(run_id))
        retry("extract_delta: check the source since the last copy", check)
    for key, reads in step.manifest.earlier_reads.items():
        if reads.pieces:
            # The run checked the source when it moved, and has recorded the log up to its present position.
            continue
        start = step.manifest.begin_of(reads)
        check = partial(step.source.check_since, reads.identity, start)
        try:
            retry("extract_delta: check the source since the earlier reads", check)
        except LogGone as error:
            names = [str(entry.table.name) for entry in step.tables if entry.read_in == key]
            if not may_restart(step) or not names or names[0] in step.altered:
                raise
            # One table suffices: when the run moves, it finds that the log of the others is gone, too.
            what = f"the source no longer has the log since it was read ({error.message})"
            raise SchemaChanged(what, where=names[0], hint=error.hint) from error
    # If touched rows are read again, their log was read beyond the initial position.
    for kept in by_manifest(step, [entry for entry in step.tables if entry.read_in and entry.at_upper]):
        kept.check()


def rolled_forward(manifest: Manifest, run_id: str) -> tuple[TrackedTable, ...]:
    """Return the tables that are rolled forward from the copies of a run."""
    changes = manifest.options.changes
    return tuple(
        # The images before a schema change become images of the present table, so they are no row changes any more.
        TrackedTable(index, entry.table, manifest.initial, forward=True, changes=changes and entry.feed_gap is None)
        for index, entry in enumerate(manifest.tables)
        if entry.base == run_id
    )
