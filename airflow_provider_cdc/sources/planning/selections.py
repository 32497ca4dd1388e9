"""Determines the part of each table that a run copies, from the options ``where`` and ``columns`` and from the
tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_cdc.core.filters.parser import AND, COMPARISONS, CONSTANT, IN, IS_NULL, NOT, OR, Literal, Term
from airflow_provider_cdc.core.run.manifest import TablePlan
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
            problem = Problem(f"parameter where (Table.where), {pattern}{place}", error.message, error.hint)
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
        else replace(plan, reason=f"{plan.reason}; {describe_selection(plan.selection, pushed[plan.table])}")
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


def describe_selection(selection: Selection, pushed: str) -> str:
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
    from airflow_provider_cdc.core.filters.evaluator import problems, unknown_column
    from airflow_provider_cdc.core.filters.parser import place_in

    all_problems = []
    names = [column.name for column in table.columns]
    for name in table.selection.columns:
        if name not in names:
            pattern = chosen.get(table.name, (str(table.name), None))[0]
            all_problems.append(
                Problem(f"{table.name}, parameter columns (Table.columns), {pattern}", *unknown_column(name, names))
            )
    if table.selection.where is not None:
        pattern, text = conditions.get(table.name, (str(table.name), table.selection.condition))

        def place(at: int) -> str:
            return f"{table.name}, parameter where (Table.where), {pattern}, {place_in(text, at)}"

        schema = source.arrow_schema(table)
        all_problems += problems(table.selection.where, schema, source.comparable_texts(table), place)
    return all_problems


# The part of a condition that the server itself evaluates, so that fewer rows are sent.
#
# This only saves work. For every row that the server sends, `core.filters` decides whether the row fulfils the
# condition. So the server must send all rows for which the condition is true, and may also send other rows. Comparisons
# whose result may differ between the server and Arrow (text, because of collations; floating point) are not pushed
# down.


@dataclass(frozen=True)
class Pushable:
    """A column that the server compares in the same way as Arrow.

    ``name`` is the quoted name. ``spelt`` is a function that returns a literal in SQL, or None if this literal is not
    pushed down. ``odd`` is true if the column may have values that no Arrow type holds. Such values count as null in
    this package, but not on the server. ``nullable`` is true if the column may have nulls. ``schema`` is the schema of
    the column's operators (PostgreSQL), or empty if no schema is necessary.
    """

    name: str
    spelt: Callable[[Literal], str | None]
    odd: bool
    nullable: bool
    schema: str = ""

    def compared(self, sign: str, values: Sequence[str]) -> str:
        """Return the SQL condition that compares the column with one value, or with several values (`IN`)."""
        listed = ", ".join(values)
        if not self.schema:
            return f"{self.name} IN ({listed})" if sign == IN else f"{self.name} {sign} {listed}"
        if sign == IN:
            return f"{self.name} OPERATOR({self.schema}.=) ANY (ARRAY[{listed}])"
        return f"{self.name} OPERATOR({self.schema}.{sign}) {listed}"


Columns = Callable[[str], Pushable | None]
"""A function that returns the column with the given name, or None if comparisons of this column are not pushed down."""


def pushed(term: Term | None, columns: Columns) -> str:
    """Return an SQL condition that is true for every row for which ``term`` is true. Empty: no part of ``term`` can be
    pushed down."""
    return "" if term is None else _where_true(term, columns) or ""


def span(term: Term | None, column: str, value: Callable[[Literal], Any]) -> tuple[Any, Any]:
    """Return the least and the greatest value of a column in rows for which ``term`` is true, according to the
    comparisons in ``term``. None: there is no limit on this side. Use the result only for estimates.

    :param value: a function that converts a literal to a value that can be compared. If it returns None, the literal is
        ignored.
    """
    if term is None:
        return None, None
    if term.op in (AND, OR):
        lows, highs = zip(*(span(operand, column, value) for operand in term.terms), strict=True)
        least, greatest = (max, min) if term.op == AND else (min, max)
        return _ends(lows, least, all_of=term.op == OR), _ends(highs, greatest, all_of=term.op == OR)
    if term.column != column or term.op not in ("=", "<", "<=", ">", ">=", IN):
        return None, None
    values = [value(literal) for literal in term.literals]
    if None in values:
        return None, None
    return None if term.op in ("<", "<=") else min(values), None if term.op in (">", ">=") else max(values)


def _ends(found: Sequence[Any], outermost: Callable[[list[Any]], Any], *, all_of: bool) -> Any:
    known_values = [end for end in found if end is not None]
    return outermost(known_values) if known_values and not (all_of and len(known_values) < len(found)) else None


def _where_true(term: Term, columns: Columns) -> str | None:
    """Return an SQL condition that is true for every row for which ``term`` is true. None: no such condition can be
    pushed down."""
    if term.op == AND:
        conditions = [
            condition for condition in (_where_true(part, columns) for part in term.terms) if condition is not None
        ]
        return _joined("AND", conditions) if conditions else None
    if term.op == OR:
        every = [_where_true(part, columns) for part in term.terms]
        return None if None in every else _joined("OR", [condition for condition in every if condition is not None])
    if term.op == NOT:
        return _not(_where_false(term.terms[0], columns))
    if term.op == CONSTANT:
        return None if term.literals[0].text == "TRUE" else "1 = 0"
    column = columns(term.column)
    if term.op == IS_NULL and (column is None or column.odd):
        # A value that cannot be represented counts as null in this package, but not on the server.
        return None
    return _leaf(term, column)


def _where_false(term: Term, columns: Columns) -> str | None:
    """Return an SQL condition that is false (and not unknown) for every row for which ``term`` is false. None: no such
    condition can be pushed down."""
    if term.op == AND:
        every = [_where_false(part, columns) for part in term.terms]
        return None if None in every else _joined("AND", [condition for condition in every if condition is not None])
    if term.op == OR:
        conditions = [
            condition for condition in (_where_false(part, columns) for part in term.terms) if condition is not None
        ]
        return _joined("OR", conditions) if conditions else None
    if term.op == NOT:
        return _not(_where_true(term.terms[0], columns))
    if term.op == CONSTANT:
        return None if term.literals[0].text == "TRUE" else "1 = 0"
    return _leaf(term, columns(term.column))


def _leaf(term: Term, column: Pushable | None) -> str | None:
    if column is None:
        return None
    if term.op == IS_NULL:
        return f"{column.name} IS NULL" if column.nullable else None
    if term.op not in (*COMPARISONS, IN):
        return None
    spelt = [column.spelt(literal) for literal in term.literals]
    if None in spelt:
        return None
    return column.compared(term.op, [value for value in spelt if value is not None])


def _not(condition: str | None) -> str | None:
    return None if condition is None else f"NOT ({condition})"


def _joined(op: str, conditions: list[str]) -> str:
    return conditions[0] if len(conditions) == 1 else f" {op} ".join(f"({condition})" for condition in conditions)
