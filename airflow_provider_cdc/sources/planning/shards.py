"""Determines the shards of merged tables, from the option ``merge`` and from the tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_cdc.core.copies.plan_checks import VANISHED_HINT, Heads, vanished
from airflow_provider_cdc.core.options.lake import BY_NAME, ORIGIN_IN_KEY, MergeOptions
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import ORIGIN, Shard, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.sources.planning.patterns import Pattern
from airflow_provider_cdc.sources.planning.selections import by_table
from airflow_provider_cdc.sources.planning.survey import Survey

_MERGE = "parameter merge"
_log = logging.getLogger(__name__)


def with_shards(source: Any, found: Survey, options: StepOptions, conn_id: str) -> Survey:
    """Return the survey, in which the plan of each shard names its merged table.

    If a shard cannot be copied or merged and the run leaves out tables (``on_table_error``), all shards of its merged
    table are left out.

    :param conn_id: the connection to the source.
    :raises PreflightError: there are problems. The error lists all of them.
    :raises SourceUnavailable: the server cannot be reached.
    """
    merging = options.merging
    if not merging.merge:
        return found
    merged = _merged_of(found, merging)
    known = {TableName.parse(name): why for name, why in found.merged.items()}
    failed = {**_skipped_shards(found, merged), **known}
    of_one: dict[TableName, list[TablePlan]] = {}
    for plan in found.plans:
        if plan.table in merged:
            of_one.setdefault(merged[plan.table], []).append(plan)
    problems = _option_problems(options, found.plans, merged)
    shards: dict[TableName, Shard] = {}
    for name, plans in of_one.items():
        if name in failed:
            continue
        own, own_problems = _shards_of(source, name, plans, merging, conn_id)
        shards |= own
        if own_problems and options.skips:
            failed[name] = "; ".join(f"{problem.where}: {problem.what}" for problem in own_problems)
        else:
            problems += own_problems
    if problems:
        raise PreflightError(problems)
    plans = [_planned(plan, shards.get(plan.table)) for plan in found.plans]
    return without_merged(replace(found, plans=plans), merged, failed)


def without_merged(found: Survey, merged: Mapping[TableName, TableName], failed: Mapping[TableName, str]) -> Survey:
    """Return the survey without the shards of the merged tables that cannot be published.

    :param merged: the merged table of each shard.
    :param failed: why these merged tables cannot be published.
    :raises PreflightError: no table is left.
    """
    if not failed:
        return found
    skipped: dict[str, str] = {}
    for plan in found.plans:
        name = merged.get(plan.table)
        if name is not None and name in failed:
            skipped[str(plan.table)] = f"it is a shard of {name}, which is left out: {failed[name]}"
    plans = [plan for plan in found.plans if merged.get(plan.table) not in failed]
    if not plans:
        hint = "correct the problems, or leave the tables out"
        raise PreflightError([Problem(str(name), why, hint) for name, why in failed.items()])
    return Survey(plans, {**found.skipped, **skipped}, found.merged | {str(name): why for name, why in failed.items()})


def without_vanished(heads: Heads, found: Survey, options: StepOptions) -> Survey:
    """Return the survey without the merged tables whose latest copy has shards that the run does not copy.

    :raises PreflightError: there are such tables, and the run does not leave out tables.
    :raises ManifestError: the record of a copy is damaged.
    """
    confirmed = options.merging.vanished_shards or ()
    copied = {str(plan.table) for plan in found.plans if plan.shard is not None}
    for name in sorted({*confirmed} & copied):
        _log.warning(
            "%s is in Merge.vanished_shards, but it is copied. Take it out of the option: until then, it can vanish "
            "without "
            "notice.",
            name,
        )
    failed = vanished(heads, found.plans, confirmed)
    if failed and not options.skips:
        raise PreflightError([Problem(f"{_MERGE}, {name}", why, VANISHED_HINT) for name, why in failed.items()])
    merged = {plan.table: plan.shard.merged for plan in found.plans if plan.shard is not None}
    return without_merged(found, merged, failed)


def lake_names(plans: Sequence[TablePlan]) -> list[TableName]:
    """Return the names of the tables of the lake in which the tables are published, each once."""
    return list(dict.fromkeys(plan.lake_name for plan in plans))


def _merged_of(found: Survey, merging: MergeOptions) -> dict[TableName, TableName]:
    """Return the merged table of each shard. The shards include tables that the run leaves out.

    :raises PreflightError: a pattern is malformed, matches no table, or matches tables of another pattern.
    """
    problems: list[Problem] = []
    patterns: dict[str, str] = {}
    for name, own in (merging.merge or {}).items():
        for pattern in own:
            if patterns.setdefault(pattern, name) != name:
                hint = "name each shard in one merged table only"
                problems.append(Problem(_MERGE, f"{pattern} is in {patterns[pattern]} and in {name}", hint))
    names = {name: _name(name, problems) for name in merging.merge or {}}
    skipped = [TableName.parse(name) for name in found.skipped]
    tables = [*(plan.table for plan in found.plans), *skipped]
    chosen = by_table("merge", patterns, tables, [], problems)
    if problems:
        raise PreflightError(problems)
    return {table: merged for table, (_, name) in chosen.items() if (merged := names[name]) is not None}


def _name(text: str, problems: list[Problem]) -> TableName | None:
    """Return the name of a merged table; None: it is not a name."""
    try:
        name = Pattern.parse(text).text
        if "*" in str(name) or text.startswith("!") or "." in name.schema or "/" in str(name):
            raise ConfigurationError(f"{text!r} does not name one table", hint="write it as schema.table")
    except ConfigurationError as error:
        problems.append(Problem(f"{_MERGE}, {text}", error.message, error.hint))
        return None
    return name


def _skipped_shards(found: Survey, merged: Mapping[TableName, TableName]) -> dict[TableName, str]:
    """Return the merged tables with a shard that the run leaves out, each with the reason."""
    failed: dict[TableName, str] = {}
    planned = {plan.table for plan in found.plans}
    for name, why in sorted(found.skipped.items()):
        table = TableName.parse(name)
        if table in merged and table not in planned:
            failed.setdefault(merged[table], f"its shard {name} cannot be copied: {why}")
    return failed


def _option_problems(
    options: StepOptions, plans: Sequence[TablePlan], merged: Mapping[TableName, TableName]
) -> list[Problem]:
    problems = []
    if options.merging.on_collision == ORIGIN_IN_KEY and not options.merging.origin_columns:
        what = "the origin can be part of the key only if the rows have it"
        problems.append(Problem("parameter on_collision (On.collision)", what, "set `Merge.origin_columns` to true"))
    if options.changes:
        what = "changes are not published for merged tables"
        problems.append(
            Problem(
                "parameter changes (Refresh.changes)", what, "copy the merged tables in a run without `Refresh.changes`"
            )
        )
    names = {*merged.values()}
    for plan in plans:
        if plan.table not in merged and plan.table in names:
            what = "the run also copies a table with this name, which is not one of its shards"
            hint = "give the merged table another name, or leave the table out"
            problems.append(Problem(f"{_MERGE}, {plan.table}", what, hint))
    return problems


def _shards_of(
    source: Any, name: TableName, plans: Sequence[TablePlan], merging: MergeOptions, conn_id: str
) -> tuple[dict[TableName, Shard], list[Problem]]:
    """Return the shards of one merged table, with the columns that they share, or the problems."""
    # This module is imported only here, because it imports Arrow, which is slow and not needed without merged tables.
    from airflow_provider_cdc.core.tables.published import columns_of, differences, shard_of

    where = f"{_MERGE}, {name}"
    plans = sorted(plans, key=lambda plan: plan.table)
    selections = {(plan.selection.condition, plan.selection.columns) for plan in plans}
    if len(selections) > 1:
        listed = "; ".join(f"{plan.table}: {plan.selection}" for plan in plans[:5])
        hint = "give all shards the same `Table.where` and `Table.columns`"
        return {}, [Problem(where, f"different parts of its shards would be copied ({listed})", hint)]
    tables = [
        replace(table, selection=plan.selection, options=plan.options)
        for table, plan in zip(source.tables_of(plans), plans, strict=True)
    ]
    if keyless := [str(table.name) for table in tables if table.keyless]:
        what = f"{', '.join(keyless[:5])}: without a key, rows of different shards cannot be told apart"
        return {}, [Problem(where, what, "add a primary key to the tables, or leave them out")]
    columns = [columns_of(table, source.arrow_schema(table)) for table in tables]
    first = tables[0]
    spec = shard_of(name, tables, columns, by_name=merging.column_order == BY_NAME)
    problems = [
        Problem(where, f"{table.name}: {what} (compared with {first.name})", "make the tables alike, or leave it out")
        for table, own in zip(tables, columns, strict=True)
        for what in differences(own, table.key, spec)
    ]
    if merging.origin_columns:
        taken = [column.name for column in spec.columns if column.name.casefold() in ORIGIN]
        problems += [
            Problem(where, f"the shards have a column {column}", "leave the column out, or `Merge.origin_columns`")
            for column in taken
        ]
    return {table.name: _of(spec, table, merging, conn_id) for table in tables}, problems


def _of(spec: Shard, table: Table, merging: MergeOptions, conn_id: str) -> Shard:
    if not merging.origin_columns:
        return spec
    origin = dict(zip(ORIGIN, (conn_id, table.name.schema, table.name.name), strict=True))
    return replace(spec, origin=origin, origin_in_key=merging.on_collision == ORIGIN_IN_KEY)


def _planned(plan: TablePlan, shard: Shard | None) -> TablePlan:
    return plan if shard is None else replace(plan, shard=shard)
