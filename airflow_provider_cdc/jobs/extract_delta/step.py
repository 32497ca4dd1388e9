"""The extract_delta step: reads the log of each window, and reduces it to one net change.

For tables that were read, the window extends from the initial position to the end of the reads. For tables that are
rolled forward, the window extends from the position of their base to the initial position. Tables with the same window
are read together.

Each segment of the log is read by one task, which reduces the segment to its net change (``core.tables.net_change``:
changes may be grouped in any order). If a window has several segments, further tasks compose their net changes by key.
Each of these tasks handles some buckets of all keys.

So the tasks exchange changes through files that they write and read themselves. Rows stay in Arrow and do not pass
through the JVM, and a small window costs only one small job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.copies.removal import note_damage
from airflow_provider_cdc.core.run.results import EXTRACT_DELTA, SNAPSHOT, DeltaResult, Skipped, SnapshotResult
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, DecodeError, ExactnessError, SchemaChanged
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import needs_composing
from airflow_provider_cdc.jobs.extract_delta.window_changes import WindowChanges, window_changes, write_changes
from airflow_provider_cdc.jobs.extract_delta.windows import BACK, Window, check_bases, windows_of
from airflow_provider_cdc.jobs.log.keyless import CountChanges
from airflow_provider_cdc.jobs.log.read_segment import (
    ComposeBuckets,
    LastOfBuckets,
    ReadSegment,
    SegmentRecord,
)
from airflow_provider_cdc.jobs.reads.table_files import read_table_files
from airflow_provider_cdc.jobs.restart.altered import altered_table, described, look_for_altered, may_restart
from airflow_provider_cdc.jobs.restart.move import restart_run
from airflow_provider_cdc.jobs.runtime.controller import paused_seconds
from airflow_provider_cdc.jobs.runtime.progress import (
    SEGMENTS,
    PartPiece,
    PieceWatch,
    Progress,
    ProgressFile,
    forget,
    log,
    piece_of_segment,
)
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.skipped import log_skipped
from airflow_provider_cdc.jobs.runtime.source_watch import SourceWatch
from airflow_provider_cdc.jobs.runtime.step import Step, run_step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.runtime.verify_files import Checked, require_whole, without_damaged
from airflow_provider_cdc.jobs.snapshot.reread_passes import read_record as read_again_record
from airflow_provider_cdc.jobs.snapshot.step import read_tables
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import BUCKETS, LogSegment, UpperBound

COMPOSE_BYTES = 256 * 2**20
"""The largest input of one composing task, in bytes of the files that it reads."""
HELD_BYTES = 2**30
"""The largest input of one composing task, in bytes of memory. Similar documents take many times more space in memory
than in files."""
SMALL_BYTES = 16 * 2**20
"""Bytes per task. A smaller task would cost more than it saves."""


def extract_delta(spark: SparkSession, folder: Storage, settings: ConnectionSettings) -> DeltaResult:
    """Read the log of the windows, and write their net change to ``folder``, the folder of the run.

    Returns the result that the run records. `read_net_change` returns the files.

    :raises ExactnessError: a window contains an event that violates an assumption of the proof.
    """
    return run_step(EXTRACT_DELTA, spark, folder, settings, _extract_delta)


def _extract_delta(step: Step) -> DeltaResult:
    if step.manifest.restarts and SNAPSHOT not in step.run.steps:
        # This step, or an earlier attempt, found that a table was altered.
        step.run.finish_step(SNAPSHOT, read_tables(step))
    while True:
        try:
            return _extracted(step)
        except SchemaChanged as error:
            name = altered_table(step, error)
            if name is None or name in step.altered:
                raise
            step.altered[name] = described(error)
            if may_restart(step):
                raise _begin_again(step) from error
            # The position cannot move, so the table is left out.
            if {str(entry.table.name) for entry in step.tables} <= step.altered.keys():
                raise


def _begin_again(step: Step) -> RunRestarted:
    """Give the run a new manifest, under which the altered tables are read again."""
    snapshot = step.run.result_of(SnapshotResult)
    step.altered |= look_for_altered(step, [entry for entry in step.tables if entry.is_read])
    altered = step.altered
    live = {str(entry.table.name) for entry in step.tables if entry.is_read} - snapshot.skipped.keys()
    if not live:
        return restart_run(step, altered, {}, None, {})
    read = {name: table_files for name, table_files in read_table_files(step.run).items() if name in live}
    bound = UpperBound(step.manifest.position_in(snapshot.snapshot_upper), snapshot.log_end, snapshot.incarnation)
    nulled = {name: counts for name, counts in snapshot.nulled.items() if name in live}
    return restart_run(step, altered, read, bound, nulled)


def _extracted(step: Step) -> DeltaResult:
    if step.manifest.at_upper:
        return _extract_again(step)
    forget(step.folder, SEGMENTS)
    skipped = step.run.result_of(SnapshotResult).skipped | step.altered
    read: list[SegmentRecord] = []
    changes = []
    single: list[WindowChanges] = []
    for window in windows_of(step):
        with _noting_damage(step, window):
            window_records, decisions = _read_window(step, window)
        changes.append(_compose(step, window, window_records, decisions))
        if wanted := [one.index for one in window.tables if one.changes and one.index not in window.units]:
            single.append(window_changes(wanted, window_records, decisions))
        read += window_records
    for one in read:
        skipped |= one.refused

    change = net_change_files.NetChangeFiles(
        tuple(file for one in changes for file in one.files), net_change_files.add_counts(c.counts for c in changes)
    )
    transactions, row_images = (
        sum(getattr(one.summary, what) for one in read) for what in ("transactions", "row_images")
    )
    result = _result(step, change, transactions, row_images, len(read), skipped)
    return replace(result, changes=write_changes(step.run, single)) if single else result


def _extract_again(step: Step) -> DeltaResult:
    """Compose the touched keys into one net change. The snapshot step has already read the log for these keys."""
    again = read_again_record(step.run)
    check_bases(step)
    require_whole(step, [Checked(file, "the keys that were touched") for file in again.keys])
    composed: list[net_change_files.NetChangeFiles] = []
    if again.keys:
        work = LastOfBuckets(step.staging, again.keys)
        composed = run_tasks(step.spark, "compose the touched keys", _bucket_ranges(step, again.keys), work)
    files = tuple(file for composed_piece in composed for file in composed_piece.files)
    change = net_change_files.NetChangeFiles(
        files, net_change_files.add_counts(composed_piece.counts for composed_piece in composed)
    )
    skipped = dict(step.run.result_of(SnapshotResult).skipped)
    return _result(step, change, again.transactions, again.row_images, len(again.layers), skipped)


def _result(
    step: Step,
    change: net_change_files.NetChangeFiles,
    transactions: int,
    row_images: int,
    segments: int,
    skipped: Skipped,
) -> DeltaResult:
    names = [str(entry.table.name) for entry in step.tables]
    keys = {name: change.keys(index) for index, name in enumerate(names) if name not in skipped}
    result = DeltaResult(
        transactions=transactions,
        row_images=row_images,
        keys=keys,
        segments=segments,
        record=records.write_named(step.folder, "delta/net", change),
        skipped=skipped,
    )
    log_skipped(skipped)
    log(
        f"extract_delta: {format_count(result.transactions, 'transaction')}, "
        f"{format_count(result.row_images, 'row image')}, {format_count(sum(keys.values()), 'key')} touched"
    )
    return result


@contextmanager
def _noting_damage(step: Step, window: Window) -> Iterator[None]:
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


def _read_window(step: Step, window: Window) -> tuple[list[SegmentRecord], net_change_files.Decisions]:
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
    been read without this table."""
    decisions, unmatched_commits = net_change_files.match_prepared([record.summary for record in read])
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
    )
    return [done[segment.number] for segment in planned]


