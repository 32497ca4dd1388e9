"""Asks Airflow whether the DAG run of a run is over."""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf

from airflow_provider_cdc.core.liveness import (
    NOT_KNOWN,
    DagRunNames,
    DagRunState,
    Other,
    StateOf,
    TableTurn,
    Turns,
)
from airflow_provider_cdc.core.options.run import ALLOW, WAIT, ConcurrencyOptions
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.operators.base import run_id_for
from airflow_provider_cdc.triggers.pause import PauseTrigger

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


# Asks an Airflow by its REST API for the states of DAG runs and tasks, where no task is running that could ask.


TOKEN = "CDC_AIRFLOW_TOKEN"
"""The environment variable with the token for the REST API. An argument would be visible in the process list."""
_SECONDS = 30.0
_PAGE = 100


def states_by_api(url: str) -> StateOf:
    """Return a function that asks the Airflow at ``url`` for the state of a DAG run.

    :raises ConfigurationError: the URL is not one of HTTP, or there is no token in the environment.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError(
            f"{url!r} is not a URL of HTTP", where="--airflow-url", hint="for example https://host"
        )
    token = os.environ.get(TOKEN, "")
    if not token:
        raise ConfigurationError(
            f"the environment variable {TOKEN} is not set",
            where="--airflow-url",
            hint="set it to a token for Airflow's REST API",
        )
    return state_in(AirflowApi(url.rstrip("/"), token))


class AirflowApi:
    """The questions of `state_in`, which a task instance answers in a task. Each of them raises `OSError` if Airflow
    does not answer, or denies access."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def get_dr_count(self, dag_id: str, run_ids: Sequence[str]) -> int:
        return sum(self._dag_run(dag_id, run_id) is not None for run_id in run_ids)

    def get_dagrun_state(self, dag_id: str, run_id: str) -> str:
        return str((self._dag_run(dag_id, run_id) or {})["state"])

    def get_task_states(
        self, dag_id: str, task_ids: Collection[str], run_ids: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        return {run_id: self._task_states(dag_id, task_ids, run_id) for run_id in run_ids}

    def _dag_run(self, dag_id: str, run_id: str) -> dict[str, Any] | None:
        try:
            return self._ask(f"dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _task_states(self, dag_id: str, task_ids: Collection[str], run_id: str) -> dict[str, str]:
        path = f"dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}/taskInstances"
        states: dict[str, str] = {}
        offset = total = 0
        while offset == 0 or offset < total:
            answer = self._ask(f"{path}?limit={_PAGE}&offset={offset}")
            for one in answer["task_instances"]:
                if one["task_id"] in task_ids:
                    index = one["map_index"]
                    states[one["task_id"] if index < 0 else f"{one['task_id']}_{index}"] = str(one["state"])
            total, offset = int(answer["total_entries"]), offset + _PAGE
        return states

    def _ask(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._url}/api/v2/{path}")
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


# Makes a run wait for, or give way to, other runs of the same tables (option ``concurrent_runs``).


POLL_SECONDS = 30.0
_SHOWN = 5


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
        _log.warning("On.concurrent_runs has no effect, because this task is not followed by a task lock_and_record")
        return False
    run_id = run_id_for(context["dag_run"], recording[0], lake, context["ti"].map_index)
    turn = TableTurn(run_id, tuple(sorted(map(str, tables))), dag_run_of(context, recording[0]))
    turns = Turns(Storage(scratch), lake, _without_later_groups(task, turn.dag_run, state_in(context["ti"])))
    number, logged, waited = turns.take(turn), "", False
    while others := turns.before(number, turn):
        if (waited_for := _listed(others)) != logged:
            _log.info(
                "%s: %s", "Waiting for other runs" if options.concurrent_runs == WAIT else "Other runs", waited_for
            )
            logged = waited_for
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
        "parameter concurrent_runs (On.concurrent_runs)",
        f"other runs of the same tables are under way: {_listed(others)}",
        "trigger this run again when they have ended. If such a run is dead, mark its DAG run as failed",
    )


def _listed(others: Sequence[Other]) -> str:
    shown = [f"run {other.run_id} ({', '.join(other.tables[:_SHOWN])}): {other.why}" for other in others[:_SHOWN]]
    more = [f"{len(others) - _SHOWN:,} more"] if len(others) > _SHOWN else []
    return "; ".join([*shown, *more])
