"""Gives a run a new manifest with a later initial position, after tables were altered.

The altered tables are read again under the new manifest. Finished reads of other tables still count. They began at an
earlier position L and ended before the new initial position X. The row of a key at X is the row after the last change
of this key in (L, X]. If there is no such change, it is the row that was read. So the other tables are only rolled
forward by the log. See ``docs/design/restarts.md`` for the proof.

A run has only one valid manifest. The entry with the new manifest makes the earlier one void (`core.run.ledger`), so
neither a slow attempt nor a part of a table from before the change can be published.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from airflow_provider_cdc.core.copies.plan_checks import BEGINS_ANEW
from airflow_provider_cdc.core.positions.as_of import reaches
from airflow_provider_cdc.core.run.manifest import (
    EarlierReads,
    FeedGap,
    InitialPoint,
    Manifest,
    MissedPast,
    Restart,
    RunTable,
    TablePlan,
)
from airflow_provider_cdc.core.run.results import Nulled
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.core.shards.copy_tables import skip_whole_merged_tables, with_merged
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    LogGone,
    PreflightError,
    SchemaChanged,
    SourceUnavailable,
)
from airflow_provider_cdc.jobs.begin.base_selection import bases_of, with_known_of_bases
from airflow_provider_cdc.jobs.begin.fit import with_shards
from airflow_provider_cdc.jobs.begin.preparation import lake_format
from airflow_provider_cdc.jobs.restart.altered import altered_table, described, must_be_rolled
from airflow_provider_cdc.jobs.restart.carry import FinishedRead, carried_tables, finished_reads, with_carried
from airflow_provider_cdc.jobs.restart.earlier_reads import ReadsOfManifest, by_manifest, discard_unused
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.table_files import FILES, ReadFiles
from airflow_provider_cdc.jobs.spool.kept_pieces import KeptPieces, acknowledge, recorded_pieces, up_to
from airflow_provider_cdc.jobs.spool.spooler import end_spool, has_let_log_go
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.planning.point import record_point
from airflow_provider_cdc.sources.planning.selections import check_still
from airflow_provider_cdc.sources.planning.survey import layouts

# The change feeds of tables that are read again, because they were altered during the run.


def read_again(manifest: Manifest, entry: RunTable, why: str) -> RunTable:
    """Return a table of ``manifest`` as it is when it is read again. If the run publishes changes and would have rolled
    the table's last copy forward, the feed of the table ends at this copy."""
    gap, reason = entry.feed_gap, f"read again: {why}; {entry.reason}"
    if gap is not None:
        gap = gap.with_reason(why)
    elif manifest.options.changes and entry.base:
        gap = FeedGap(entry.base, manifest.bases[entry.base].position, why)
        reason += BEGINS_ANEW
    return replace(entry, base="", read_in="", reason=reason, feed_gap=gap)


# The tables whose finished reads are kept when the run moves: what the log and the server tell about them.


def altered_in_log(step: Step, altered: Mapping[str, str], read: Collection[str]) -> dict[str, str]:
    """Return the tables that are not in ``altered``, and that a statement in the log has changed, each with the
    statement. So the run moves once for all of them, and not once for each statement that only the log shows.

    :param read: the tables that were read in full under the present manifest.
    """
    rolls = must_be_rolled(step.manifest.options)
    unaltered = [entry for entry in step.tables if str(entry.table.name) not in altered]
    kept = [entry for entry in unaltered if str(entry.table.name) in read or entry.read_in]
    groups = [(one.identity, one.position, one.entries) for one in by_manifest(step, kept)]
    if rolled := tuple(entry for entry in unaltered if entry.base and not rolls):
        # The pieces of the log that the run has recorded do not have these tables.
        groups.append((step.manifest.identity, step.manifest.initial, rolled))
    found: dict[str, str] = {}
    for identity, position, entries in groups:
        # The source of this step does not know the pieces that were recorded since the step began.
        source = step.source.of_run(identity, position)
        tables = [entry.table for entry in entries]
        try:
            errors = retry("search the log for altered tables", partial(source.altered_in_log, tables))
        except LogGone:
            # The run finds this again when it brings the reads to the later position.
            continue
        found |= {str(name): described(error) for name, error in errors.items()}
    return found