def _prepared_nowhere(unmatched_commits: Mapping[str, str]) -> ExactnessError:
    xid, segment = next(iter(unmatched_commits.items()))
    return ExactnessError(
        f"the prepared transaction {xid} is committed here, but the log no longer contains its XA PREPARE",
        where=segment,
        hint="wait until all prepared transactions have ended (XA RECOVER lists them), then trigger a new run",
    )


def _compose(
    step: Step, window: Window, read: Sequence[SegmentRecord], decisions: net_change_files.Decisions
) -> net_change_files.NetChangeFiles:
    segments = tuple(record for record in read if record.all_files)
    pending = any(record.pending for record in read)
    parts = any(record.summary.parts > 1 for record in read)
    is_counted = bool(window.spooled or window.units)
    files = tuple(file for record in segments for file in record.towards)
    counts = [record.counts for record in segments]
    if segments and (len(segments) > 1 or is_counted or pending or parts or needs_composing(window.tables)):
        held = sum(record.held for record in read)
        ranges = _bucket_ranges(step, [file for record in segments for file in record.all_files], held)
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


def read_net_change(run: Run) -> net_change_files.NetChangeFiles:
    """Return the net change that the extract_delta step recorded.

    :raises ManifestError: the step is not done.
    """
    return records.read_named(net_change_files.NetChangeFiles, run.folder, run.result_of(DeltaResult).record)
