"""Runs that cannot be exact at the end of their interval. In these runs, the DAG supplies ``as_of``, and the user did
not set this option.

The past of a PostgreSQL table begins when a run first finds the table, or finds that the table was altered. If a MySQL
server was started after the end of the interval, nothing can be proved about the time before the start. In these cases,
the run copies the present state and logs a warning. The copy is as exact as the copy of any run without ``as_of``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.copies.plan_checks import feeds_gapless, with_gap
from airflow_provider_cdc.core.options.run import CHANGES, PRESENT, RunOptions, StepOptions
from airflow_provider_cdc.core.run.manifest import FeedGap, MissedPast, TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import LogGone, PreflightError, Problem, TerminalError
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.planning.point import check_point

if TYPE_CHECKING:
    from airflow.sdk import Context

_BACKFILL = "backfill"

_log = logging.getLogger(__name__)


def may_miss_past(is_supplied: bool, options: RunOptions, context: Context) -> bool:
    """Return whether the run copies the present state if it cannot be exact at ``as_of``.

    A run of Airflow's Backfill never copies the present state, because its purpose is to rebuild the state of a past
    day.

    :param is_supplied: whether the DAG supplied ``as_of``.
    """
    run_type = getattr(context["dag_run"], "run_type", "")
    is_backfill = str(getattr(run_type, "value", run_type)).startswith(_BACKFILL)
    return is_supplied and options.missing_past == PRESENT and bool(options.steps.as_of) and not is_backfill


def missed_past(options: StepOptions, problems: Sequence[Problem]) -> MissedPast:
    """Return the past time at which the run cannot be exact, with the reasons.

    :param problems: the reasons why the run cannot be exact at this time.
    """
    return MissedPast(options.as_of, _joined(problems))


def in_the_present(options: StepOptions) -> StepOptions:
    """Return the same options, but with an empty ``as_of``."""
    return replace(options, as_of="")


def log_missed_past(log: Any, missed: MissedPast | None) -> None:
    """Log a warning if the copies of a run are not exact at the time that readers may expect."""
    if missed is not None:
        log.warning(
            "AS_OF IS NOT MET: the copies show the state at the time of this run, not at %s, because the option "
            "`On.missing_past` is `present`: %s",
            missed.as_of,
            missed.why,
        )


Record = Callable[[Sequence[TablePlan], StepOptions, MissedPast | None], Run]
"""A function that begins the run with the given plans and options."""


def record_or_miss(source: Source, plans: Sequence[TablePlan], options: StepOptions, record: Record) -> Run:
    """Begin a run. If the requested past position was lost since preflight, the run copies the present state.

    If a table was altered since preflight, its last copy cannot be rolled forward to the present either, so the table
    is read in full. If the options require that the copy is rolled forward, the run is rejected instead.
    """
    try:
        return record(plans, options, None)
    except (PreflightError, LogGone) as error:
        missed = MissedPast(options.as_of, _why(error))
        cause = error
    log_missed_past(_log, missed)
    options = replace(options, as_of="")
    plans = _without_bases(plans, options, cause)
    # As in preflight, tables that were altered must be added to the standing slot again.
    check_point(source, plans, options)
    while True:
        try:
            return record(plans, options, missed)
        except PreflightError as error:
            fewer = _without_bases(plans, options, error)
            if fewer == plans:
                raise
            plans = fewer


def _why(error: TerminalError) -> str:
    return _joined(error.problems) if isinstance(error, PreflightError) else error.message


def _joined(problems: Sequence[Problem]) -> str:
    return "; ".join(f"{problem.where}: {problem.what}" for problem in problems)


def _without_bases(plans: Sequence[TablePlan], options: StepOptions, error: TerminalError) -> list[TablePlan]:
    """Return changed plans, in which the tables that ``error`` names are read in full."""
    if feeds_gapless(options) or options.refresh == CHANGES or not isinstance(error, PreflightError):
        return [*plans]
    causes = {problem.table: problem.what for problem in error.problems if problem.table}
    return [
        _without_base(plan, options, causes[str(plan.table)]) if plan.base and str(plan.table) in causes else plan
        for plan in plans
    ]


def _without_base(plan: TablePlan, options: StepOptions, why: str) -> TablePlan:
    gap = FeedGap(plan.base, plan.base_position, why) if options.changes else None
    plan = replace(plan, base="", base_position="", reason=f"read in full: {why}")
    return plan if gap is None else with_gap(plan, gap)
