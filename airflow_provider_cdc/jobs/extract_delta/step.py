"""The extract_delta step: reads the log of each window, and reduces it to one net change.

For tables that were read, the window extends from the initial position to the end of the reads. For tables that are
rolled forward, the window extends from the position of their base to the initial position. Tables with the same window
are read together.

Each segment of the log is read by one task, which reduces the segment to its net change (``core.tables.net_change``:
changes may be grouped in any order). If a window has several segments, or changes of tables without a key, further
tasks compose the net changes by key. Each of these tasks handles some buckets of all keys.

So the tasks exchange changes through files that they write and read themselves. Rows stay in Arrow and do not pass
through the JVM, and a small window costs only one small job.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.results import EXTRACT_DELTA, SNAPSHOT, DeltaResult, Skipped, SnapshotResult
from airflow_provider_cdc.core.run.run import RunRestarted
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.extract_delta.read_window import compose, compose_touched, noting_damage, read_window
from airflow_provider_cdc.jobs.extract_delta.window_changes import WindowChanges, window_changes, write_changes
from airflow_provider_cdc.jobs.extract_delta.windows import windows_of
from airflow_provider_cdc.jobs.log.read_segment import (
    SegmentRecord,
)
from airflow_provider_cdc.jobs.reads import read_table_files
from airflow_provider_cdc.jobs.restart.altered import altered_table, described, find_altered, may_restart
from airflow_provider_cdc.jobs.restart.move import restart_run
from airflow_provider_cdc.jobs.runtime.progress import (
    SEGMENTS,
    forget,
    log,
)
from airflow_provider_cdc.jobs.runtime.skipped import log_skipped
from airflow_provider_cdc.jobs.runtime.step import Step, run_step
from airflow_provider_cdc.jobs.snapshot.reread_passes import read_record as read_again_record
from airflow_provider_cdc.jobs.snapshot.step import read_tables
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import UpperBound


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
    step.altered |= find_altered(step, [entry for entry in step.tables if entry.is_read])
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
        with noting_damage(step, window):
            window_records, decisions = read_window(step, window)
        changes.append(compose(step, window, window_records, decisions))
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
    """Use the touched keys as the net change."""
    again = read_again_record(step.run)
    change = compose_touched(step, again.keys)
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
        record=net_change_files.write_net_change(step.folder, change),
        skipped=skipped,
    )
    log_skipped(skipped)
    if server := step.manifest.identity.log_server:
        log(f"extract_delta: the log was read from the replica {server}")
    log(
        f"extract_delta: {format_count(result.transactions, 'transaction')}, "
        f"{format_count(result.row_images, 'row image')}, {format_count(sum(keys.values()), 'key')} touched"
    )
    return result
