"""Asks Airflow whether the DAG run of a run is over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.liveness.dag_run import DagRunNames
from airflow_provider_cdc.core.liveness.proof import NOT_KNOWN, DagRunState, StateOf

if TYPE_CHECKING:
    from airflow.sdk import Context

_OVER = {"failed", "success"}
_TASK_OVER = {"failed", "upstream_failed", "skipped", "removed"}
"""The states of a task that Airflow does not execute again by itself. Without this task, its run is not published."""
_STEPS = ("preflight", "lock_and_record", "snapshot", "extract_delta", "consolidate")

_log = logging.getLogger(__name__)


def dag_run_of(context: Context, task_id: str) -> DagRunNames:
    """Return the names of the DAG run of a task.

    :param task_id: the task `lock_and_record` of the same task group.
    """
    dag_run, index = context["dag_run"], context["ti"].map_index
    return DagRunNames(str(dag_run.dag_id), str(dag_run.run_id), task_id, -1 if index is None else int(index))


def state_in(instance: Any) -> StateOf:
    """Return a function that asks Airflow for the state of a DAG run.

    If the DAG run is not over, but a task of the run has failed permanently, the run counts as over. Otherwise, a run
    could wait for a failed run of its own DAG run.

    :param instance: the task instance that asks.
    """

    def state_of(names: DagRunNames) -> DagRunState:
        try:
            # The question for the state of a DAG run that was deleted fails like a server that does not answer.
            if not instance.get_dr_count(dag_id=names.dag_id, run_ids=[names.dag_run_id]):
                return NOT_KNOWN
            answer = instance.get_dagrun_state(dag_id=names.dag_id, run_id=names.dag_run_id)
            state = str(getattr(answer, "value", answer))
            if state in _OVER:
                return DagRunState(True, True, f"is {state}")
            ended = _ended_task(instance, names) if names.task_id else ""
        except Exception as error:
            _log.warning("Could not read the state of DAG run %s from Airflow: %s", names, error)
            return DagRunState(True, False, "is in an unknown state, because Airflow does not answer")
        return DagRunState(True, bool(ended), f"is {state}" + (f", but its task {ended}" if ended else ""))

    return state_of


def _ended_task(instance: Any, names: DagRunNames) -> str:
    """Return a task of the run that has ended without success, and its state; empty: there is none."""
    prefix = names.task_id.removesuffix(_STEPS[1])
    tasks = [f"{prefix}{step}" for step in _STEPS]
    answer = instance.get_task_states(dag_id=names.dag_id, task_ids=tasks, run_ids=[names.dag_run_id])
    states = answer.get(names.dag_run_id, {})
    for task in tasks:
        name = task if names.map_index < 0 else f"{task}_{names.map_index}"
        if (state := str(states.get(name))) in _TASK_OVER:
            return f"{task} is {state}"
    return ""
