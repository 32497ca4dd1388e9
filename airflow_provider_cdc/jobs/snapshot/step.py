"""The snapshot step: reads every chunk of every table, and then bounds the reads. Each chunk is read at its own time.

Exactness depends on two rules. The bound is taken after the end of the last read that counts. When the bound is taken,
the files that count are fixed in a record of this try. A task that Spark started twice, or another try of this step
that was presumed dead, may end later. But the record does not contain the files of such a task or try.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import chunk_rows_within
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.results import SNAPSHOT, SnapshotResult, TableRead
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import SourceUnavailable, TerminalError, TransientError
from airflow_provider_cdc.jobs.log.log import tidy
from airflow_provider_cdc.jobs.reads.table_files import (
    ReadFiles,
    files_of_bases,
    nulled_of_bases,
    undone,
    with_ends,
    write_record,
)
from airflow_provider_cdc.jobs.restart.altered import look_for_altered, may_restart, note_altered
from airflow_provider_cdc.jobs.restart.move import restart_run
from airflow_provider_cdc.jobs.runtime import controller
from airflow_provider_cdc.jobs.runtime.progress import (
    PARTS,
    PartPiece,
    PieceWatch,
    Progress,
    ProgressFile,
    forget,
    log,
    table,
)
from airflow_provider_cdc.jobs.runtime.retry import RetryBudget, retry
from airflow_provider_cdc.jobs.runtime.skipped import add_nulled, check_some_left, log_nulled, log_skipped
from airflow_provider_cdc.jobs.runtime.source_watch import SourceWatch
from airflow_provider_cdc.jobs.runtime.step import Plan, Step, run_step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.runtime.verify_files import without_damaged
from airflow_provider_cdc.jobs.snapshot.ends_of_reads import EndsOfReads
from airflow_provider_cdc.jobs.snapshot.parts import Extent, Part, bundle, check_key_order, cut, piece_of_part
from airflow_provider_cdc.jobs.snapshot.read_part import (
    DONE,
    PartRecord,
    ReadPart,
    drop_half_read,
    files_by_table,
    note_timeline,
    tell_wholes,
)
from airflow_provider_cdc.jobs.snapshot.reread_passes import SeenRows, read_again, write_again
from airflow_provider_cdc.jobs.spool.spooler import pause_spool, spooled
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source
from airflow_provider_cdc.sources.api.window import UpperBound
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
    chunk_rows = chunk_rows_within(options.limits, options.chunk_rows)
    try:
        plan = step.plan(PLAN, Part, lambda: cut(step.source, step.tables, chunk_rows, step.slots))
    except TerminalError as error:
        if not note_altered(step, error) or not may_restart(step):
            raise
        raise restart_run(step, step.altered, {}, None, {}) from error
    parts = plan.orders
    tell_wholes(step.tables, parts)
    done = step.finished(plan, PartRecord, {part.number: f"{DONE}/{part.name}.json" for part in parts})
    folders = [step.files_of(index).folder for index in range(len(step.tables))]
    done_files = {number: record.files for number, record in done.items()}
    whole = without_damaged(step, done_files, "snapshot: part", {part.number: folders[part.table] for part in parts})
    done = {number: record for number, record in done.items() if number in whole}
    seen: SeenRows | None = None
    for _ in range(READS):
        bound = _read_all(step, plan, done)
        moves = bool(step.altered) and may_restart(step)
        if step.manifest.at_upper and not moves and not _stale(done, bound):
            seen = _read_again(step, plan, done)
            moves = bool(step.altered) and may_restart(step)
            if not moves:
                bound = seen.bound if seen else step.source.bound_reads()
        # A crash of the server can undo changes that the run has already read. The log does not have these changes, so
        # parts that were read before the crash cannot be rewound.
        stale = _stale(done, bound)
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
        if _name(step, part) not in step.altered and part.number in done:
            extents[part.table] += done[part.number].extents
    for index, entry in enumerate(step.tables):
        check_key_order(entry.table, extents[index])
    files = with_ends(step, files_by_table(step.tables, parts, done)) | files_of_bases(step)
    nulled_now = [(_name(step, part), done[part.number].nulled) for part in parts if part.number in done]
    nulled = add_nulled([*nulled_of_bases(step), *nulled_now])
    lost = undone(step, bound)
    if lost or (step.altered and may_restart(step)):
        raise restart_run(step, step.altered | lost, _read_in_full(step, parts, done, files), bound, nulled)

    skipped = {_name(step, part): done[part.number].refused for part in parts if part.number in done}
    skipped = {name: why for name, why in skipped.items() if why} | step.altered | step.left_out
    if seen:
        skipped |= seen.skipped
    check_some_left([name for name in files if name not in skipped], skipped)
    based = {str(entry.table.name) for entry in step.tables if entry.base}
    copied = {name: table_files for name, table_files in files.items() if name not in based and name not in skipped}
    record = write_record(step.run, files)
    chunks: Counter[str] = Counter()
    for part in parts:
        chunks[_name(step, part)] += len(part.chunks)
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
    )
    log_skipped(skipped)
    _summarize(result)
    note_timeline(step, parts, done)
    return result


def _check_tables(step: Step) -> None:
    """Check that the tables are unchanged since the initial position. Note the tables that were altered and that the
    run may read again.

    :raises SchemaChanged: a table was altered, and the run may not read it again.
    """
    entries = [entry for entry in step.tables if entry.is_read or entry.at_upper]
    step.altered |= look_for_altered(step, entries)


def _read_in_full(
    step: Step, parts: Sequence[Part], done: Mapping[int, PartRecord], files: Mapping[str, ReadFiles]
) -> dict[str, ReadFiles]:
    """Return the files of the tables all of whose parts were read under the present manifest."""
    missing = {_name(step, part) for part in parts if part.number not in done or done[part.number].refused}
    read = {_name(step, part) for part in parts} - missing
    return {name: table_files for name, table_files in files.items() if name in read}


def _stale(done: Mapping[int, PartRecord], bound: UpperBound) -> list[int]:
    """Return the parts that were read before the server was restarted."""
    return [number for number, record in done.items() if record.incarnation != bound.incarnation and not record.refused]


def _read_all(step: Step, plan: Plan[Part], done: dict[int, PartRecord]) -> UpperBound:
    """Read the parts that have no record, except the parts that must be read in the exported snapshot of the run's
    position. Return the bound of all reads so far."""
    _drop_read_in_view(step, plan.orders, done)
    _read(step, plan, done)
    pause_spool(step)
    return retry("snapshot: bound the reads", step.source.bound_reads)


def _read_again(step: Step, plan: Plan[Part], done: dict[int, PartRecord]) -> SeenRows | None:
    """Read touched rows again. Return None if the server was restarted meanwhile, or if the run moves, because a table
    was altered."""
    watch = SourceWatch(step)
    patience = RetryBudget("snapshot: read in one exported snapshot")

    def incarnations() -> set[str]:
        return {record.incarnation for record in done.values() if not record.refused}

    def in_view(shared: Source) -> None:
        _drop_read_in_view(step, plan.orders, done)
        missing = [part for part in plan.orders if part.number not in done and _name(step, part) not in step.altered]
        if missing:
            _read_missing(step, plan.id, missing, shared, done, watch, patience, brief=True)

    while True:
        left = [str(entry.table.name) for entry in step.tables if not entry.left_out]
        check_some_left([name for name in left if name not in step.altered], step.altered)
        try:
            return read_again(step, incarnations, in_view, watch.poll)
        except TerminalError as error:
            if not note_altered(step, error):
                raise
            _drop_read_in_view(step, plan.orders, done)
            if may_restart(step):
                return None


def _drop_read_in_view(step: Step, parts: Sequence[Part], done: dict[int, PartRecord]) -> None:
    """Drop the records of the parts that are read at the run's position, because each try has another position."""
    for part in parts:
        if _waits_for_view(step, part):
            done.pop(part.number, None)