def refresh_identities(kept: ReadsOfManifest) -> Sequence[Table]:
    """Return the tables of ``kept`` with the facts that the next run compares with the tables. Call this before the
    later position is fixed, so that an unlogged change after the position differs from these facts.

    :raises SchemaChanged: a table was changed without an entry in the log since it was read.
    :raises LogGone: the source no longer has the log since it was read.
    """
    tables = [entry.table for entry in kept.entries]
    return retry("check the tables that are kept", partial(kept.source.refresh_identities, tables))


def restart_run(
    step: Step,
    altered: Mapping[str, str],
    read: Mapping[str, ReadFiles],
    bound: UpperBound | None,
    nulled: Nulled,
) -> RunRestarted:
    """Give the run of ``step`` a new manifest, and return the exception that ends the work under the old manifest.

    :param altered: the tables to read again, by name, each with the reason.
    :param read: the files of the tables that were read in full under the old manifest. They include altered tables.
    :param bound: the bound of these reads; None: ``read`` is empty.
    :param nulled: the number of values that these reads turned into null.
    :raises SchemaChanged: an altered table can no longer be copied, or no longer exists.
    :raises PreflightError: an altered table can no longer be copied.
    """
    run, altered = step.run, dict(altered)
    end_spool(step)
    if _overtaken(run):
        return RunRestarted()
    altered |= altered_in_log(step, altered, read)
    for name, why in altered.items():
        log(f"WARNING: the run moves to a later position, because of {name}: {why}")
    if read and recorded_pieces(step, "") is None and has_let_log_go(step):
        log("all tables are read again, because the source has removed the log since the run began")
        read = {}
    # No position is the one from which all rows of such a table could be brought forward.
    read = {name: table_files for name, table_files in read.items() if not table_files.units}
    reads: EarlierReads | None = None
    if bound is not None and read:
        read = {name: replace(files, ended=files.ended or str(bound.log_end)) for name, files in read.items()}
        record = records.write_named(step.folder, FILES, dict(read))
        reads = EarlierReads(step.manifest.initial_position, step.manifest.identity, record, bound.incarnation, nulled)
    skipped: dict[str, str] = {}
    lost: dict[str, str] = {}
    generation = str(run.generation)
    while True:
        entries = [entry for entry in step.tables if str(entry.table.name) not in skipped]
        planned = [_entry(step, entry, altered, read, generation, lost) for entry in entries]
        try:
            finished = finished_reads(step, altered, {} if generation in lost else read, reads, bound)
            manifest = _manifest(step, planned, altered, skipped, reads, bound, finished)
            break
        except _LogOfReadsGone as gone:
            # Read these tables again, too, at another position, because they are not part of this one.
            lost[gone.key] = why = f"the source no longer has the log since it was read ({gone})"
            names = [str(entry.table.name) for entry in planned if entry.read_in == gone.key]
            log(f"{', '.join(names)}: read again, too, because {why}")
        except (SchemaChanged, PreflightError) as error:
            table_name = altered_table(step, error) if isinstance(error, SchemaChanged) else _only_table(error)
            if table_name is not None and table_name not in altered:
                # The table was altered after the reads.
                altered[table_name] = described(error) if isinstance(error, SchemaChanged) else error.message
            elif (
                table_name is not None
                and step.manifest.options.skips
                and table_name not in skipped
                and len(entries) > 1
            ):
                skipped = skip_whole_merged_tables(step.tables, {**skipped, table_name: error.message})
                if len(skipped) == len(step.tables):
                    raise
                log(f"WARNING: {table_name} is SKIPPED and will not be published: {error.message}")
            else:
                raise
    if run.move(manifest):
        acknowledge(step, manifest)
        discard_unused(step, [step.manifest, *step.manifest.earlier_reads.values()], manifest)
    else:
        # A concurrent attempt has moved the run, has finished a step without this manifest, or has recorded a piece of
        # the log that may reach beyond the new position.
        discard_unused(step, [manifest], Run.load(step.folder).manifest)
    return RunRestarted()


def _overtaken(run: Run) -> bool:
    """Read the state of the run, with all pieces of the log. Return whether a concurrent attempt has finished a step
    under the present manifest meanwhile, has published the run, or has ended it. If it has finished a step, its reads
    had ended before the table was altered, or before this attempt saw the change. The run goes on with them: a new
    manifest would take them away from the attempt of the next step, which could not go on.

    :raises RunRestarted: a concurrent attempt has moved the run.
    """
    finished = {*run.steps}
    run.refresh()
    return bool(run.steps.keys() - finished) or run.committed or run.ended


