"""Determines which of the requested tables can be copied, and which are skipped.

A source's preflight reports either that every requested table can be copied exactly, or problems. Some problems belong
to one table (`Problem.table`). The exactness of the other tables does not depend on that table. So if the table may be
skipped, it is excluded by an additional pattern. The other tables are checked again from the beginning, as if the
skipped tables had never been requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.options.run import StepOptions, TableOptions
from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Parts, TableName, whole_tables
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.planning.patterns import NOTHING_LEFT, exactly
from airflow_provider_cdc.sources.planning.point import check_point


@dataclass(frozen=True)
class Survey:
    """The result of a survey: a plan for each table that is read, and the reason for each table that is skipped, by
    table name."""

    plans: list[TablePlan]
    skipped: dict[str, str]


def survey(
    source: Source,
    patterns: Sequence[str],
    options: TableOptions,
    on_table_error: str,
    parts: Parts = whole_tables,
) -> Survey:
    """Determine how each table is read.

    :param on_table_error: ``fail``: a table that cannot be copied is a problem. ``skip``: the table is left out.
    :param parts: the part of each table that is copied. If only a part of a table is copied, none of its rows are
        sampled, because they might not belong to that part.
    :raises PreflightError: there are problems, or every table would be skipped. The error lists every relevant problem.
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
    """Call `check_point` for the result of `survey`. If a table cannot be copied as of the requested position and may
    be skipped, leave the table out.

    :param may_begin: as for `check_point`.
    :param may_miss: whether the run copies the present state if the past position cannot be reached. If true, a table
        whose past is missing only temporarily (`Problem.passes`) is not left out. A table that can never be copied as
        of a past position is left out.
    :param parts: as for `survey`.
    :raises PreflightError: there are problems. The error lists every relevant problem.
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
        # Keep the existing plans for the other tables, because the plans may already name the copies to roll forward.
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
