"""Job clusters of Databricks.

Each job is a run of its own (`runs/submit`) on a new cluster in dedicated access mode. In standard access mode and on
serverless compute, programs have no ``SparkContext``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_provider_cdc.compat import databricks_request
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, Problem, SparkFailed
from airflow_provider_cdc.hooks.platforms import JobGoneError, JobSpec, JobState, Phase
from airflow_provider_cdc.hooks.spark import SparkPlatformSettings

KIND = "databricks"
PROTECTED = {
    # Databricks opens the session, and Spark writes tasks, which contain the source's password, to its disks.
    "spark.io.encryption.enabled": "true",
}
"""Properties of each cluster, unless the user sets others."""
NETWORK_ENCRYPTION = "spark.network.crypto.enabled"
"""With this property, the field ``cluster`` says that an init script encrypts the traffic between the nodes."""
DEDICATED = ("SINGLE_USER", "DATA_SECURITY_MODE_DEDICATED")
"""The names of the dedicated access mode, of which the first is the default."""
START = '''\
"""Add the package to this session, and run the app of a step: tasks of this kind have no option --py-files.

The arguments are the URIs of both, and then those of the app.
"""

import runpy
import sys

from pyspark import SparkFiles
from pyspark.sql import SparkSession

_, package, app, *arguments = sys.argv
context = SparkSession.builder.getOrCreate().sparkContext
context.addPyFile(package)
context.addFile(app)
sys.argv = [app, *arguments]
runpy.run_path(SparkFiles.get(app.rpartition("/")[2]), run_name="__main__")
'''
"""The program that the clusters execute."""
REQUEST_SECONDS = 60
"""How long a request may take, in seconds. A driver may wait for its settings meanwhile."""
_REFUSED = (400, 403, 404)
_ENDED = ("TERMINATED", "SKIPPED", "INTERNAL_ERROR")
_PAGE = 24


class RequestRefused(Exception):
    """Databricks refuses a request.

    :param status: the HTTP status.
    :param code: the error code of the service. Empty: the answer is not from the service.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code + ': ' if code else ''}{message} (HTTP status {status})")
        self.status = status
        self.code = code


