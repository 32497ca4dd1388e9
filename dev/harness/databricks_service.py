"""A service on 127.0.0.1 that speaks the API of Databricks and runs the jobs on this machine.

The jobs are those of `harness.jobs_service`, with another definition and another interface. The service refuses what it
does not know, and keeps the time limit of a job.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from harness.jobs_service import SUBMIT, JobsService, RemoteJob, serving

TOKEN = "dapi-t0ken-of-airflow"
RELEASE = "17.3.x-scala2.13"
RELEASES = {
    RELEASE: "17.3 LTS (includes Apache Spark 4.0.0, Scala 2.13)",
    "16.4.x-scala2.12": "16.4 LTS (includes Apache Spark 3.5.2, Scala 2.12)",
}
NODE_TYPES = {"m6i.large": True, "m4.large": False}
"""The types of nodes, and whether they encrypt the traffic between nodes."""
SUBMITTED = {"run_name", "idempotency_token", "timeout_seconds", "tasks"}
TASK = {"task_key", "new_cluster", "spark_python_task", "libraries"}
CLUSTER = {
    *("spark_version", "node_type_id", "driver_node_type_id", "num_workers", "autoscale", "policy_id", "spark_conf"),
    *("data_security_mode", "custom_tags", "aws_attributes", "spark_env_vars", "init_scripts", "cluster_log_conf"),
}
DRIVER = Path(__file__).with_name("databricks_driver.py")
PAGE = 25
VERSIONS = {"clusters": ("2.0", "2.1"), "jobs": ("2.1", "2.2"), "policies": ("2.0",)}
STATES = {
    "SUBMITTED": ("PENDING", None),
    "SCHEDULED": ("PENDING", None),
    "RUNNING": ("RUNNING", None),
    "SUCCESS": ("TERMINATED", "SUCCESS"),
    "FAILED": ("TERMINATED", "FAILED"),
    "CANCELLED": ("TERMINATED", "CANCELED"),
}


class DatabricksService(JobsService):
    """The jobs of one workspace. Files below ``/Volumes`` are in the folder ``volumes``. With a ``limit``, a run ends
    after this many seconds. If the service is ``behind_proxy``, the proxy answers in its place."""

    TOKEN = "idempotency_token"

    def __init__(self, folder: Path, endpoint: str, python: str) -> None:
        super().__init__(folder, endpoint, python)
        self.volumes = folder / "volumes"
        self.url = ""
        self.limit: float | None = None
        self.behind_proxy = False
        self._ids = itertools.count(455644833)

    def new_id(self) -> str:
        return str(next(self._ids))

    def seconds(self, job: RemoteJob) -> float | None:
        return self.limit or float(job.request["timeout_seconds"])

    def _command(self, job: RemoteJob) -> tuple[list[str], dict[str, str]]:
        (task,) = job.request["tasks"]
        cluster, program = task["new_cluster"], task["spark_python_task"]
        environment = self.environment(job) | cluster.get("spark_env_vars", {})
        environment |= {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python}
        for library in task.get("libraries", ()):
            libraries = job.folder / "libraries"
            requirements = self.volumes / library["requirements"].removeprefix("/Volumes/")
            # The environment of this process has the connections of the test.
            own = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_CONN_")}
            uv = Path(sys.executable).with_name("uv")
            command = ["pip", "install", "--quiet", "--python", self.python, "--target", str(libraries)]
            subprocess.run([str(uv), *command, "-r", str(requirements)], env=own, check=True)
            job.unpacked.append(libraries)
            environment["PYTHONPATH"] = str(libraries)
        options: list[str] = []
        for name, value in cluster["spark_conf"].items():
            options += ["--conf", f"{name}={value}"]
        checkout = str(DRIVER.parents[2])
        arguments = [f"{self.url}/objects", checkout, program["python_file"], *program["parameters"]]
        return [*SUBMIT, *options, str(DRIVER), *arguments], environment

    def shown_run(self, job: RemoteJob) -> dict[str, Any]:
        phase, result = STATES[job.state]
        if job.details == "timeout":
            result = "TIMEDOUT"
        state = {"life_cycle_state": phase, "state_message": job.details, "user_cancelled_or_timedout": False}
        return {
            "run_id": int(job.id),
            "run_name": job.request["run_name"],
            "run_type": "SUBMIT_RUN",
            "run_page_url": f"{self.url}/#job/1/run/{job.id}",
            "start_time": int(job.created * 1000),
            "state": {**state, **({"result_state": result} if result else {})},
        }


@contextmanager
def databricks_service(folder: Path, endpoint: str, python: str) -> Iterator[DatabricksService]:
    """Start a service. At the end, all jobs are killed.

    :param endpoint: the S3 server.
    :param python: the Python of the jobs.
    """
    service = DatabricksService(folder, endpoint, python)

    class Handler(_Handler):
        jobs = service

    with serving(service, Handler) as service.url:
        yield service


class _Handler(BaseHTTPRequestHandler):
    jobs: DatabricksService
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path.startswith("/objects/"):
            self._send_bytes(200, self.jobs.read(unquote(asked.path.removeprefix("/objects/"))))
            return
        fields = dict(parse_qsl(asked.query))
        path = self._path(asked.path)
        if path == "clusters/spark-versions":
            self._send(200, {"versions": [{"key": key, "name": name} for key, name in RELEASES.items()]})
        elif path == "clusters/list-node-types":
            types = [{"node_type_id": key, "is_encrypted_in_transit": value} for key, value in NODE_TYPES.items()]
            self._send(200, {"node_types": types})
        elif path == "policies/clusters/get":
            self._fail(404, "RESOURCE_DOES_NOT_EXIST", f"Cluster policy {fields['policy_id']} cannot be found.")
        elif path == "jobs/runs/list":
            self._list(fields)
        elif path == "jobs/runs/get":
            if job := self._job(fields["run_id"]):
                self._send(200, {**self.jobs.shown_run(job), "tasks": job.request["tasks"]})
        elif path:
            self._fail(404, "ENDPOINT_NOT_FOUND", f"No API found for 'GET {asked.path}'")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self._path(self.path)
        if path == "jobs/runs/submit":
            self._submit(body)
        elif path == "jobs/runs/cancel":
            if job := self._job(body["run_id"]):
                self.jobs.cancel(job)
                self._send(200, {})
        elif path:
            self._fail(404, "ENDPOINT_NOT_FOUND", f"No API found for 'POST {self.path}'")

    def _path(self, path: str) -> str:
        """The path without the version. Empty: the request is refused."""
        if self.jobs.behind_proxy:
            self._send_bytes(404, b"<html>no backend</html>")
            return ""
        if self.jobs.refusals:
            self.jobs.refusals -= 1
            self._fail(429, "REQUEST_LIMIT_EXCEEDED", "Current request rate exceeds the limit", {"Retry-After": "1"})
            return ""
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._fail(403, "PERMISSION_DENIED", "Invalid access token.")
            return ""
        _, _, version, found = path.split("/", 3)
        return found if version in VERSIONS[found.partition("/")[0]] else "unknown"

    def _submit(self, body: dict[str, Any]) -> None:
        if fault := _fault(body):
            self._fail(400, "INVALID_PARAMETER_VALUE", fault)
            return
        job = self.jobs.start(body)
        if self.jobs.lost_answers:
            self.jobs.lost_answers -= 1
            self.close_connection = True
            self.connection.close()
            return
        self._send(200, {"run_id": int(job.id)})

    def _list(self, fields: Mapping[str, str]) -> None:
        limit, begin = int(fields["limit"]), int(fields.get("page_token", 0))
        if limit > PAGE:
            self._fail(400, "INVALID_PARAMETER_VALUE", f"Invalid value for limit: {limit}")
            return
        runs = [self.jobs.shown_run(job) for job in reversed(self.jobs.jobs.values())]
        if fields.get("active_only") == "true":
            runs = [run for run in runs if run["state"]["life_cycle_state"] != "TERMINATED"]
        page: dict[str, Any] = {"runs": runs[begin : begin + limit]} if runs[begin:] else {}
        if runs[begin + limit :]:
            page |= {"has_more": True, "next_page_token": str(begin + limit)}
        self._send(200, page)

    def _job(self, run_id: str) -> RemoteJob | None:
        job = self.jobs.jobs.get(str(run_id))
        if job is None:
            self._fail(400, "INVALID_PARAMETER_VALUE", f"Run {run_id} does not exist.")
        return job

    def _fail(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, {"error_code": code, "message": message}, headers)

    def _send(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self._send_bytes(status, json.dumps(body).encode(), headers)

    def _send_bytes(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def _fault(body: dict[str, Any]) -> str:
    """What is wrong with the definition of a job."""
    tasks = body.get("tasks", [])
    if len(tasks) != 1 or set(body) - SUBMITTED or set(tasks[0]) - TASK:
        return "Cannot parse the request"
    cluster, program = tasks[0]["new_cluster"], tasks[0]["spark_python_task"]
    if unknown := set(cluster) - CLUSTER:
        return f"Cluster validation error: unknown fields {sorted(unknown)}"
    if cluster.get("spark_version") not in RELEASES:
        return f"Cluster validation error: Invalid spark version {cluster.get('spark_version')}"
    if cluster.get("data_security_mode") not in ("SINGLE_USER", "DATA_SECURITY_MODE_DEDICATED"):
        return "Cluster validation error: the access mode has no SparkContext"
    if "num_workers" not in cluster and "autoscale" not in cluster:
        return "Cluster validation error: Missing required field: num_workers"
    if len(json.dumps(program["parameters"])) > 10_000 or len(body["idempotency_token"]) > 64:
        return "a field is too long"
    if not all(isinstance(value, str) for value in cluster["spark_conf"].values()):
        return "spark_conf must have texts"
    return ""