class _LogOfReadsGone(Exception):
    """The source no longer has the log since the reads under one manifest. ``key`` is the key of these reads in the
    new manifest."""

    def __init__(self, key: str, error: LogGone) -> None:
        super().__init__(error.message)
        self.key = key


def _entry(
    step: Step,
    entry: RunTable,
    altered: Mapping[str, str],
    read: Mapping[str, ReadFiles],
    generation: str,
    lost: Mapping[str, str],
) -> RunTable:
    """Return the table with the way in which it comes to the new position.

    :param lost: the reads that do not count, by their keys, because the log since then is gone.
    """
    name = str(entry.table.name)
    if name in altered:
        return read_again(step.manifest, entry, altered[name])
    if entry.read_in in lost:
        return replace(entry, read_in="", reason=f"read again: {lost[entry.read_in]}; {entry.reason}")
    if not entry.is_read or name not in read or generation in lost:
        return entry
    if why := step.source.reason_not_rollable(entry.table):
        log(f"{name} is read again, too, because {why}")
        return entry
    return replace(entry, read_in=generation)


def _manifest(
    step: Step,
    planned: list[RunTable],
    altered: Mapping[str, str],
    skipped: Mapping[str, str],
    reads: EarlierReads | None,
    bound: UpperBound | None,
    finished: Mapping[str, FinishedRead],
) -> Manifest:
    old, source, generation = step.manifest, step.source, str(step.run.generation)
    options, missed_past = old.options, old.missed_past
    if options.as_of:
        missed_past = MissedPast(options.as_of, "; ".join(f"{name}: {why}" for name, why in altered.items()))
        options = replace(options, as_of="")
    plans = [_plan(old, entry) for entry in planned if not entry.read_in]
    left_out = {**old.skipped, **with_merged(step.tables, skipped)}

    # No read can be undone if the new position contains it. The same is true for the end of each recorded piece.
    kept_reads = [*by_manifest(step, [entry for entry in planned if entry.read_in])]
    pieces = {kept.key: recorded_pieces(step, kept.key) for kept in kept_reads}
    bounds = [] if bound is None else [bound.upper]
    all_pieces = [*pieces.values(), *(one.pieces for one in finished.values())]
    bounds += [old.position_in(one.links[-1].upper) for one in all_pieces if one is not None]

    def fix_position() -> InitialPoint:
        point = record_point(source, options, plans, old.run_id)
        if not all(reaches(point.position, upper) for upper in bounds):
            source.discard(point.identity)
            raise SourceUnavailable(
                "the server has not executed all transactions yet that earlier reads may have seen",
                hint="retry the task",
            )
        return point

    tables_kept = {table.name: table for kept in kept_reads for table in _renewed(step, kept, generation)}
    point = retry("fix a later position", fix_position)
    try:
        # The other tables must be unchanged up to the new position, and no unlogged change may have replaced them.
        recorded = {
            kept.key or generation: _carried(step, kept, pieces[kept.key], generation, point) for kept in kept_reads
        }
        scratch = Storage(old.scratch)
        bases = bases_of(source, plans, point, scratch, past=False)
        point = with_known_of_bases(plans, point, scratch)
        point = with_shards(source, plans, point, _merged_again(planned), old.options.merging)
        tables = {table.name: table for table in point.tables}
        _check_parts(source, [entry for entry in planned if not entry.read_in], tables)
        lake_names = list(dict.fromkeys(entry.table.lake_name for entry in planned))
        laid_out = layouts(lake_names, list(left_out), old.options.lake)
        carried, pieces_of_carried = carried_tables(step, finished, planned, point, laid_out)
        read_live = [entry for entry in planned if entry.is_read and str(entry.table.name) not in carried]
        live = {entry.table.name: entry.table.selection for entry in read_live}
        format = old.options.lake.format
        prepare = lake_format(format, step.sink, old.run_id, source, laid_out).prepare
        try:
            places = prepare([tables[name] for name in live], live)
        except ConfigurationError as error:
            # A table of the lake cannot take the new columns. Without the table, the run may go on.
            if error.where not in altered:
                raise
            raise SchemaChanged(error.message, where=error.where, hint=error.hint) from error
    except (CdcError, _LogOfReadsGone):
        with suppress(CdcError):
            source.discard(point.identity)
        raise
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entries = []
    for entry in planned:
        name = str(entry.table.name)
        if name in carried:
            entry = carried[name]
        elif entry.read_in:
            entry = replace(entry, table=tables_kept[entry.table.name])
        else:
            table = replace(tables[entry.table.name], selection=entry.table.selection)
            entry = replace(entry, table=table, place=places.get(table.copy_name, entry.place))
        entries.append(entry)
    earlier_reads = old.earlier_reads | ({generation: reads} if reads is not None else {})
    earlier_reads = with_carried(earlier_reads, finished, carried)
    used = {entry.read_in for entry in entries}
    earlier_reads = {
        key: replace(reads, pieces=(recorded | pieces_of_carried).get(key, ""))
        for key, reads in earlier_reads.items()
        if key in used
    }
    read_again = {name: why for name, why in altered.items() if name not in carried}
    restart = Restart(
        read_again,
        old.initial_position,
        now,
        step.run.digest,
        {name: why for name, why in altered.items() if name in carried},
    )
    return replace(
        old,
        options=options,
        missed_past=missed_past,
        initial_position=str(point.position),
        identity=point.identity,
        created_at=now,
        tables=tuple(entries),
        skipped=left_out,
        bases=bases,
        earlier_reads=earlier_reads,
        restarts=(*old.restarts, restart),
    )


