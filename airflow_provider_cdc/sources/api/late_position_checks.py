"""Runs that are exact at a late position, the one where their reads end: what of their options cannot be had."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.errors import Problem


def late_problems(plans: Sequence[TablePlan], options: StepOptions) -> list[Problem]:
    """What of a run's options cannot be had where its tables are exact only at the position where their reads end."""
    if not (late := [plan for plan in plans if plan.at_upper]):
        return []
    why = f"the copy is exact where its reads end ({late[0].table}: {late[0].reason})"
    hint = "or let the log tell what rows were before (REPLICA IDENTITY FULL), with consistency auto"
    problems = []
    if options.as_of:
        problems.append(Problem("parameter as_of", f"cannot be met: {why}", f"leave as_of empty; {hint}"))
    if options.keep_slot:
        what = f"the slot stands at initial_lsn, and {why}"
        problems.append(Problem("parameter keep_slot", what, f"leave keep_slot off; {hint}"))
    return problems