class Databricks:
    """A workspace of Databricks.

    :param settings: those of the connection.
    :raises ConfigurationError: the connection to the workspace does not exist, is of another type, or names no host;
        or ``spark_conf`` of the cluster is not an object.
    """

    kind = KIND
    stores: Sequence[str] = ("s3",)
    needs_spark = False

    def __init__(self, settings: SparkPlatformSettings) -> None:
        self.conn_id = settings.spark_conn_id
        self.target = _host(settings)
        self.limit_seconds = settings.limit_minutes * 60
        self._settings = settings
        # In a form, null is a field that is not set.
        self._cluster = {name: value for name, value in settings.cluster.items() if value is not None}
        if not isinstance(self._cluster.get("spark_conf", {}), Mapping):
            hint = 'write it as {"name": "value", …}'
            raise ConfigurationError("it is not a JSON object", where=f"{self._where}, cluster.spark_conf", hint=hint)

    @cached_property
    def _hook(self) -> Any:
        # One hook, which keeps its connection, because a task that is being killed cannot ask Airflow for it.
        from airflow.providers.databricks.hooks.databricks import DatabricksHook

        return DatabricksHook(self._settings.conn_id, timeout_seconds=REQUEST_SECONDS)

    def _call(self, method: str, path: str, **fields: Any) -> dict[str, Any]:
        """Send a request, which the hook repeats if the service is busy.

        :param path: the path of the interface, beginning with its version.
        :raises RequestRefused: Databricks refuses it.
        """
        from requests import HTTPError

        try:
            return databricks_request(self._hook, method, path, fields)
        except HTTPError as error:
            answer: Any = error.response
            raise RequestRefused(answer.status_code, *_code_and_message(answer)) from error

    def check(self, *, here: bool) -> Sequence[Problem]:
        try:
            versions = self._call("GET", "2.1/clusters/spark-versions")["versions"]
            types = self._call("GET", "2.1/clusters/list-node-types")["node_types"]
            # The right to read runs.
            self._call("GET", "2.1/jobs/runs/list", limit=1)
            if policy := self._cluster.get("policy_id"):
                self._call("GET", "2.0/policies/clusters/get", policy_id=policy)
        except ModuleNotFoundError:
            if not here:
                return []
            hint = "pip install 'airflow-provider-cdc[databricks]', where Airflow's tasks run"
            return [Problem(self._where, "the provider for Databricks is not installed", hint)]
        except Exception as error:
            if _is_temporary(error):
                raise SparkFailed(f"{KIND} {self.target}: {error}", where=self._where, hint="retry the task") from error
            hint = f"check the connection {self._settings.conn_id!r}, and what its user may read in the workspace"
            return [Problem(self._where, f"the workspace {self.target} cannot be used: {error}", hint)]
        by_id = {one["node_type_id"]: one for one in types}
        return [*self._problems({one["key"]: one["name"] for one in versions}), *self._node_problems(by_id)]

    def _problems(self, versions: Mapping[str, str]) -> Iterator[Problem]:
        where, release = f"{self._where}, cluster", str(self._cluster.get("spark_version", ""))
        if not release and "policy_id" not in self._cluster:
            yield Problem(where, "it has no spark_version", "use 17.3.x-scala2.13 or later")
        elif release and (found := re.search(r"Apache Spark (\d+)", versions.get(release, ""))) is None:
            yield Problem(where, f"the workspace has no spark_version {release}", "use 17.3.x-scala2.13 or later")
        elif release and found is not None and int(found[1]) < 4:
            yield Problem(where, f"{versions[release]} has no Spark 4", "use 17.3.x-scala2.13 or later")
        if (mode := self._cluster.get("data_security_mode", DEDICATED[0])) not in DEDICATED:
            what = f"data_security_mode is {mode}: only in dedicated access mode, programs have a SparkContext"
            yield Problem(where, what, f"remove it, or set {DEDICATED[0]}")
        requirements = self._settings.requirements
        if requirements and not requirements.startswith(("/Volumes/", "/Workspace/")):
            hint = "give the path of a file below /Volumes or /Workspace"
            yield Problem(f"{self._where}, requirements", f"Databricks cannot read {requirements}", hint)

    def _node_problems(self, types: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
        where, cluster = f"{self._where}, cluster", self._cluster
        names = [str(cluster[name]) for name in ("node_type_id", "driver_node_type_id") if cluster.get(name)]
        if unknown := sorted({*names} - {*types}):
            yield Problem(where, f"the workspace has no node type {', '.join(unknown)}", "choose others")
            return
        is_single = cluster.get("is_single_node") or (cluster.get("num_workers") == 0 and "autoscale" not in cluster)
        stated = str(cluster.get("spark_conf", {}).get(NETWORK_ENCRYPTION)).lower() == "true"
        # A pool or a policy may choose the node types.
        encrypt = "node_type_id" in cluster and all(types[name].get("is_encrypted_in_transit") for name in names)
        if not (is_single or stated or encrypt):
            yield Problem(
                where,
                "the traffic between its nodes, which contains the source's password, may not be encrypted",
                "choose node types with is_encrypted_in_transit, or one node, or encrypt the traffic with an init "
                f"script and set {NETWORK_ENCRYPTION} in its Spark properties",
            )

    @property
    def _where(self) -> str:
        return f"spark_conn_id {self.conn_id!r}"

    def start(self, spec: JobSpec) -> str:
        code = Storage(spec.app.rpartition("/")[0])
        code.write_bytes("databricks.py", START.encode())
        task: dict[str, Any] = {
            "task_key": "cdc",
            "new_cluster": {
                "data_security_mode": DEDICATED[0],
                **self._cluster,
                "spark_conf": {**PROTECTED, **self._cluster.get("spark_conf", {}), **spec.properties},
            },
            "spark_python_task": {
                "python_file": code.uri_of("databricks.py"),
                "parameters": [spec.package, spec.app, *spec.arguments],
            },
        }
        if self._settings.requirements:
            task["libraries"] = [{"requirements": self._settings.requirements}]
        try:
            started = self._call(
                "POST",
                "2.1/jobs/runs/submit",
                run_name=spec.name,
                idempotency_token=spec.token,
                timeout_seconds=max(60, round(spec.deadline - time.time())),
                tasks=[task],
            )
        except RequestRefused as error:
            if error.status not in _REFUSED:
                raise
            hint = f"correct the field `cluster`, or the rights of the connection {self._settings.conn_id!r}"
            raise ConfigurationError(f"Databricks refuses the job: {error}", where=self._where, hint=hint) from error
        return str(started["run_id"])

    def find(self, token: str) -> str:
        # A job whose answer was lost got no settings. So if it has ended, it has done nothing.
        asked: dict[str, Any] = {"active_only": "true", "run_type": "SUBMIT_RUN", "limit": _PAGE}
        while True:
            page = self._call("GET", "2.1/jobs/runs/list", **asked)
            for run in page.get("runs", ()):
                if run.get("run_name", "").endswith(token):
                    return str(run["run_id"])
            if not page.get("next_page_token"):
                return ""
            asked["page_token"] = page["next_page_token"]

    def arguments(self, job: str) -> Sequence[str]:
        (task,) = self._run(job)["tasks"]
        return list(task["spark_python_task"].get("parameters", ()))

    def state(self, job: str) -> JobState:
        run = self._run(job)
        state = run["state"]
        if state["life_cycle_state"] not in _ENDED:
            return JobState(Phase.RUNNING)
        result = state.get("result_state") or state["life_cycle_state"]
        if result == "SUCCESS":
            return JobState(Phase.SUCCEEDED)
        details = f"the Databricks run {job} is {result}: {state.get('state_message') or 'without a reason'}"
        return JobState(
            Phase.FAILED, details, f"see {run.get('run_page_url', 'the run')}, fix the cause, and clear the task"
        )

    def _run(self, job: str) -> dict[str, Any]:
        try:
            return self._call("GET", "2.1/jobs/runs/get", run_id=int(job))
        except RequestRefused as error:
            if _is_gone(error):
                raise JobGoneError(job) from None
            raise

    def cancel(self, job: str) -> None:
        with suppress(JobGoneError):
            try:
                self._call("POST", "2.1/jobs/runs/cancel", run_id=int(job))
            except RequestRefused as error:
                if not _is_gone(error):
                    raise


def _host(settings: SparkPlatformSettings) -> str:
    where = f"spark_conn_id {settings.spark_conn_id!r}, conn_id"
    hint = "create a connection of type databricks, with the host of the workspace"
    try:
        connection = BaseHook.get_connection(settings.conn_id)
    except AirflowNotFoundException:
        raise ConfigurationError(f"no connection {settings.conn_id!r}", where=where, hint=hint) from None
    if connection.conn_type != KIND:
        # Its password must not be sent as a token.
        what = f"the connection {settings.conn_id!r} is of the type {connection.conn_type}"
        raise ConfigurationError(what, where=where, hint=hint)
    # As the hook reads it.
    host = str(connection.extra_dejson.get("host") or connection.host or "").rstrip("/")
    if not host:
        raise ConfigurationError(f"the connection {settings.conn_id!r} has no host", where=where, hint=hint)
    return urlsplit(host).hostname or host


def _code_and_message(response: Any) -> tuple[str, str]:
    """Return what an answer says about an error."""
    try:
        body = response.json()
        return str(body["error_code"]), str(body["message"])
    except (KeyError, TypeError, ValueError):
        return "", str(response.reason)


def _is_gone(error: RequestRefused) -> bool:
    """Return whether the service itself says that there is no such run. A proxy may answer with the same status."""
    # Some versions of the service say that the parameter is invalid.
    return error.code == "RESOURCE_DOES_NOT_EXIST" or (
        error.code == "INVALID_PARAMETER_VALUE" and "does not exist" in str(error)
    )


def _is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later: the hook has repeated it without success."""
    from tenacity import RetryError

    return isinstance(error.__context__, RetryError)
