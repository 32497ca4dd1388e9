"""Adopts the spooled pieces for the window of the tables that were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.spool_chain import Link
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.jobs.changes.net_change_files import Decisions
from airflow_provider_cdc.jobs.extract_delta.read_segment import SegmentRecord
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.runtime.verify_files import Checked, require_whole
from airflow_provider_cdc.jobs.spool.kept_pieces import Piece
from airflow_provider_cdc.jobs.spool.keyless import CountChanges, UnitsByPosition
from airflow_provider_cdc.sources.api.log import Start
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable

NO_POSITIONS: Mapping[int, Position] = MappingProxyType({})


@dataclass(frozen=True)
class Adopted:
    """The spooled part of a window. ``records`` are its segments. ``rest`` returns the segments of the rest, which are
    still to be read. ``pieces`` is the number of pieces."""

    records: tuple[SegmentRecord, ...]
    rest: Callable[[], list[LogSegment]]
    pieces: int


def spooled_part(step: Step, tracked: Sequence[TrackedTable]) -> Adopted | None:
    """Return the spooled part of the window of tables that were read. None: nothing was spooled.

    :param tracked: the tables of the window.
    :raises LogGone: the log between the last piece and the end of the reads is gone, or the server has lost a part of
        the log that the last piece covers.
    :raises FileDamaged: a file of a piece is damaged. The source may no longer have its log.
    """
    snapshot, source = step.run.result_of(SnapshotResult), step.source
    links: Sequence[Link] = step.run.pieces()
    if not links:
        return None
    inside = any(one.forward and not one.table.keyless for one in tracked)
    links = _used(source, links, snapshot.log_end, inside=inside)
    if not links:
        return None
    last, identity, initial = links[-1], step.run.expected_identity(), step.manifest.initial
    if snapshot.incarnation != last.incarnation:
        check = partial(source.check_joined, last.start, last.end, initial, identity)
        retry("extract_delta: check the end of the spooled log", check)
    spooled = records_of(step, links)
    log(f"extract_delta: {format_count(len(links), 'piece')} of the log {'was' if len(links) == 1 else 'were'} spooled")
    rest = partial(_rest, source, Start(initial, identity), last, snapshot.log_end, step.slots)
    return Adopted(spooled, rest, len(links))


def records_of(step: Step, links: Sequence[Link]) -> tuple[SegmentRecord, ...]:
    """Return the records of all segments of the pieces ``links``.

    :raises FileDamaged: a file of a piece is damaged. The source may no longer have its log.
    """
    pieces = [records.read_named(Piece, step.folder, link.record) for link in links]
    spooled = tuple(record for piece in pieces for record in piece.segments)
    files = [file for record in spooled for file in (*record.all_files, *record.changes)]
    require_whole(step, [Checked(file, "the spooled log") for file in files])
    return spooled


def _used(source: Source, links: Sequence[Link], end: LogEnd, *, inside: bool) -> list[Link]:
    """Return the pieces to use: those up to the end of the reads.

    :param inside: use only whole pieces before the end of the reads, because rows are rolled forward to it. Otherwise,
        a piece may go beyond it: it restores a row that changed only later to the state in which it was read.
    """
    used: list[Link] = []
    for link in links:
        beyond = source.is_before(end, link.end)
        if not (beyond and inside):
            used.append(link)
        if beyond:
            break
    return used


def _rest(source: Source, start: Start, last: Link, end: LogEnd, slots: int) -> list[LogSegment]:
    if not source.is_before(last.end, end):
        return []
    return source.segments(start, last.end, end, number=last.next_segment, slots=slots)


def with_counts(
    step: Step,
    tracked: Sequence[TrackedTable],
    read: Sequence[SegmentRecord],
    decisions: Decisions,
    since: Mapping[int, Position] = NO_POSITIONS,
    *,
    forward: bool,
    units: Mapping[int, UnitsByPosition] = MappingProxyType({}),
) -> list[SegmentRecord]:
    """Return the records of a window, with the net changes of keyless tables in the segments that have the single
    changes of these tables: the spooled segments, and all segments for the tables in ``units``. Now it is known which
    of these changes count.

    :param tracked: the tables of the window, with their indices in the files of the pieces.
    :param since: the positions up to which changes do not count, by the table's index.
    :param forward: whether the window ends at the position of the run.
    :param units: the tables whose ranges were read at several positions, by the table's index.
    """
    keyless = tuple(one for one in tracked if one.table.keyless)
    spooled = [record for record in read if record.changes]
    if not keyless or not spooled:
        return list(read)
    orders = {commit.order: commit.position for record in read for commit in record.summary.commits.values()}
    skips, alone = step.manifest.options.skips, len(tracked) == len(step.tables)
    alone = alone and len(tracked) == 1
    work = CountChanges(step.staging, step.source, keyless, decisions, orders, since, forward, skips, alone, units)
    counted_records = {one.segment: one for one in run_tasks(step.spark, "count single changes", spooled, work)}
    return [counted_records.get(record.segment, record) for record in read]
