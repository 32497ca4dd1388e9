"""Asks an Airflow by its REST API for the states of DAG runs and tasks, where no task is running that could ask."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_provider_cdc.core.liveness.proof import StateOf
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.planning.dag_run_state import state_in

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