def _waits_for_view(step: Step, part: Part) -> bool:
    entry = step.tables[part.table]
    return entry.at_upper and entry.consistency == "exported"


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


def _read(step: Step, plan: Plan[Part], done: dict[int, PartRecord]) -> None:
    """Read the parts that have no record, except the parts that must be read in the exported snapshot of the run's
    position. Add the new records to ``done``."""
    patience = RetryBudget("snapshot: read in one exported snapshot")
    watch = SourceWatch(step)
    while True:
        drop_half_read(step.tables, plan.orders, done)
        missing = [
            part
            for part in plan.orders
            if part.number not in done and not _waits_for_view(step, part) and _name(step, part) not in step.altered
        ]
        shared = {step.tables[part.table].consistency for part in missing}
        brief, lock = "exported" in shared, step.manifest.options.lock
        controller.wait_while_paused()
        try:
            with controller.giving_up_when_paused(brief), step.source.shared_reads(shared, lock) as source:
                return _read_missing(step, plan.id, missing, source, done, watch, patience, brief=brief)
        except controller.RunPaused:
            log("snapshot: the exported snapshot is closed, because the run is paused")
        except TransientError as error:
            # Each separate read has already been retried. But if the exported snapshot is lost, another snapshot must
            # be exported.
            if not brief:
                raise
            patience.wait(error)
        except TerminalError as error:
            # Read the tables that were not altered, so that the run has to read as little as possible again.
            if not note_altered(step, error):
                raise
            for part in plan.orders:
                if _name(step, part) in step.altered and _name(step, part) not in step.ends:
                    done.pop(part.number, None)


