"""Decides which tables of a run are rolled forward from existing copies. For each other table, the module returns the
reason why the table is read in full."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.copies.plan_checks import feeds_gapless, with_feed_gaps
from airflow_provider_cdc.core.copies.removal import check_not_removed, damage_of
from airflow_provider_cdc.core.options.run import CHANGES, FULL, StepOptions
from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.run.commit_record import Decision, base_of, decision_of, published_run
from airflow_provider_cdc.core.run.manifest import Base, InitialPoint, RunTable, TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import difference
from airflow_provider_cdc.core.run.table_files import base_schema
from airflow_provider_cdc.core.storage.filesystems import convert_store_errors
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import KNOWN_AT_POSITION, Evolution, Table, TableName
from airflow_provider_cdc.errors import (
    CdcError,
    ManifestError,
    PreflightError,
    Problem,
    SchemaChanged,
    TerminalError,
)
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sources.api.source import Source

_ANEW = "clear the task `preflight` and all tasks after it"
_GAP = (
    "run once without the option changes, with tables = [{}] and all other options as they are: these tables are then "
    "read in full, and their changes begin at that copy. Do not leave out any of them, or the next run stops again. "
    "Do not add others, or their changes have a gap. Or set `On.feed_gap` to `begin_anew`: the run then does this for "
    "these tables itself, and reports it"
)


@dataclass(frozen=True)
class _Candidate:
    """A copy from which a table might be rolled forward."""

    run: Run
    table: Table


class _NotFit(Exception):
    """The reason why a copy cannot be rolled forward."""


class _NoCopy(_NotFit):
    """The table has no copy."""


def choose(
    source: Source, copies: Sink, scratch: str, plans: Sequence[TablePlan], options: StepOptions
) -> list[TablePlan]:
    """Return the plans, each with the base of its table, or with the reason why the table has no base.

    :param scratch: URI of the folder that holds the folders of runs.
    :raises PreflightError: ``refresh`` is `CHANGES`, but some tables would have to be read in full. Or the changes of a
        table were requested, but cannot be published.
    """
    if options.changes:
        _check_changes(plans, options)
    if options.refresh == FULL:
        return list(plans)
    runs, to = Storage(scratch), as_of.parse(options.as_of)
    # at_upper is the same for all tables of a run.
    keys_only = any(plan.at_upper for plan in plans)
    refused: dict[TableName, str] = {}
    # A change feed has no entries for rows that a schema change altered, so a table with a feed is not carried over it.
    evolutions: dict[TableName, Evolution] | None = None if feeds_gapless(options) else {}
    new: set[TableName] = set()
    fit: dict[str, dict[TableName, _Candidate]] = {}
    runs_read: dict[str, tuple[Run, Decision]] = {}
    for plan in plans:
        try:
            candidates = _candidate(source, copies, runs, plan, runs_read)
            fit.setdefault(candidates.run.run_id, {})[plan.table] = candidates
        except (_NotFit, ManifestError) as error:
            refused[plan.table] = str(getattr(error, "message", error))
            if isinstance(error, _NoCopy):
                new.add(plan.table)
    for candidates_of_run in fit.values():
        run = next(iter(candidates_of_run.values())).run
        tables = [candidate.table for candidate in candidates_of_run.values()]
        try:
            since = run.manifest.identity, run.position
            refused |= source.refusals_since(
                *since, tables, to, options, keys_only=keys_only, bases=len(fit), evolutions=evolutions
            )
            refused |= _altered_shards(plans, evolutions)
        except TerminalError as error:
            if isinstance(error, PreflightError) and (options.changes or options.refresh == CHANGES):
                # The run's position is unavailable. The cause is not the copy of a table, so reading the tables in full
                # would not help.
                raise
            refused |= dict.fromkeys(candidates_of_run, _reason(error))
    if refused and options.refresh == CHANGES:
        what = "copy cannot be rolled forward", "copies cannot be rolled forward"
        raise PreflightError(
            _by_cause(refused, what, "set `refresh` to `auto`: the run then reads such tables in full")
        )
    if feeds_gapless(options) and (gaps := {table: why for table, why in refused.items() if table not in new}):
        what = ("changes since the last copy cannot be published",) * 2
        raise PreflightError(_by_cause(gaps, what, _GAP.format(json.dumps(sorted(map(str, gaps)))[1:-1])))
    base = {
        table: candidates.run
        for candidates_of_run in fit.values()
        for table, candidates in candidates_of_run.items()
        if table not in refused
    }
    chosen = [
        _rolled(plan, base[plan.table], (evolutions or {}).get(plan.table))
        if plan.table in base
        else replace(plan, reason=f"read in full: {refused[plan.table]}; {plan.reason}")
        for plan in plans
    ]
    return with_feed_gaps(chosen, copies, refused, new, options)


def _altered_shards(
    plans: Sequence[TablePlan], evolutions: Mapping[TableName, Evolution] | None
) -> dict[TableName, str]:
    """Return the shards whose columns were altered since the last copy. They are read in full, because all shards of a
    merged table have the same columns."""
    return {
        plan.table: f"it was altered since the copy: {evolutions[plan.table].eras[0].statement}"
        for plan in plans
        # On PostgreSQL, the catalog also shows changes that alter no column. They have no eras.
        if plan.shard is not None and evolutions and plan.table in evolutions and evolutions[plan.table].eras
    }


def _by_cause(refused: Mapping[TableName, str], what: tuple[str, str], hint: str) -> list[Problem]:
    """Return one problem for each cause. A cause may apply to many tables.

    :param what: two descriptions of the action that is impossible: for one table, and for several tables.
    """
    tables: dict[str, list[str]] = {}
    for table, cause in refused.items():
        tables.setdefault(cause, []).append(str(table))
    return [
        Problem(
            ", ".join(sorted(names)), f"{'its ' + what[0] if len(names) == 1 else 'their ' + what[1]}: {cause}", hint
        )
        for cause, names in tables.items()
    ]


def _check_changes(plans: Sequence[TablePlan], options: StepOptions) -> None:
    """Check that row changes can be published with these plans and options.

    :raises PreflightError: the changes cannot be published.
    """
    if options.refresh == FULL:
        what = "changes since the last copy are published only with copies that are rolled forward"
        raise PreflightError(
            [
                Problem(
                    "parameter changes (Refresh.changes)",
                    what,
                    "set `refresh` to `auto` or `changes`, or remove `Refresh.changes`",
                )
            ]
        )
    if upper := [plan.table for plan in plans if plan.at_upper]:
        what = (
            "the run reads rows again (`Read.consistency` = `again`), so the log has only the keys of the changed rows"
        )
        hint = (
            "ALTER TABLE … REPLICA IDENTITY FULL for every table of the run that lacks it, copy views in separate "
            "runs, or omit the option changes"
        )
        raise PreflightError(
            [Problem("parameter changes (Refresh.changes)", f"{what}: {', '.join(map(str, upper))}", hint)]
        )


def _rolled(plan: TablePlan, base: Run, evolution: Evolution | None) -> TablePlan:
    reason = f"the copy of run {base.run_id} is rolled forward"
    if evolution is not None and evolution.eras:
        reason += f", over {'; '.join(f'{era.statement} ({era.begins})' for era in evolution.eras)}"
    if plan.at_upper:
        reason += ": rows that the log shows as touched since are read again, the last of them in a snapshot of seconds"
    return replace(plan, base=base.run_id, base_position=base.position_text, reason=reason, evolution=evolution)


def with_changes_here(
    source: Source, plans: Sequence[TablePlan], scratch: Storage, options: StepOptions
) -> Sequence[TablePlan]:
    """Return the plans with the schema changes as the log of the present server has them.

    `preflight` looked up their places. If another server took over since the base or since `preflight`, the places may
    belong to the log of the earlier server. So they are looked up again.

    :raises SchemaChanged: a table can no longer be rolled forward.
    """
    found: dict[TableName, Evolution] = {}
    evolved = [plan for plan in plans if plan.evolution is not None and plan.evolution.eras]
    for run_id in sorted({plan.base for plan in evolved}):
        run = published_run(scratch, run_id)
        since = run.manifest.identity, run.position
        if source.take_over(*since, ()) == run.manifest.identity:
            continue
        tables = [_base_table(run, plan.table) for plan in evolved if plan.base == run_id]
        here: dict[TableName, Evolution] = {}
        keys_only = any(plan.at_upper for plan in plans)
        to = as_of.parse(options.as_of)
        for name, why in source.refusals_since(
            *since, tables, to, options, keys_only=keys_only, evolutions=here
        ).items():
            raise SchemaChanged(why, where=str(name), hint=_ANEW)
        found |= {table.name: here.get(table.name, Evolution((), table.columns)) for table in tables}
    return [replace(plan, evolution=found.get(plan.table, plan.evolution)) for plan in plans]


def bases_of(
    source: Source, plans: Sequence[TablePlan], initial: InitialPoint, scratch: Storage, *, past: bool
) -> dict[str, Base]:
    """Return the bases of the run's tables, by the id of the run that made the base. A base refers to earlier copies
    that are rolled forward.

    :param past: whether the run's position is in the past, so that the tables were not recorded at that position.
    :raises PreflightError: a copy is exact at a position after the run's position.
    :raises SourceReplaced: a server took over that does not continue the copy.
    :raises SchemaChanged: a table's definition has changed since its copy.
    :raises SourceUnavailable: the server cannot be reached.
    :raises ManifestError: the records of the run that made a copy no longer exist.
    """
    now = {table.name: table for table in initial.tables}
    bases = {}
    for run_id in sorted({plan.base for plan in plans if plan.base}):
        run = published_run(scratch, run_id)
        base = bases[run_id] = base_of(run)
        if not as_of.reaches(initial.position, run.position):
            # If a server took over that lost transactions of the copies, this is the reason.
            source.take_over(base.identity, run.position, ())
            where, what = f"run {run_id}", "its copies, which are to be rolled forward, are exact at a later position"
            raise PreflightError([Problem(where, what, _ANEW)])
        tables = []
        for plan in plans:
            if plan.base != run_id:
                continue
            tables.append(table := _base_table(run, plan.table))
            expected = replace(table, columns=plan.evolution.columns) if plan.evolution is not None else table
            if plan.base_position != base.position or not _alike(expected, now[plan.table]):
                what = "the table or its last copy changed after the task `preflight` ran"
                raise SchemaChanged(what, where=str(plan.table), hint=_ANEW)
        # Run these checks after the position is fixed, so that they also find unlogged changes before the position.
        recorded = [] if past else [now[table.name] for table in tables]
        bases[run_id] = replace(base, identity=source.take_over(base.identity, run.position, tables))
        source.check_replaced(base.identity, tables, initial.identity, recorded)
    return bases


def with_known_of_bases(plans: Sequence[TablePlan], initial: InitialPoint, scratch: Storage) -> InitialPoint:
    """Return the initial point with changed tables: each table that is rolled forward gets the `KNOWN_AT_POSITION` of
    its base, and its schema changes since the base.

    The window of such a table begins at the base. Only the facts in the base's record were known at the beginning of
    the window, and all of these facts still hold.
    """
    runs = {run_id: published_run(scratch, run_id) for run_id in {plan.base for plan in plans if plan.base}}
    bases = {plan.table: _base_table(runs[plan.base], plan.table) for plan in plans if plan.base}
    # What was known on another server need not hold on this one.
    own = {
        plan.table
        for plan in plans
        if plan.base and runs[plan.base].manifest.identity.server == initial.identity.server
    }
    evolutions = {plan.table: plan.evolution for plan in plans if plan.evolution is not None}

    def known(table: Table) -> Table:
        base = bases.get(table.name)
        if base is None:
            return table
        known_then = base.details.get(KNOWN_AT_POSITION, []) if table.name in own else []
        details = {**table.details, KNOWN_AT_POSITION: known_then}
        eras = evolutions[table.name].eras if table.name in evolutions else ()
        return replace(table, details=details, eras=eras)

    return replace(initial, tables=tuple(map(known, initial.tables)))


def _candidate(
    source: Source, copies: Sink, scratch: Storage, plan: TablePlan, known: dict[str, tuple[Run, Decision]]
) -> _Candidate:
    if plan.at_upper and plan.consistency != "again":
        raise _NotFit("the log does not have the keys of its changed rows")
    head = copies.latest(plan.copy_name)
    if head is None:
        raise _NoCopy("there is no copy yet")
    if head.run_id not in known:
        run = published_run(scratch, head.run_id)
        known[head.run_id] = run, decision_of(run)
    run, decision = known[head.run_id]
    name = str(plan.table)
    if run.manifest.kind != source.kind or run.position_text != head.position:
        raise _NotFit("the record of the last copy does not match the run that made it")
    if name not in decision.files and plan.shard is not None:
        raise _NotFit(f"it was no shard of {plan.shard.merged} in the last copy")
    if name not in decision.files:
        raise _NotFit("the last copy is incomplete: the commit of its run does not list it")
    if what := copies.foreign_change(plan.copy_name):
        raise _NotFit(what)
    if what := damage_of(run.folder, plan.table):
        raise _NotFit(f"the last copy is damaged: {what}")
    # Reject a removed copy now. Otherwise, a later step of this run and of every following run would reject the copy.
    check_not_removed(run, [plan.copy_name])
    table = _base_table(run, plan.table)
    if table.shard != plan.shard:
        raise _NotFit("the last copy was merged in another way, or had other columns")
    if table.selection != plan.selection:
        raise _NotFit("the last copy is of another part of the table")
    if table.options.unrepresentable != plan.unrepresentable:
        raise _NotFit(f"the last copy was made with `On.unrepresentable` = `{table.options.unrepresentable}`")
    if table.options.arrays != plan.arrays:
        raise _NotFit(f"the last copy was made with arrays = {table.options.arrays}")
    schema = base_schema(_entry(run, plan.table).place, table, source.arrow_schema(table))
    _check_files(copies.copy_folder(run.run_id, plan.copy_name), decision, name, schema)
    return _Candidate(run, table)


def _check_files(folder: Storage, decision: Decision, name: str, schema: pa.Schema) -> None:
    files = decision.files_of(name)
    sizes = folder.sizes()
    wrong = [part.name for file in files for part in file.parts if sizes.get(part.name) != part.bytes]
    if wrong:
        raise _NotFit(f"files of the last copy are missing or have other sizes: {', '.join(wrong[:3])}")
    try:
        with (
            convert_store_errors(folder.uri_of(files[0].name)),
            folder.filesystem.open_input_file(folder.path(files[0].name)) as file,
        ):
            file_schema = pq.read_schema(file)
    except (CdcError, pa.ArrowException) as error:
        # Arrow raises the same error for a damaged footer and for a store that does not answer.
        if what := difference(folder, files[0].name, files[0]):
            raise _NotFit(f"the file {files[0].name} of the last copy is damaged: {what}") from error
        raise
    if not file_schema.equals(schema):
        raise _NotFit("the types of its published columns differ from those in the last copy")


def _entry(run: Run, table: TableName) -> RunTable:
    for entry in run.manifest.tables:
        if entry.table.name == table:
            return entry
    raise ManifestError(f"the run has no table {table}", where=run.folder.uri, hint="read the table in full")


def _base_table(run: Run, name: TableName) -> Table:
    """Return a table of a base copy, without the schema changes over which the copy itself was rolled forward."""
    return replace(_entry(run, name).table, eras=())


def _alike(before: Table, now: Table) -> bool:
    return (
        before.same_shape(now)
        and before.key_index == now.key_index
        and before.options.unrepresentable == now.options.unrepresentable
        and before.options.arrays == now.options.arrays
    )


def _reason(error: CdcError) -> str:
    return f"{error.where}: {error.message}" if error.where else error.message
