"""Determines the part of each table that a run copies, from the options ``where`` and ``columns`` and from the
tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.selection import WHOLE, Selection, selection_of
from airflow_provider_cdc.core.tables.table import Parts, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.sources.planning.patterns import Pattern


def select(
    source: Any,
    plans: Sequence[TablePlan],
    skipped: Sequence[str],
    where: Mapping[str, str] | None,
    columns: Mapping[str, Sequence[str]] | None,
) -> list[TablePlan]:
    """Return the plans, each with the part of its table that is copied.

    :param skipped: names of tables that are left out. A pattern may match them.
    :param where: the condition of each table, by its name or a pattern.
    :param columns: the columns of each table, by its name or a pattern.
    :raises PreflightError: there are problems with the options. The error lists all of them.
    :raises SourceUnavailable: the server cannot be reached.
    """
    if not where and not columns:
        return list(plans)
    problems: list[Problem] = []
    names = [plan.table for plan in plans]
    skipped_tables = [TableName.parse(name) for name in skipped]
    conditions = by_table("where", where or {}, names, skipped_tables, problems)
    chosen = by_table("columns", columns or {}, names, skipped_tables, problems)
    selected_plans = []
    for plan in plans:
        (pattern, condition), (_, column_choice) = (
            conditions.get(plan.table, ("", None)),
            chosen.get(plan.table, ("", None)),
        )
        try:
            selected_plans.append(replace(plan, selection=selection_of(condition, column_choice)))
        except ConfigurationError as error:
            place = f", {error.where}" if error.where else ""
            # A pattern may match many tables, so report the problem of a pattern only once.
            problem = Problem(f"parameter where, {pattern}{place}", error.message, error.hint)
            problems += [problem] if problem not in problems else []
    if problems:
        raise PreflightError(problems)
    selected = [plan for plan in selected_plans if not plan.selection.whole]
    pushed: dict[TableName, str] = {}
    for plan, table_as_read in zip(selected, source.tables_of(selected), strict=True):
        table = replace(table_as_read, selection=plan.selection)
        wrong = _problems(source, table, conditions, chosen)
        pushed[plan.table] = "" if wrong else source.pushed_condition(table)
        problems += wrong
    if problems:
        raise PreflightError(problems)
    # If the selection of a plan is unchanged, the plan's reason already mentions the selection.
    return [
        plan
        if plan.selection == before.selection
        else replace(plan, reason=f"{plan.reason}; {told(plan.selection, pushed[plan.table])}")
        for plan, before in zip(selected_plans, plans, strict=True)
    ]


def requested(where: Mapping[str, str] | None, columns: Mapping[str, Sequence[str]] | None) -> Parts:
    """Return the part of each table that the options request. Options that cannot be parsed are ignored here, because
    `select` rejects them.

    :param where: the condition of each table, by its name or a pattern.
    :param columns: the columns of each table, by its name or a pattern.
    """
    conditions, chosen = _readable(where or {}), _readable(columns or {})

    def part_of(table: TableName) -> Selection:
        condition = next((text for pattern, text in conditions if pattern.matches(table)), None)
        own = next((names for pattern, names in chosen if pattern.matches(table)), None)
        for asked in ((condition, own), (None, own)):
            with suppress(ConfigurationError):
                return selection_of(*asked)
        return WHOLE

    return part_of


def _readable(option: Mapping[str, Any]) -> list[tuple[Pattern, Any]]:
    found = []
    for text, value in option.items():
        with suppress(ConfigurationError):
            found.append((Pattern.parse(text), value))
    return found


def told(selection: Selection, pushed: str) -> str:
    """Return a text for the plan that describes the copied part of the table. The plan's estimates are for the whole
    table.

    :param pushed: the condition that the server itself evaluates.
    """
    rows = ""
    if selection.where is not None:
        by = f"the server sends only rows where {pushed}" if pushed else "the server sends all rows"
        rows = f"only rows where {selection.condition} ({by})"
    columns = f"only the columns {', '.join(selection.columns)} and its key" if selection.columns else ""
    return "; ".join(filter(None, (rows, columns)))


def check_still(source: Any, table: Table) -> None:
    """Check that the planned part of a run's table can still be copied. The check can fail if the type of a column was
    changed.

    :raises PreflightError: the part of the table cannot be copied.
    """
    if table.selection.whole:
        return
    if problems := _problems(source, table, {}, {}):
        raise PreflightError(problems)


def by_table(
    option: str,
    given: Mapping[str, Any],
    names: Sequence[TableName],
    others: Sequence[TableName],
    problems: list[Problem],
) -> dict[TableName, tuple[str, Any]]:
    """Return the option's value for each table, with the pattern from which the value comes."""
    choices: dict[TableName, tuple[str, Any]] = {}
    for text, value in given.items():
        where = f"parameter {option}, {text}"
        try:
            pattern = Pattern.parse(text)
        except ConfigurationError as error:
            problems.append(Problem(where, error.message, error.hint))
            continue
        matching = [name for name in names if pattern.matches(name)]
        if not matching and not any(map(pattern.matches, others)):
            what, hint = "it matches no table of the run", f"the run has {', '.join(map(str, names[:10]))}"
            problems.append(Problem(where, what, hint))
        for name in matching:
            before, same = choices.setdefault(name, (text, value))
            if _plain(same) != _plain(value):
                what = f"{name} is also matched by {before}, which has a different value"
                problems.append(Problem(where, what, "change the patterns so that each table matches only one"))
    return choices


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else sorted({*value})


def _problems(
    source: Any,
    table: Table,
    conditions: Mapping[TableName, tuple[str, Any]],
    chosen: Mapping[TableName, tuple[str, Any]],
) -> list[Problem]:
    """Return the problems of the requested part of a table."""
    # This module is imported only here, because it imports Arrow, which is slow and not needed for whole tables.
    from airflow_provider_cdc.core.filters.literals import problems, unknown_column
    from airflow_provider_cdc.core.filters.parser import place_in

    all_problems = []
    names = [column.name for column in table.columns]
    for name in table.selection.columns:
        if name not in names:
            pattern = chosen.get(table.name, (str(table.name), None))[0]
            all_problems.append(Problem(f"{table.name}, parameter columns, {pattern}", *unknown_column(name, names)))
    if table.selection.where is not None:
        pattern, text = conditions.get(table.name, (str(table.name), table.selection.condition))

        def place(at: int) -> str:
            return f"{table.name}, parameter where, {pattern}, {place_in(text, at)}"

        schema = source.arrow_schema(table)
        all_problems += problems(table.selection.where, schema, source.comparable_texts(table), place)
    return all_problems
