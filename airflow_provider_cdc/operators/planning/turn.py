"""Makes a run wait for, or give way to, other runs of the same tables (option ``concurrent_runs``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf

from airflow_provider_cdc.core.liveness.dag_run import DagRunNames
from airflow_provider_cdc.core.liveness.proof import DagRunState, StateOf
from airflow_provider_cdc.core.liveness.turns import Other, Turn, Turns
from airflow_provider_cdc.core.options.concurrency import ALLOW, WAIT, ConcurrencyOptions
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.operators.base import run_id_for
from airflow_provider_cdc.operators.planning.dag_run_state import dag_run_of, state_in
from airflow_provider_cdc.triggers.pause import PauseTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

POLL_SECONDS = 30.0
_SHOWN = 5

_log = logging.getLogger(__name__)


def take_turn(
    task: Any, context: Context, options: ConcurrencyOptions, scratch: str, lake: str, tables: Sequence[TableName]
) -> bool:
    """Return when no other run of some of ``tables`` is under way. Return whether this run has waited.

    If Airflow's setting ``operators.default_deferrable`` is true, the task is deferred while it waits.

    :param task: the `PreflightOperator` of the task group.
    :raises PreflightError: another run is under way, and this run is refused.
    """
    if options.concurrent_runs == ALLOW:
        return False
    recording = [one.task_id for one in task.downstream_list if one.task_id.endswith("lock_and_record")]
    if not recording:
        _log.warning("concurrent_runs has no effect, because this task is not followed by a task lock_and_record")
        return False
    run_id = run_id_for(context["dag_run"], recording[0], lake, context["ti"].map_index)
    turn = Turn(run_id, tuple(sorted(map(str, tables))), dag_run_of(context, recording[0]))
    turns = Turns(Storage(scratch), lake, _without_later_groups(task, turn.dag_run, state_in(context["ti"])))
    number, told, waited = turns.take(turn), "", False
    while others := turns.before(number, turn):
        if (said := _told(others)) != told:
            _log.info("%s: %s", "Waiting for other runs" if options.concurrent_runs == WAIT else "Other runs", said)
            told = said
        limit = timedelta(seconds=options.concurrent_wait_seconds)
        if options.concurrent_runs != WAIT or (limit and turns.waited(number) >= limit):
            turns.give_up(number, turn)
            raise PreflightError([_refusal(others)])
        if conf.getboolean("operators", "default_deferrable", fallback=False):
            task.defer(trigger=PauseTrigger(seconds=POLL_SECONDS), method_name="resume")
        time.sleep(POLL_SECONDS)
        waited = True
    return waited


def _without_later_groups(task: Any, own: DagRunNames, state_of: StateOf) -> StateOf:
    """Return ``state_of``, except that a run counts as over if its tasks come after ``task`` in the same DAG run: if
    the whole DAG run was cleared, that run waits for this one."""
    later = set(task.get_flat_relative_ids(upstream=False))

    def state(names: DagRunNames) -> DagRunState:
        same = (names.dag_id, names.dag_run_id) == (own.dag_id, own.dag_run_id)
        if same and names.task_id != own.task_id and names.task_id in later:
            return DagRunState(True, True, "has cleared its tasks, which come after this run")
        return state_of(names)

    return state


def _refusal(others: Sequence[Other]) -> Problem:
    return Problem(
        "parameter concurrent_runs",
        f"other runs of the same tables are under way: {_told(others)}",
        "trigger this run again when they have ended. If such a run is dead, mark its DAG run as failed",
    )


def _told(others: Sequence[Other]) -> str:
    shown = [f"run {other.run_id} ({', '.join(other.tables[:_SHOWN])}): {other.why}" for other in others[:_SHOWN]]
    more = [f"{len(others) - _SHOWN:,} more"] if len(others) > _SHOWN else []
    return "; ".join([*shown, *more])
