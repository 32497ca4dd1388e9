"""Determines which of the requested tables can be copied, and which are skipped.

A source's preflight reports either that every requested table can be copied exactly, or problems. Some problems belong
to one table (`Problem.table`): the exactness of the other tables does not depend on that table. So a table that may be
skipped is excluded by an additional pattern. The other tables are checked again from the beginning, as if the skipped
ones had never been requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.options.run import StepOptions, TableOptions
from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Parts, TableName, whole_tables
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.calls import check_point
from airflow_provider_cdc.sources.api.source import PlansRuns, Source
from airflow_provider_cdc.sources.planning.patterns import NOTHING_LEFT, exactly


@dataclass(frozen=True)
class Survey:
    """The result of a survey: how each table is read, and, by table name, why each of the other tables is skipped."""

    plans: list[TablePlan]
    skipped: dict[str, str]


def survey(
    source: PlansRuns,
    patterns: Sequence[str],
    options: TableOptions,
    on_table_error: str,
    parts: Parts = whole_tables,
) -> Survey:
    """Determine how each table is read.

    :param on_table_error: ``fail``: a table that cannot be copied is a problem. ``skip``: the table is left out.
    :param parts: the part of each table that is copied. If only a part of a table is copied, none of its rows are
        sampled, because they might not belong to that part.
    :raises PreflightError: with every relevant problem; also if every table would be skipped.
    :raises SourceUnavailable: the server cannot be reached.
    """
    problems_by_table: dict[str, list[Problem]] = {}
    sampled: set[TableName] = set()
    while True:
        left_out = ["!" + exactly(TableName.parse(table)) for table in problems_by_table]
        try:
            plans = source.preflight([*patterns, *left_out], options, parts)
        except PreflightError as error:
            plans, problems_by_sample = [], list(error.problems)
        else:
            problems_by_sample = source.sample(
                [one for one in plans if one.table not in sampled and parts(one.table).whole]
            )
            sampled |= {plan.table for plan in plans}
        if problems_by_table and NOTHING_LEFT in problems_by_sample:
            return _refused(problems_by_table, on_table_error)
        if general_problems := [problem for problem in problems_by_sample if not problem.table]:
            all_problems = problems_by_sample + [
                problem for problems in problems_by_table.values() for problem in problems
            ]
            raise PreflightError(general_problems if on_table_error == "skip" else all_problems)
        if not problems_by_sample:
            break
        for problem in problems_by_sample:
            problems_by_table.setdefault(problem.table, []).append(problem)
    if problems_by_table and on_table_error != "skip":
        return _refused(problems_by_table, on_table_error)
    return Survey(plans, {table: _reason(problems) for table, problems in problems_by_table.items()})


def survey_past(
    source: Source,
    found: Survey,
    patterns: Sequence[str],
    options: TableOptions,
    steps: StepOptions,
    *,
    may_begin: bool,
    may_miss: bool = False,
    parts: Parts = whole_tables,
) -> Survey:
    """Call `check_point` for the result of `survey`, and leave out tables that may be skipped and that cannot be copied
    as of that position.

    :param may_begin: as for `check_point`.
    :param may_miss: the run copies the present instead. So a table whose past is missing only this time
        (`Problem.passes`) is not left out. A table that never has a past is left out.
    :param parts: as for `survey`.
    :raises PreflightError: there are problems; the error lists every relevant one.
    """
    while True:
        try:
            check_point(source, found.plans, steps, may_begin=may_begin)
            return found
        except PreflightError as error:
            problems_by_table: dict[str, list[Problem]] = {}
            for problem in error.problems:
                problems_by_table.setdefault(problem.table, []).append(problem)
            is_left_out = steps.skips and not (may_miss and any(problem.passes for problem in error.problems))
            if not is_left_out or "" in problems_by_table:
                raise
            if {plan.table for plan in found.plans} <= {TableName.parse(table) for table in problems_by_table}:
                _refused(problems_by_table, steps.on_table_error)
        skipped = found.skipped | {table: _reason(problems) for table, problems in problems_by_table.items()}
        left_out = ["!" + exactly(TableName.parse(table)) for table in skipped]
        # Keep the decisions for the other tables, such as the copies from which they are rolled forward.
        plans_by_table = {plan.table: plan for plan in found.plans}
        found = survey(source, [*patterns, *left_out], options, steps.on_table_error, parts)
        found = Survey([plans_by_table.get(plan.table, plan) for plan in found.plans], skipped | found.skipped)


def _refused(own: dict[str, list[Problem]], on_table_error: str) -> Survey:
    problems = [problem for problems in own.values() for problem in problems]
    if on_table_error == "skip":
        problems.insert(
            0, Problem("tables", "none of the tables can be copied, so skipping tables does not help", "see below")
        )
    raise PreflightError(problems)


def _reason(problems: Sequence[Problem]) -> str:
    return "; ".join(f"{problem.where}: {problem.what}" for problem in problems)