def _read_missing(
    step: Step,
    plan: str,
    missing: Sequence[Part],
    source: Source,
    done: dict[int, PartRecord],
    watch: SourceWatch,
    patience: RetryBudget,
    *,
    brief: bool,
) -> None:
    chunks = sum(len(part.chunks) for part in missing)
    kept_text = f", {len(done):,} kept" if done else ""
    live = format_count(sum(entry.is_read for entry in step.tables), "table")
    log(f"snapshot: {live}, {format_count(chunks, 'chunk')} in {format_count(len(missing), 'part')}{kept_text}")

    weights = {part.number: part.weight for part in missing}

    def at_work() -> list[Part]:
        # Spark starts the parts in the order of this list.
        return list(islice((part for part in missing if part.number not in done), step.slots))

    def left() -> list[PartPiece]:
        return [piece_of_part(part, step.tables) for part in missing if part.number not in done]

    watched = PieceWatch(step.folder, PARTS, left)
    forget(step.folder, PARTS)
    note = ProgressFile(step.folder).note
    progress = Progress(
        "snapshot",
        "chunk",
        chunks,
        sum(weights.values()),
        at_work=lambda: list(dict.fromkeys(_name(step, part) for part in at_work())),
        backlog=lambda: watch.backlog,
        under_way=watched.poll,
        waiting=lambda: f"{format_count(watched.all_read, 'part')} to be written" if watched.all_read else "",
        then="touched rows are read again" if step.manifest.at_upper and not brief else "",
        paused=controller.paused_seconds,
        note=note,
    )
    options = step.manifest.options
    lock, pause = options.lock, options.chunk_pause

    def finished(record: PartRecord) -> None:
        done[record.part] = record
        patience.succeeded()
        progress.add(record.chunks, record.rows, weights[record.part], sum(file.bytes for file in record.files))

    ends = EndsOfReads(step, missing, done)

    def meanwhile() -> None:
        watch.poll(progress.seconds_left)
        ends.poll()
        progress.tick()

    run_tasks(
        step.spark,
        "read chunks",
        missing,
        ReadPart(step.staging, plan, source, tuple(step.tables), lock, pause, options.skips),
        finished,
        meanwhile=meanwhile,
        bundle=lambda parts: bundle(parts, step.tables, step.slots),
        brief=brief,
    )
    ends.poll(now=True)


def _name(step: Step, part: Part) -> str:
    return str(step.tables[part.table].table.name)


def _summarize(found: SnapshotResult) -> None:
    rows = [
        (name, totals.rows, totals.chunks, totals.files, totals.bytes / 2**20) for name, totals in found.tables.items()
    ]
    log(table(("table", "rows", "chunks", "files", "MiB"), rows))
    log_nulled("snapshot: read as null", found.nulled)
    log(f"snapshot: lock held for {found.lock_seconds * 1000:.0f} ms; snapshot_upper {found.snapshot_upper}")
