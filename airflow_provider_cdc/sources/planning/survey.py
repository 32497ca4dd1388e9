"""Determines which of the requested tables can be copied, and which are skipped.

A source's preflight reports either that every requested table can be copied exactly, or problems. Some problems belong
to one table (`Problem.table`). The exactness of the other tables does not depend on that table. So if the table may be
skipped, it is excluded by an additional pattern. The other tables are checked again from the beginning, as if the
skipped tables had never been requested.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.options.run import CONSISTENCIES, UNREPRESENTABLE, StepOptions, TableOptions
from airflow_provider_cdc.core.positions.kinds import has, kinds_with, only
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Layout, Parts, Table, TableName, layout_of, whole_tables
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.planning.patterns import NOTHING_LEFT, exactly
from airflow_provider_cdc.sources.planning.point import check_point
from airflow_provider_cdc.sources.planning.selections import by_table


@dataclass(frozen=True)
class Survey:
    """The result of a survey: a plan for each table that is read, and the reason for each table that is skipped, by
    table name. ``merged`` has the reasons of the merged tables that are skipped. Such a name may also be that of a
    table of the source."""

    plans: list[TablePlan]
    skipped: dict[str, str]
    merged: dict[str, str] = field(default_factory=dict)

    @property
    def left_out(self) -> dict[str, str]:
        """The reasons of all tables that are skipped, merged ones included."""
        return {**self.skipped, **self.merged}


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
        again = survey(source, [*patterns, *left_out], options, steps.on_table_error, parts)
        plans = [plans_by_table.get(plan.table, plan) for plan in again.plans]
        found = Survey(plans, skipped | again.skipped, found.merged)


def _refused(own: dict[str, list[Problem]], on_table_error: str) -> Survey:
    problems = [problem for problems in own.values() for problem in problems]
    if on_table_error == "skip":
        problems.insert(
            0, Problem("tables", "none of the tables can be copied, so skipping tables does not help", "see below")
        )
    raise PreflightError(problems)


def _reason(problems: Sequence[Problem]) -> str:
    return "; ".join(f"{problem.where}: {problem.what}" for problem in problems)


# Determines the layout of each table of the lake from the options ``partition_by`` and ``sort_by``.


def layouts(tables: Sequence[TableName], skipped: Sequence[str], options: LakeOptions) -> dict[TableName, Layout]:
    """Return the layouts of the tables that have one. Whether the tables have the columns is checked later.

    :param skipped: names of tables that are left out. A pattern may match them.
    :raises PreflightError: with all problems of the options.
    """
    problems: list[Problem] = []
    given = {"partition_by": options.partition_by or {}, "sort_by": options.sort_by or {}}
    if options.format != "iceberg":
        problems += [
            Problem(f"parameter {name}", "only Iceberg tables have it", "choose format = iceberg, or leave it out")
            for name, value in given.items()
            if value
        ]
    others = [TableName.parse(name) for name in skipped]
    chosen = {name: by_table(name, value, tables, others, problems) for name, value in given.items()}
    found: dict[TableName, Layout] = {}
    for table in tables:
        (pattern, partition), (other, sort) = (chosen[name].get(table, ("", ())) for name in given)
        for name, text, values in (("partition_by", pattern, (partition, ())), ("sort_by", other, ((), sort))):
            try:
                layout_of(*values)
            except ConfigurationError as error:
                problem = Problem(f"parameter {name}, {text}", error.message, error.hint)
                problems += [problem] if problem not in problems else []
        if not problems and (partition or sort):
            found[table] = layout_of(partition, sort)
    if problems:
        raise PreflightError(problems)
    return found


# Checks of a request that do not depend on the content of the server. They are the same for every kind of source.


def request_problems(kind: str, patterns: Sequence[str], options: TableOptions) -> Iterator[Problem]:
    """Yield the problems of a request.

    :param kind: the name of the kind of source.
    """
    if not patterns:
        yield Problem("tables", "names no table", "list tables as schema.table, for example shop.*")
    limited = [name for name in CONSISTENCIES if kinds_with(name)]
    lacks = [name for name in limited if not has(kind, name)]
    offered = ", ".join(name for name in CONSISTENCIES if name not in lacks)
    if options.consistency in lacks:
        yield Problem(
            "consistency", f"{options.consistency} works on {only(options.consistency)} only", f"use one of {offered}"
        )
    elif options.consistency not in CONSISTENCIES:
        yield Problem("consistency", f"{options.consistency!r} is not valid", f"use one of {offered}")
    if options.unrepresentable not in UNREPRESENTABLE:
        yield Problem(
            "unrepresentable", f"{options.unrepresentable!r} is not valid", f"use one of {', '.join(UNREPRESENTABLE)}"
        )


# Waits until a server's clock reaches the time that a run requests.
#
# Airflow starts a run at the end of its interval, according to Airflow's own clock. If the server's clock is behind,
# the time in ``as_of`` is in the future for the server for a few seconds. Without the wait, the run would fail for
# good.


SKEW = timedelta(seconds=60)
"""The maximum accepted difference between the clocks of Airflow and the server."""
FINAL_SECONDS = 600.0
"""Seconds to wait until a position in the past is final and visible. A run waits for longer than a moment only if
something is wrong: no replica acknowledges a commit, or the server's clock was set back."""
_POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


