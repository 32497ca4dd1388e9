"""The snapshot step: reads every chunk of every table, and then bounds the reads. Each chunk is read at its own time.

Exactness depends on two rules. The bound is taken after the end of the last read that counts. When the bound is taken,
the files that count are fixed in a record of this try. A task that Spark started twice, or another try of this step
that was presumed dead, may end later. But the record does not contain the files of such a task or try.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.results import SNAPSHOT, RowsOfReplica, SnapshotResult, TableRead
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import SourceUnavailable, TerminalError
from airflow_provider_cdc.jobs.log.log import tidy
from airflow_provider_cdc.jobs.reads import (
    ReadFiles,
    files_of_bases,
    nulled_of_bases,
    undone,
    with_ends,
    write_record,
)
from airflow_provider_cdc.jobs.restart.altered import find_altered, may_restart, note_altered
from airflow_provider_cdc.jobs.restart.move import restart_run
from airflow_provider_cdc.jobs.runtime.progress import (
    log,
    table,
)
from airflow_provider_cdc.jobs.runtime.skipped import add_nulled, check_some_left, log_nulled, log_skipped
from airflow_provider_cdc.jobs.runtime.step import Step, run_step
from airflow_provider_cdc.jobs.runtime.verify_files import without_damaged
from airflow_provider_cdc.jobs.snapshot.parts import Extent, Part, check_key_order, cut
from airflow_provider_cdc.jobs.snapshot.read import name_of, read_again_in_view, read_all, stale_parts
from airflow_provider_cdc.jobs.snapshot.read_part import (
    DONE,
    PartRecord,
    files_by_table,
    log_undivided,
    note_timeline,
)
from airflow_provider_cdc.jobs.snapshot.reread_passes import SeenRows, write_again
from airflow_provider_cdc.jobs.spool import spooled
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.planning.selections import check_still

PLAN = "chunks/plan.json"
READS = 5
"""The maximum number of times that the parts are read. After each restart of the server, all parts that were read
before the restart are read again."""


def snapshot(spark: SparkSession, folder: Storage, settings: ConnectionSettings) -> SnapshotResult:
    """Read all tables of the run in ``folder``.

    Returns the result that the run records. `read_table_files` returns the files.
    """
    return run_step(SNAPSHOT, spark, folder, settings, spooled(read_tables))


def read_tables(step: Step) -> SnapshotResult:
    """Do the work of the step.

    :raises RunRestarted: a table was altered, and the run has a new manifest.
    """
    tidy(step)
    for entry in step.tables:
        if not entry.left_out:
            check_still(step.source, entry.table)
    if rolled := sum(bool(entry.base) for entry in step.tables):
        log(f"snapshot: {format_count(rolled, 'table')} rolled forward from the last copies instead of read")
    # If a run reads touched rows again, it does so for all of its tables, including the tables that are rolled forward.
    if not any(entry.is_read or entry.at_upper for entry in step.tables):
        if lost := undone(step):
            raise restart_run(step, lost, {}, None, {})
        return _nothing_read(step)
    # Check the tables now, not only after hours of reading.
    _check_tables(step)
    options = step.manifest.options
    chunk_rows = options.limits.chunk_rows_within(options.chunk_rows)
    try:
        plan = step.plan(PLAN, Part, lambda: cut(step.source, step.tables, chunk_rows, step.slots))
    except TerminalError as error:
        if not note_altered(step, error) or not may_restart(step):
            raise
        raise restart_run(step, step.altered, {}, None, {}) from error
    parts = plan.orders
    log_undivided(step.tables, parts)
    done = step.finished(plan, PartRecord, {part.number: f"{DONE}/{part.name}.json" for part in parts})
    folders = [step.files_of(index).folder for index in range(len(step.tables))]
    done_files = {number: record.files for number, record in done.items()}
    whole = without_damaged(step, done_files, "snapshot: part", {part.number: folders[part.table] for part in parts})
    done = {number: record for number, record in done.items() if number in whole}
    seen: SeenRows | None = None
    for _ in range(READS):
        bound = read_all(step, plan, done)
        moves = bool(step.altered) and may_restart(step)
        if step.manifest.at_upper and not moves and not stale_parts(done, bound):
            seen = read_again_in_view(step, plan, done)
            moves = bool(step.altered) and may_restart(step)
            if not moves:
                bound = seen.bound if seen else step.source.bound_reads()
        # A crash of the server can undo changes that the run has already read. The log does not have these changes, so
        # parts that were read before the crash cannot be rewound.
        stale = stale_parts(done, bound)
        if not stale and (seen or moves or not step.manifest.at_upper):
            break
        log(f"snapshot: the server restarted meanwhile; reading {format_count(len(stale), 'part')} again")
        for number in stale:
            del done[number]
    else:
        raise SourceUnavailable(
            f"the server restarted during each of {READS} reads",
            hint="find out why the server restarts, then retry the task",
        )
    _check_tables(step)
    extents: dict[int, list[Extent]] = defaultdict(list)
    for part in parts:
        if name_of(step, part) not in step.altered and part.number in done:
            extents[part.table] += done[part.number].extents
    for index, entry in enumerate(step.tables):
        check_key_order(entry.table, extents[index])
    files = with_ends(step, files_by_table(step.tables, parts, done)) | files_of_bases(step)
    nulled_now = [(name_of(step, part), done[part.number].nulled) for part in parts if part.number in done]
    nulled = add_nulled([*nulled_of_bases(step), *nulled_now])
    lost = undone(step, bound)
    if lost or (step.altered and may_restart(step)):
        raise restart_run(step, step.altered | lost, _read_in_full(step, parts, done, files), bound, nulled)

    skipped = {name_of(step, part): done[part.number].refused for part in parts if part.number in done}
    skipped = {name: why for name, why in skipped.items() if why} | step.altered | step.left_out
    if seen:
        skipped |= seen.skipped
    check_some_left([name for name in files if name not in skipped], skipped)
    based = {str(entry.table.name) for entry in step.tables if entry.base}
    copied = {name: table_files for name, table_files in files.items() if name not in based and name not in skipped}
    record = write_record(step.run, files)
    chunks: Counter[str] = Counter()
    for part in parts:
        chunks[name_of(step, part)] += len(part.chunks)
    result = SnapshotResult(
        snapshot_upper=str(bound.upper),
        log_end=bound.log_end,
        rows=sum(table_files.rows for table_files in copied.values()),
        tables={
            name: TableRead(table_files.rows, chunks[name], len(table_files.files), table_files.bytes)
            for name, table_files in copied.items()
        },
        nulled=add_nulled([*nulled.items(), *(seen.nulled if seen else {}).items()]),
        lock_seconds=max((one.lock_seconds for one in done.values()), default=0.0),
        record=record,
        skipped=skipped,
        again=write_again(step.run, seen.again) if seen else "",
        keys_again=seen.keys_in_view if seen else 0,
        view_seconds=seen.view_seconds if seen else 0.0,
        incarnation=bound.incarnation,
        replicas=_on_replicas(done.values()),
    )
    log_skipped(skipped)
    _summarize(result, done.values())
    note_timeline(step, parts, done)
    return result


def _check_tables(step: Step) -> None:
    """Check that the tables are unchanged since the initial position. Note the tables that were altered and that the
    run may read again.

    :raises SchemaChanged: a table was altered, and the run may not read it again.
    """
    entries = [entry for entry in step.tables if entry.is_read or entry.at_upper]
    step.altered |= find_altered(step, entries)


def _read_in_full(
    step: Step, parts: Sequence[Part], done: Mapping[int, PartRecord], files: Mapping[str, ReadFiles]
) -> dict[str, ReadFiles]:
    """Return the files of the tables all of whose parts were read under the present manifest."""
    missing = {name_of(step, part) for part in parts if part.number not in done or done[part.number].refused}
    read = {name_of(step, part) for part in parts} - missing
    return {name: table_files for name, table_files in files.items() if name in read}


def _nothing_read(step: Step) -> SnapshotResult:
    record = write_record(step.run, files_by_table(step.tables, [], {}) | files_of_bases(step))
    return SnapshotResult(
        snapshot_upper=step.manifest.initial_position,
        log_end=LogEnd(""),
        rows=0,
        tables={},
        nulled=add_nulled(nulled_of_bases(step)),
        lock_seconds=0.0,
        record=record,
        skipped=step.left_out,
    )


def _on_replicas(done: Iterable[PartRecord]) -> dict[str, RowsOfReplica]:
    found: dict[str, RowsOfReplica] = {}
    for read in (read for record in done for read in record.replica_reads):
        so_far = found.get(read.server_uuid, RowsOfReplica(read.address, 0, 0.0))
        waited = round(so_far.waited + read.waited, 3)
        found[read.server_uuid] = RowsOfReplica(read.address, so_far.rows + read.rows, waited)
    return found


def _summarize(found: SnapshotResult, done: Iterable[PartRecord]) -> None:
    rows = [
        (name, totals.rows, totals.chunks, totals.files, totals.bytes / 2**20) for name, totals in found.tables.items()
    ]
    log(table(("table", "rows", "chunks", "files", "MiB"), rows))
    log_nulled("snapshot: read as null", found.nulled)
    for uuid, replica in found.replicas.items():
        log(
            f"snapshot: {format_count(replica.rows, 'row')} read on the replica {replica.address} ({uuid}), which was "
            f"waited for {replica.waited:.1f} s"
        )
    if found.replicas:
        rows_of_source = sum(record.rows for record in done if not record.replica_reads)
        log(f"snapshot: {format_count(rows_of_source, 'row')} read on the source")
    log(f"snapshot: lock held for {found.lock_seconds * 1000:.0f} ms; snapshot_upper {found.snapshot_upper}")