def _renewed(step: Step, kept: ReadsOfManifest, generation: str) -> Sequence[Table]:
    """Return the tables of ``kept`` with the facts that the next run compares (`refresh_identities`)."""
    try:
        kept.check()
        return refresh_identities(kept)
    except LogGone as error:
        raise _LogOfReadsGone(kept.key or generation, error) from error


def _carried(step: Step, kept: ReadsOfManifest, pieces: KeptPieces | None, generation: str, point: InitialPoint) -> str:
    """Check that the tables of ``kept`` are unchanged up to the new position, and that the log of their changes is
    complete. If pieces of this log were recorded, record the rest of it, too.

    :returns: the name of the record with the pieces. Empty: nothing was recorded.
    """
    try:
        kept.check()
        kept.source.check_continued([entry.table for entry in kept.entries])
        if pieces is None:
            return ""
        return up_to(step, kept.source, kept.identity, kept.position, pieces, kept.entries, point.position)
    except LogGone as error:
        raise _LogOfReadsGone(kept.key or generation, error) from error


def _check_parts(source: Source, entries: Sequence[RunTable], tables: Mapping[TableName, Table]) -> None:
    """Check that the selected part of each table still exists.

    :raises SchemaChanged: a column of a selection was changed, so the table can no longer be copied.
    """
    for entry in entries:
        try:
            check_still(source, replace(tables[entry.table.name], selection=entry.table.selection))
        except PreflightError as error:
            what = "; ".join(f"{problem.where}: {problem.what}" for problem in error.problems)
            hint = "change the options `where` and `columns`, and trigger a new run"
            raise SchemaChanged(what, where=str(entry.table.name), hint=hint) from error


def _merged_again(planned: Sequence[RunTable]) -> set[TableName]:
    """Return the merged tables of which all shards are read again."""
    shards = [(entry.table.shard.merged, entry) for entry in planned if entry.table.shard is not None]
    kept = {merged for merged, entry in shards if entry.read_in or not entry.is_read}
    return {merged for merged, _ in shards} - kept


def _plan(manifest: Manifest, entry: RunTable) -> TablePlan:
    options = entry.table.options
    return TablePlan(
        entry.table.name,
        entry.consistency,
        entry.reason,
        unrepresentable=options.unrepresentable,
        at_upper=entry.at_upper,
        base=entry.base,
        base_position=manifest.bases[entry.base].position if entry.base else "",
        selection=entry.table.selection,
        arrays=options.arrays,
        evolution=Evolution(entry.table.eras, entry.table.columns) if entry.base else None,
        shard=entry.table.shard,
    )


def _only_table(error: PreflightError) -> str | None:
    """Return the table that has all problems of an error; None: there is no such table."""
    names = {problem.table for problem in error.problems}
    return names.pop() or None if len(names) == 1 else None
