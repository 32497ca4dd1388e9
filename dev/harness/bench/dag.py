"""`bench dag`: a small run in a whole Airflow, task by task, compared with three empty Spark applications.

A small run consists mostly of start-ups. So it is compared with three steps that do nothing: three PySpark
applications, submitted one after the other. The run is timed from the start of its first task to the end of its last
task, so the scheduler's pauses between tasks count.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.airflow_home import AirflowHome
from harness.airflow_server import running_airflow
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server
from harness.environment import spark_environment
from harness.errors import HarnessError
from harness.messages import say
from harness.mysql_server import MysqlServer

TABLES = 3
STEPS = ("preflight", "lock_and_record", "snapshot", "extract_delta", "consolidate")
WAIT_SECONDS = 600.0
EMPTY = "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().stop()\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=1000)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: %(default)s); the median counts")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    report = Report("dag", arguments.rows)
    with bench_server(directory) as server, tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
        _fill(server, arguments.rows)
        source = {"conn_type": "cdc_mysql", "host": server.host, "port": server.port, "login": "root"}
        airflow = AirflowHome(Path(work) / "airflow", {"bench": source})
        airflow.environment |= {
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).with_name("dags")),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "BENCH_TARGET": (Path(work) / "lake").as_uri(),
        }
        airflow.prepare()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port = int(listening.getsockname()[1])
        say("bench: starting Airflow")
        with running_airflow(airflow, port) as check:
            api = Api(port, check)
            submits, together, apart = [], [], []
            for number in range(arguments.rounds + 1):
                say(f"bench: round {number} of {arguments.rounds}" if number else "bench: warm-up round")
                submits.append(_three_submits(Path(work)))
                together.append(api.time_of("small"))
                apart.append(api.time_of("small_apart"))
    submit = statistics.median(submits[1:])
    runs = {"one application": _median(together[1:]), "three applications": _median(apart[1:])}
    rows = arguments.rows * TABLES
    report.results += [
        Result("three_submits", rows, submit, 0.0),
        Result("dag", rows, runs["one application"]["all"], 0.0),
        Result("dag_apart", rows, runs["three applications"]["all"], 0.0),
        *(Result(f"dag_{step}", rows, runs["one application"][step], 0.0) for step in STEPS),
    ]
    report.ratios["vs_three_submits"] = submit / runs["one application"]["all"]
    report.ratios["vs_three_applications"] = runs["three applications"]["all"] / runs["one application"]["all"]
    print(f"\nbench: {TABLES} tables of {arguments.rows:,} rows; seconds, medians of {arguments.rounds}\n")
    print_table(
        ["", *STEPS, "first start to last end"],
        [[name, *(f"{times[step]:.1f}" for step in (*STEPS, "all"))] for name, times in runs.items()],
    )
    print(f"\nthree empty PySpark applications, one after the other: {submit:.1f}")
    print_ratios(report.ratios)
    return report


def _fill(server: MysqlServer, rows: int) -> None:
    for number in range(TABLES):
        table = f"bench.small_{number}"
        server.query(f"DROP TABLE IF EXISTS {table}")
        server.query(f"CREATE TABLE {table} (id INT PRIMARY KEY, name VARCHAR(40), at DATETIME(6))")
        with server.connect() as connection, connection.cursor() as cursor:
            values = [(row, f"name {row}", "2026-01-01 12:00:00.5") for row in range(rows)]
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s, %s)", values)


def _three_submits(work: Path) -> float:
    app = work / "empty.py"
    app.write_text(EMPTY)
    environment = {**os.environ, **spark_environment()}
    began = time.monotonic()
    for _ in range(3):
        subprocess.run(
            ["spark-submit", "--master", "local[2]", "--deploy-mode", "client", str(app)],
            env=environment,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
    return time.monotonic() - began


class Api:
    """Airflow's REST API.

    :param check: raises an error if a component of Airflow has ended.
    """

    def __init__(self, port: int, check: Callable[[], None]) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._check = check
        self._token = self._ask("/auth/token")["access_token"]

    def time_of(self, dag_id: str) -> dict[str, float]:
        """Run a DAG. Return the seconds of each step, and of ``all`` steps from the first start to the last end.

        :raises HarnessError: the run failed, or does not end.
        """
        run_id = self._when_it_works(
            lambda: self._ask(f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None})["dag_run_id"]
        )
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            state = self._ask(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"]
            if state in ("success", "failed") or time.monotonic() > deadline:
                break
            self._check()
            time.sleep(0.5)
        if state != "success":
            raise HarnessError(f"the run of the DAG {dag_id} is {state}")
        tasks = self._ask(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        times = {task["task_id"]: (_time(task["start_date"]), _time(task["end_date"])) for task in tasks}
        starts, ends = zip(*times.values(), strict=True)
        return {**{name: end - start for name, (start, end) in times.items()}, "all": max(ends) - min(starts)}

    def _when_it_works(self, ask: Callable[[], Any]) -> Any:
        """Retry a request until it succeeds, because Airflow knows a DAG only some time after its start."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return ask()
            except urllib.error.HTTPError as error:
                if time.monotonic() > deadline:
                    raise HarnessError(f"Airflow answers {error.code}: {error.read()[:300]!r}") from error
                self._check()
                time.sleep(1)

    def _ask(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {self._token}"} if hasattr(self, "_token") else {}),
            },
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}