def wait_for_clock(as_of: datetime, server_time: Callable[[], datetime]) -> None:
    """Wait until ``server_time`` has reached ``as_of``. The function waits only if the difference is at most `SKEW`.

    :raises PreflightError: the difference is greater than `SKEW`.
    """
    logged = False
    while as_of > (now := server_time()):
        if as_of - now > SKEW:
            raise PreflightError(
                [
                    Problem(
                        "parameter as_of",
                        f"{as_of:%Y-%m-%d %H:%M:%S} UTC is in the future: by the server's clock it is "
                        f"{now:%Y-%m-%d %H:%M:%S} UTC",
                        "start the run after that time",
                    )
                ]
            )
        if not logged:
            _log.info(
                "The server's clock is %.1f s behind the time in `as_of` (%s): waiting until the clock reaches this "
                "time",
                (as_of - now).total_seconds(),
                as_of,
            )
            logged = True
        time.sleep(min(_POLL_SECONDS, (as_of - now).total_seconds() + 0.01))


# Code for sampling a limited number of rows before a run, to find values that no Arrow type holds.
#
# With the policy ``error``, a single such value stops a run, possibly after a read that took hours. Most tables with
# such values have them among their oldest or newest rows, so each source reads some of these rows (in its module
# ``sample``). The sample proves nothing about the other rows. They are checked when they are read.


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Column = TypeVar("_Column", bound=_Named)


def problems_of(
    plans: Sequence[TablePlan],
    tables: Sequence[Table],
    at_risk: Callable[[Table], Sequence[_Column]],
    samples: Callable[[Table, Sequence[_Column]], Iterator[Sequence[int]]],
    always: Callable[[Table, _Column], bool] = lambda table, column: False,
) -> list[Problem]:
    """Return a problem for each column whose sample has values that no Arrow type holds.

    :param tables: the current definitions of the tables of ``plans``.
    :param at_risk: a function that returns the columns of a table that may have such values and whose values would stop
        the run.
    :param samples: a function that reads samples of a table. A sample consists of the number of rows and, for each
        column, the number of odd values.
    :param always: whether such values of a column stop the run under every policy.
    """
    problems: list[Problem] = []
    for plan, now in zip(plans, tables, strict=True):
        table = replace(now, options=plan.options)
        columns = at_risk(table)
        if not columns:
            continue
        rows_seen, totals = 0, [0] * len(columns)
        for rows, *counts in samples(table, columns):
            rows_seen += rows
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
        problems += [
            _problem(table, column.name, count, rows_seen, always(table, column))
            for column, count in zip(columns, totals, strict=True)
            if count
        ]
    return problems


def gave_up(table: Table, why: str = "it took too long") -> None:
    """Log that the sample of a table was not completed. The values that were found until then still count."""
    _log.info("%s: stopped checking a sample of the table's rows before the run: %s", table.name, why)


def _problem(table: Table, column: str, count: int, rows: int, always: bool) -> Problem:
    policy = (
        "" if always else f"set `On.unrepresentable` to `string`{'' if table.identifies(column) else ' or `null`'}; "
    )
    return Problem(
        f"{table.name}.{column}",
        f"no Arrow type holds the column's value in {count:,} of the {format_count(rows, 'row')} sampled",
        f"{policy}correct these rows; leave the table out; or set `On.table_error` to `skip`",
        str(table.name),
    )
