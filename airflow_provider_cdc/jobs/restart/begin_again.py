"""Gives a run a new manifest with a later initial position, after tables were altered.

The altered tables are read again under the new manifest. Finished reads of other tables still count. They began at an
earlier position L and ended before the new initial position X. The row of a key at X is the row after the last change
of this key in (L, X]. If there is no such change, it is the row that was read. So the other tables are only rolled
forward by the log. See ``docs/design/restarts.md`` for the proof.

A run has only one valid manifest. The earlier manifest is abandoned before the new one is written (`core.run.run`), so
neither a slow attempt nor a part of a table from before the change can be published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_cdc.core.copies.base_selection import bases_of, with_known_of_bases
from airflow_provider_cdc.core.positions.as_of import reaches
from airflow_provider_cdc.core.run.initial_position import Discards
from airflow_provider_cdc.core.run.manifest import EarlierReads, Manifest, Restart, RunTable
from airflow_provider_cdc.core.run.plan import InitialPoint, MissedPast, TablePlan
from airflow_provider_cdc.core.run.results import Nulled
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.shards.copy_tables import with_merged, with_siblings
from airflow_provider_cdc.core.shards.fit import with_shards
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import CdcError, ConfigurationError, PreflightError, SchemaChanged, SourceUnavailable
from airflow_provider_cdc.jobs.restart.altered import altered_table, described
from airflow_provider_cdc.jobs.restart.sources_of_reads import by_manifest
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.retry import persist
from airflow_provider_cdc.jobs.runtime.step import BegunAgain, Step
from airflow_provider_cdc.jobs.snapshot.table_files import FILES, TableFiles
from airflow_provider_cdc.jobs.spool.spooler import end_spool, has_let_log_go
from airflow_provider_cdc.sinks.preparation import lake_format
from airflow_provider_cdc.sources.api.calls import record_point
from airflow_provider_cdc.sources.api.optional_capabilities import ContinuesReads
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.planning.layouts import layouts
from airflow_provider_cdc.sources.planning.selections import check_still


def begin_again(
    step: Step,
    altered: Mapping[str, str],
    read: Mapping[str, TableFiles],
    bound: UpperBound | None,
    nulled: Nulled,
) -> BegunAgain:
    """Give the run of ``step`` a new manifest, and return the exception that ends the work under the old manifest.

    :param altered: the tables to read again, by name, each with the reason.
    :param read: the files of the tables that were read in full under the old manifest.
    :param bound: the bound of these reads; None: ``read`` is empty.
    :param nulled: the number of values that these reads turned into null.
    :raises SchemaChanged: an altered table can no longer be copied, or no longer exists.
    :raises PreflightError: an altered table can no longer be copied.
    """
    run, altered = step.run, dict(altered)
    if _overtaken(run):
        return BegunAgain()
    for name, why in altered.items():
        say(f"WARNING: {name} is read again, and the run moves to a later position: {why}")
    end_spool(step)
    if read and has_let_log_go(step):
        say("all tables are read again, because the source has removed the log since the run began (`spool`)")
        read = {}
    # No position is the one from which all rows of such a table could be brought forward.
    read = {name: table_files for name, table_files in read.items() if not table_files.units}
    reads: EarlierReads | None = None
    if bound is not None and read:
        record = records.write_named(step.folder, FILES, dict(read))
        reads = EarlierReads(step.manifest.initial_position, step.manifest.identity, record, bound.incarnation, nulled)
    skipped: dict[str, str] = {}
    while True:
        entries = [entry for entry in step.tables if str(entry.table.name) not in skipped]
        planned = [_entry(step, entry, altered, read, str(run.generation)) for entry in entries]
        try:
            manifest = _manifest(step, planned, altered, skipped, reads, bound)
            break
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
                skipped = with_siblings(step.tables, {**skipped, table_name: error.message})
                if len(skipped) == len(step.tables):
                    raise
                say(f"WARNING: {table_name} is SKIPPED and will not be published: {error.message}")
            else:
                raise
    following = run if _overtaken(run) else Run.create(manifest, instead_of=run)
    identities = [following.manifest.identity, *(kept.identity for kept in following.manifest.earlier_reads.values())]
    if manifest.identity not in identities and isinstance(step.source, Discards):
        # A concurrent attempt has written another manifest, or has finished a step without this one.
        with suppress(CdcError):
            step.source.discard(manifest.identity)
    return BegunAgain()


def _overtaken(run: Run) -> bool:
    """Return whether a concurrent attempt has finished a step under the present manifest meanwhile, or has published
    the run. Its reads had ended before the table was altered, or before this attempt saw the change. The run goes on
    with them: a new manifest would take them away from the attempt of the next step, which could not go on."""
    finished = {*run.steps}
    run.refresh()
    return bool(run.steps.keys() - finished) or run.committed


def _entry(
    step: Step, entry: RunTable, altered: Mapping[str, str], read: Mapping[str, TableFiles], generation: str
) -> RunTable:
    """Return the table with the way in which it comes to the new position."""
    name = str(entry.table.name)
    if name in altered:
        return replace(entry, base="", read_in="", reason=f"read again: {altered[name]}; {entry.reason}")
    if not entry.live or name not in read:
        return entry
    assert isinstance(step.source, ContinuesReads)
    if why := step.source.stays(entry.table):
        say(f"{name} is read again, too, because {why}")
        return entry
    return replace(entry, read_in=generation)


def _manifest(
    step: Step,
    planned: list[RunTable],
    altered: Mapping[str, str],
    skipped: Mapping[str, str],
    reads: EarlierReads | None,
    bound: UpperBound | None,
) -> Manifest:
    old, source, generation = step.manifest, step.source, str(step.run.generation)
    options, missed_past = old.options, old.missed_past
    if options.as_of:
        missed_past = MissedPast(options.as_of, "; ".join(f"{name}: {why}" for name, why in altered.items()))
        options = replace(options, as_of="")
    plans = [_plan(old, entry) for entry in planned if not entry.read_in]

    def fix_position() -> InitialPoint:
        point = record_point(source, options, plans, old.run_id)
        if bound is not None and not reaches(point.position, bound.upper):
            if isinstance(source, Discards):
                source.discard(point.identity)
            raise SourceUnavailable(
                "the server has not executed all transactions yet that earlier reads may have seen",
                hint="retry the task",
            )
        return point

    point = persist("fix a later position", fix_position)
    try:
        # The other tables must be unchanged up to the new position, and no unlogged change may have replaced them.
        for kept in by_manifest(step, [entry for entry in planned if entry.read_in]):
            assert isinstance(kept.source, ContinuesReads)
            kept.check(old.kind)
            kept.source.check_continued([entry.table for entry in kept.entries])
        scratch = Storage(old.scratch)
        bases = bases_of(source, plans, point, scratch, past=False)
        point = with_shards(source, plans, with_known_of_bases(plans, point, scratch))
        tables = {table.name: table for table in point.tables}
        _check_parts(source, [entry for entry in planned if not entry.read_in], tables)
        live = {entry.table.name: entry.table.selection for entry in planned if entry.live}
        format = old.options.lake.format
        laid_out = layouts(list(dict.fromkeys(entry.table.lake_name for entry in planned)), [], old.options.lake)
        prepare = lake_format(format, step.sink, old.run_id, source, laid_out).prepare
        try:
            places = prepare([tables[name] for name in live], live)
        except ConfigurationError as error:
            # A table of the lake cannot take the new columns. Without the table, the run may go on.
            if error.where not in altered:
                raise
            raise SchemaChanged(error.message, where=error.where, hint=error.hint) from error
    except CdcError:
        if isinstance(source, Discards):
            with suppress(CdcError):
                source.discard(point.identity)
        raise
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entries = []
    for entry in planned:
        if not entry.read_in:
            table = replace(tables[entry.table.name], selection=entry.table.selection)
            entry = replace(entry, table=table, place=places.get(table.copy_name, entry.place))
        entries.append(entry)
    earlier_reads = old.earlier_reads | ({generation: reads} if reads is not None else {})
    used = {entry.read_in for entry in entries}
    return replace(
        old,
        options=options,
        missed_past=missed_past,
        initial_position=str(point.position),
        identity=dict(point.identity),
        created_at=now,
        tables=tuple(entries),
        skipped={**old.skipped, **with_merged(step.tables, skipped)},
        bases=bases,
        earlier_reads={key: value for key, value in earlier_reads.items() if key in used},
        restarts=(*old.restarts, Restart(dict(altered), old.initial_position, now, step.run.digest)),
    )


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
