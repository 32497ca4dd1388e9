"""A running Airflow, queried by its REST API."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass
class Site:
    """An Airflow that is running, with its connections in its database, as people have them."""

    url: str
    check: Callable[[], None]
    schema: str
    folder: Path
    token: str = ""

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def ask(self, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
        """The status and the answer of the REST API.

        :param method: the method of a request with a body.
        """
        self.check()
        request = urllib.request.Request(f"{self.url}{path}", method="GET" if body is None else method)
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def log_in(self) -> None:
        status, answer = self.ask("/auth/token")
        assert status in (200, 201), answer
        self.token = answer["access_token"]

    def trigger(self, dag_id: str, **conf: Any) -> tuple[int, Any]:
        return self.ask(f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})

    def wait_for_dag(self, dag_id: str) -> None:
        deadline = time.monotonic() + 300
        while self.ask(f"/api/v2/dags/{dag_id}")[0] != 200:
            assert time.monotonic() < deadline, "the DAG was not found"
            time.sleep(2)

    def last_run(self, dag_id: str) -> Any:
        _, answer = self.ask(f"/api/v2/dags/{dag_id}/dagRuns?order_by=-run_after&limit=1")
        return answer["dag_runs"][0]

    def backfilled(self) -> dict[datetime, str]:
        """The state of each run of `nightly` that a backfill made, once all backfills are over: by its logical date."""
        deadline = time.monotonic() + 1200
        while any(one["completed_at"] is None for one in self.ask("/api/v2/backfills?dag_id=nightly")[1]["backfills"]):
            assert time.monotonic() < deadline, "the backfill goes on and on"
            time.sleep(3)
        runs = self.ask("/api/v2/dags/nightly/dagRuns?run_type=backfill")[1]["dag_runs"]
        return {datetime.fromisoformat(run["logical_date"]): run["state"] for run in runs}

    def wait_for_end(self, dag_id: str) -> tuple[str, dict[str, str]]:
        """The state of the last run, and that of each task, once it has ended."""
        deadline = time.monotonic() + 900
        while (run := self.last_run(dag_id))["state"] not in ("success", "failed"):
            assert time.monotonic() < deadline, run
            time.sleep(2)
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run['dag_run_id']}/taskInstances"
        instances = self.ask(path)[1]["task_instances"]
        return run["state"], {one["task_id"]: one["state"] for one in instances}
