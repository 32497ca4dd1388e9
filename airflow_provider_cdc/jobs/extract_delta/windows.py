"""The windows of a run: the parts of the log that are applied to its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_provider_cdc.core.positions.as_of import reaches
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import LogGone, SchemaChanged
from airflow_provider_cdc.jobs.changes.filter_images import CarriedImages
from airflow_provider_cdc.jobs.log.keyless import UnitsByPosition
from airflow_provider_cdc.jobs.log.log import RunLog, logs_of, tracked_table
from airflow_provider_cdc.jobs.log.read_segment import DONE, SegmentRecord
from airflow_provider_cdc.jobs.reads import ReadFiles, Unit, read_table_files
from airflow_provider_cdc.jobs.restart.altered import may_restart
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.source import Start
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
    ``events``, the log is read change by change. ``since`` has the positions at which keyless tables were read, by
    index: changes up to this position do not count. ``images`` has the earlier columns of tables that were altered
    after a piece was read.
    """

    name: str
    start: Position
    tables: tuple[TrackedTable, ...]
    segments: Callable[[], list[LogSegment]]
    spooled: tuple[SegmentRecord, ...] = ()
    pieces: int = 0
    since: Mapping[int, Position] = field(default_factory=dict)
    units: Mapping[int, UnitsByPosition] = field(default_factory=dict)
    events: tuple[int, ...] = ()
    images: CarriedImages | None = None

    @property
    def forward(self) -> bool:
        """Whether the window ends at the position of the run, and not at the end of the reads."""
        return self.name != BACK

    def earlier(self) -> Window:
        """Return the window as which the log before it is read, to find prepared transactions. If the run has recorded
        pieces, the earlier log is read in the same way: the id of a prepared transaction's changes depends on the way
        in which the changes of a table are read."""
        if not self.spooled:
            return self
        tables = [
            # Only a keyless table needs a bound, and has one.
            tracked_table(one.index, one.table, self.start if one.upper is None else one.upper)
            for one in self.tables
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
    read, left_out = read_table_files(step.run), snapshot.skipped | step.altered
    entries = [entry for entry in step.tables if not entry.base and str(entry.table.name) not in left_out]
    for one in logs_of(step, [entry for entry in entries if entry.basis], refresh=True):
        windows += [_of_pieces(one, read)] if one.pieces else _forward(one, read)
    for one in logs_of(step, [entry for entry in entries if entry.is_read], refresh=True):
        windows.append(_back(one, read, snapshot))
    return windows


def _forward(one: RunLog, read: Mapping[str, ReadFiles]) -> list[Window]:
    """Return the windows of finished reads, from the start of their log up to the position of the run. A table that was
    read at one position has a window since this position."""
    step, manifest = one.step, one.step.manifest
    tables: dict[str, list[TrackedTable]] = {}
    for index, entry in one.entries:
        since = read[str(entry.table.name)].upper or manifest.all_starts[one.id].position
        tables.setdefault(since, []).append(TrackedTable(index, entry.table, manifest.initial, forward=True))
    windows = []
    for number, (since, tracked) in enumerate(sorted(tables.items())):
        start = replace(one.start, position=manifest.position_in(since))
        evolved = [tracked_table.table for tracked_table in tracked if tracked_table.table.eras]
        segments = partial(step.source.segments_up_to, start, manifest.initial, evolved, step.slots)
        windows.append(Window(f"earlier-{one.name}-{number}", start.position, tuple(tracked), segments))
    return windows


def _of_pieces(one: RunLog, read: Mapping[str, ReadFiles]) -> Window:
    """Return the window of finished reads whose log is in recorded pieces up to the position of the run."""
    manifest, links = one.step.manifest, one.before
    names = ", ".join(str(table.name) for table in one.tables)
    log(f"extract_delta: {format_count(len(links), 'piece')} of the log for {names}, read earlier")
    return Window(
        f"earlier-{one.name}",
        one.position,
        tuple(TrackedTable(index, entry.table, manifest.initial, forward=True) for index, entry in one.entries),
        list,
        one.segments_of(links),
        len(links),
        {
            index: manifest.position_in(read[str(entry.table.name)].upper)
            for index, entry in one.entries
            if entry.table.keyless
        },
        images=one.carried_images(links),
    )


def _back(one: RunLog, read: Mapping[str, ReadFiles], snapshot: SnapshotResult) -> Window:
    """Return the window of tables that were read from the position of the run on, up to the end of the reads.

    :raises LogGone: the log between the last piece and the end of the reads is gone, or the server has lost a part of
        the log that the last piece covers.
    """
    step = one.step
    files = {index: read[str(entry.table.name)] for index, entry in one.entries}
    units = {index: _by_position(step.manifest, files[index].units) for index, _ in one.entries if files[index].units}
    tracked = tuple(
        TrackedTable(index, entry.table, _last(units[index]), forward=True, changes=True)
        if index in units
        else TrackedTable(index, entry.table, _upper(step.manifest, files[index]))
        for index, entry in one.entries
    )
    # The last pieces may go beyond the end of the reads. They restore a row that changed only later to the state in
    # which it was read.
    if links := one.pieces:
        if snapshot.incarnation != (last := links[-1]).incarnation:
            check = partial(step.source.check_joined, last.start, last.end, one.position, one.identity)
            retry("extract_delta: check the end of the spooled log", check)
        was = "was" if len(links) == 1 else "were"
        log(f"extract_delta: {format_count(len(links), 'piece')} of the log {was} spooled")
    rest = partial(one.rest, snapshot.log_end, step.slots)
    return Window(BACK, one.position, tracked, rest, one.segments_of(links), len(links), units=units)


def _by_position(manifest: Manifest, units: Sequence[Unit]) -> UnitsByPosition:
    """Group the ranges of a table by their positions."""
    ranges: dict[str, list[ValueRange]] = {}
    for unit in units:
        ranges.setdefault(unit.upper, []).append(unit.within)
    return tuple((manifest.position_in(upper), tuple(own)) for upper, own in ranges.items())


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
        try:
            retry("extract_delta: check the source since the last copy", check)
        except LogGone as error:
            # The run keeps its plan, so it would roll the same copies forward again.
            hint = "trigger a new run: it reads the tables in full"
            raise LogGone(error.message, where=error.where, hint=hint) from error
    for one in logs_of(step, [entry for entry in step.tables if entry.basis]):
        if one.pieces:
            # The run checked the source when it moved, and has recorded the log up to its present position.
            continue
        check = partial(step.source.check_since, one.start.facts, one.position)
        try:
            retry("extract_delta: check the source since the earlier reads", check)
        except LogGone as error:
            name = str(one.tables[0].name)
            if not may_restart(step) or name in step.altered:
                raise
            # One table suffices: when the run moves, it finds that the log of the others is gone, too.
            what = f"the source no longer has the log since it was read ({error.message})"
            raise SchemaChanged(what, where=name, hint=error.hint) from error
    # If touched rows are read again, their log was read beyond the initial position.
    for one in logs_of(step, [entry for entry in step.tables if entry.basis and entry.at_upper], refresh=True):
        one.check()


def rolled_forward(manifest: Manifest, run_id: str) -> tuple[TrackedTable, ...]:
    """Return the tables that are rolled forward from the copies of a run."""
    changes = manifest.options.changes
    return tuple(
        # The images before a schema change become images of the present table, so they are no row changes any more.
        TrackedTable(index, entry.table, manifest.initial, forward=True, changes=changes and entry.feed_gap is None)
        for index, entry in enumerate(manifest.tables)
        if entry.base == run_id
    )
