"""Runs that cannot be exact at the end of their interval, when the DAG supplies ``as_of`` and the user did not set it.

The past of a PostgreSQL table begins when a run first finds it, or finds it altered. A MySQL server that was started
after the end of the interval cannot prove anything about the time before. Such a run copies the present, which is as
exact as any other run without ``as_of``, and logs a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.options.run import PRESENT, RunOptions
from airflow_provider_cdc.core.run.plan import MissedPast
from airflow_provider_cdc.errors import Problem

if TYPE_CHECKING:
    from airflow.sdk import Context

_BACKFILL = "backfill"


def may_miss_past(is_supplied: bool, options: RunOptions, context: Context) -> bool:
    """Return whether the run copies the present if it cannot be exact at ``as_of``.

    A run of Airflow's Backfill does not, because its purpose is to rebuild its own day.

    :param is_supplied: whether the DAG supplied ``as_of``.
    """
    run_type = getattr(context["dag_run"], "run_type", "")
    is_backfill = str(getattr(run_type, "value", run_type)).startswith(_BACKFILL)
    return is_supplied and options.missing_past == PRESENT and bool(options.steps.as_of) and not is_backfill


def missed_past(options: RunOptions, problems: Sequence[Problem]) -> MissedPast:
    """Return the past time at which the run cannot be exact, with the reasons.

    :param problems: the reasons.
    """
    return MissedPast(options.steps.as_of, "; ".join(f"{problem.where}: {problem.what}" for problem in problems))


def in_the_present(options: RunOptions) -> RunOptions:
    """Return the same options without ``as_of``."""
    return replace(options, steps=replace(options.steps, as_of=""))


def say_missed_past(log: Any, missed: MissedPast | None) -> None:
    """Log a warning if a run is not exact at the time that its readers may expect."""
    if missed is not None:
        log.warning(
            "AS_OF IS NOT MET: the copies are exact at the present of this run, not at %s (missing_past = present): %s",
            missed.as_of,
            missed.why,
        )
