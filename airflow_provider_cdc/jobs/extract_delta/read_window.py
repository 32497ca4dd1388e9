"""Reads the log of a window by segments, and composes the net changes of the segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from airflow_provider_cdc.core.copies.removal import note_damage
from airflow_provider_cdc.core.run.results import EXTRACT_DELTA
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, DecodeError, ExactnessError
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.extract_delta.windows import BACK, Window, check_bases
from airflow_provider_cdc.jobs.log.keyless import CountChanges
from airflow_provider_cdc.jobs.log.read_segment import (
    ComposeBuckets,
    LastOfBuckets,
    ReadSegment,
    SegmentRecord,
)
from airflow_provider_cdc.jobs.runtime.controller import paused_seconds
from airflow_provider_cdc.jobs.runtime.progress import (
    SEGMENTS,
    PartPiece,
    PieceWatch,
    Progress,
    ProgressFile,
    log,
    piece_of_segment,
)
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.source_watch import SourceWatch
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.runtime.verify_files import Checked, require_whole, without_damaged
from airflow_provider_cdc.sources.api.window import BUCKETS, LogSegment

COMPOSE_BYTES = 256 * 2**20
"""The largest input of one composing task, in bytes of the files that it reads."""


HELD_BYTES = 2**30
"""The largest input of one composing task, in bytes of memory. Similar documents take many times more space in memory
than in files."""


SMALL_BYTES = 16 * 2**20
"""Bytes per task. A smaller task would cost more than it saves."""


def compose_touched(step: Step, keys: tuple[StagedFile, ...]) -> net_change_files.NetChangeFiles:
    """Compose the touched keys into one net change. The snapshot step has already read the log for these ``keys``."""
    check_bases(step)
    require_whole(step, [Checked(file, "the keys that were touched") for file in keys])
    composed: list[net_change_files.NetChangeFiles] = []
    if keys:
        work = LastOfBuckets(step.staging, keys)
        size = sum(file.bytes for file in keys)
        composed = run_tasks(step.spark, "compose the touched keys", _bucket_ranges(step, keys), work, size=size)
    files = tuple(file for composed_piece in composed for file in composed_piece.files)
    return net_change_files.NetChangeFiles(
        files, net_change_files.add_counts(composed_piece.counts for composed_piece in composed)
    )


@contextmanager
def noting_damage(step: Step, window: Window) -> Iterator[None]:
    """If the log cannot be decoded, write a damage note, so that the next run reads the window's tables in full.
    Otherwise each later run would stop at the same place until that part of the log is removed."""
    try:
        yield
    except DecodeError as error:
        for tracked in window.tables:
            if base := step.tables[tracked.index].base:
                what, where = f"the log after it: {error.message}", error.where
                # A failure to write the note must not mask the original error.
                with suppress(CdcError, OSError):
                    note_damage(Storage(step.manifest.scratch).folder(base), tracked.table.name, what, where)
        raise


def read_window(step: Step, window: Window) -> tuple[list[SegmentRecord], net_change_files.Decisions]:
    """Read a window. Return the records of its segments, and the commits of the transactions that a segment prepared.

    :raises ExactnessError: a transaction commits in the window, but the log does not have the segment that prepared it.
    """
    source = step.source
    read = [*window.spooled, *_read(step, window, window.plan_name, window.segments)]
    decisions, unmatched_commits = _decide(window, read)
    while unmatched_commits:
        first = read[0].summary.segment
        name = f"delta/before{'' if window.name == BACK else f'-{window.name}'}-{-first.number}.json"
        earlier = _read(step, window.earlier(), name, partial(source.segments_before, first, step.slots))
        if not earlier:
            raise _prepared_nowhere(unmatched_commits)
        read = earlier + read
        decisions, unmatched_commits = _decide(window, read)
    if any(record.summary.writes for record in read):
        check = partial(source.check_writes, [record.summary for record in read])
        retry("extract_delta: check what was logged as statements", check)
    if window.spooled or window.units:
        read = _with_counts(step, window, read, decisions)
    return read, decisions


def _with_counts(
    step: Step, window: Window, read: Sequence[SegmentRecord], decisions: net_change_files.Decisions
) -> list[SegmentRecord]:
    """Return the records of a window, with the net changes of keyless tables in the segments that have the single
    changes of these tables: the spooled segments, and all segments for the tables with units. Now it is known which
    of these changes count."""
    keyless = tuple(one for one in window.tables if one.table.keyless)
    single = [record for record in read if record.changes]
    if not keyless or not single:
        return list(read)
    orders = {commit.order: commit.position for record in read for commit in record.summary.commits.values()}
    work = CountChanges(
        step.staging,
        step.source,
        keyless,
        decisions,
        orders,
        window.since,
        window.forward,
        step.manifest.options.skips,
        len(window.tables) == len(step.tables) == 1,
        window.units,
    )
    counted_records = {one.segment: one for one in run_tasks(step.spark, "count single changes", single, work)}
    return [counted_records.get(record.segment, record) for record in read]


def _decide(window: Window, read: Sequence[SegmentRecord]) -> tuple[net_change_files.Decisions, dict[str, str]]:
    """Do what `net_change_files.match_prepared` does, but ignore unmatched commits of tables that are left out. The
    segment with the commit may have been read with such a table, and the segment that prepared the transaction may have
    been read without this table.

    :raises CdcError: the changes of a transaction that counts cannot be used.
    """
    decisions, unmatched_commits = net_change_files.match_prepared([record.summary for record in read])
    broken = {(record.segment, xid): one for record in read for xid, one in record.summary.errors.items()}
    if counted := broken.keys() & decisions.keys():
        raise broken[min(counted)].error
    refused = {name for record in read for name in record.refused}
    left_out = [tracked for tracked in window.tables if str(tracked.table.name) in refused]
    prepared = {tracked.pending(xid) for record in read for xid in record.summary.prepared for tracked in left_out}
    return decisions, {xid: where for xid, where in unmatched_commits.items() if xid not in prepared}


def _read(step: Step, window: Window, name: str, segments: Callable[[], list[LogSegment]]) -> list[SegmentRecord]:
    """Return the records of the segments, in the order of the log. Read only the segments that no earlier try has read.

    :param name: the file name of the plan.
    """
    plan = step.plan(name, LogSegment, lambda: retry(f"plan {name}", segments))
    planned = plan.orders
    done = step.finished(plan, SegmentRecord, {segment.number: window.record_name(segment) for segment in planned})
    files_by_segment = {number: record.all_files + record.changes for number, record in done.items()}
    whole = without_damaged(step, files_by_segment, "extract_delta: segment")
    done = {number: record for number, record in done.items() if number in whole}
    missing = [segment for segment in planned if segment.number not in done]
    is_window_plan = name == window.plan_name
    what = format_count(len(planned), "log segment" if is_window_plan else "earlier log segment")
    why = "" if is_window_plan else ", to find prepared transactions"
    log(f"extract_delta: {what}{why}" + (f", {len(done):,} kept" if done else ""))
    # A segment of unknown size gets the weight 1.
    weights = {segment.number: segment.bytes or 1 for segment in missing}

    def left() -> list[PartPiece]:
        return [piece_of_segment(window.name, segment) for segment in missing if segment.number not in done]

    def waiting() -> str:
        if not watched.all_read:
            return ""
        return f"the changes of {format_count(watched.all_read, 'segment')} to be sorted and written (the log is read)"

    watched = PieceWatch(step.folder, SEGMENTS, left)
    progress = Progress(
        "extract_delta",
        "segment",
        len(missing),
        sum(weights.values()),
        under_way=watched.poll,
        waiting=waiting,
        paused=paused_seconds,
        note=ProgressFile(step.folder).note,
    )

    def finished(record: SegmentRecord) -> None:
        done[record.segment] = record
        progress.add(1, record.summary.row_images, weights[record.segment])

    source_watch = SourceWatch(step, EXTRACT_DELTA)

    def meanwhile() -> None:
        source_watch.poll(progress.seconds_left)
        progress.tick()

    skips, alone = step.manifest.options.skips, len(window.tables) == len(step.tables)
    run_tasks(
        step.spark,
        "read the log",
        missing,
        ReadSegment(
            step.staging,
            plan.id,
            step.source,
            window.name,
            window.start,
            window.tables,
            skips,
            alone,
            (*window.units, *window.events),
            window.forward,
        ),
        finished,
        meanwhile=meanwhile,
        size=sum(weights.values()) if all(segment.bytes for segment in missing) else None,
    )
    return [done[segment.number] for segment in planned]


def _prepared_nowhere(unmatched_commits: Mapping[str, str]) -> ExactnessError:
    xid, segment = next(iter(unmatched_commits.items()))
    return ExactnessError(
        f"the prepared transaction {xid} is committed here, but the log no longer contains its XA PREPARE",
        where=segment,
        hint="wait until all prepared transactions have ended (XA RECOVER lists them), then trigger a new run",
    )


def compose(
    step: Step, window: Window, read: Sequence[SegmentRecord], decisions: net_change_files.Decisions
) -> net_change_files.NetChangeFiles:
    segments = tuple(record for record in read if record.all_files)
    pending = any(record.pending for record in read)
    parts = any(record.summary.parts > 1 for record in read)
    is_counted = bool(window.spooled or window.units)
    files = tuple(file for record in segments for file in record.towards)
    counts = [record.counts for record in segments]
    # A row of a keyless table may occur several times, even within the net change of one segment: different images may
    # be the same row. Columns may be left out, a schema change may be carried, and MySQL stores some equal texts in
    # several ways (numbers in JSON, characters with two codes).
    repeats = any(one.table.keyless and one.index in touched for touched in counts for one in window.tables)
    if segments and (len(segments) > 1 or is_counted or pending or parts or repeats):
        held = sum(record.held for record in read)
        all_files = [file for record in segments for file in record.all_files]
        ranges = _bucket_ranges(step, all_files, held)
        keyless = tuple(index for index, entry in enumerate(step.tables) if entry.table.keyless)
        composed = run_tasks(
            step.spark,
            "compose the net change",
            ranges,
            ComposeBuckets(
                step.staging,
                window.name,
                segments,
                decisions,
                keyless,
                window.forward,
                tuple(one.index for one in window.tables),
                window.images,
            ),
            size=max(held, sum(file.bytes for file in all_files)),
        )
        files = tuple(file for composed_piece in composed for file in composed_piece.files)
        counts = [composed_piece.counts for composed_piece in composed]
    return net_change_files.NetChangeFiles(files, net_change_files.add_counts(counts))


def _bucket_ranges(step: Step, files: Sequence[StagedFile], held: int = 0) -> list[tuple[int, int]]:
    """Return the range of buckets for each composing task.

    :param held: the size of the files' rows in memory, in bytes.
    """
    size = sum(file.bytes for file in files)
    tasks = max(-(-size // COMPOSE_BYTES), -(-held // HELD_BYTES), min(step.slots, size // SMALL_BYTES), 1)
    return net_change_files.bucket_ranges(min(BUCKETS, tasks))
