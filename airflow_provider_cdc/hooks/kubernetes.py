"""Cluster mode of ``spark-submit`` on Kubernetes: the driver is a pod.

``spark-submit`` creates the pod, and ends. Both it and the client library that follows the pod read the Kubernetes
configuration of the worker: the file that ``KUBECONFIG`` names, or else the service account of the worker's own pod. So
they cannot mean different clusters, as they could if a connection of Airflow named one of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_cdc.errors import ConfigurationError, Problem, SparkFailed
from airflow_provider_cdc.hooks.platforms import JobGoneError, JobSpec, JobState, Phase
from airflow_provider_cdc.hooks.spark import SparkPlatformSettings

KIND = "kubernetes"
CODE = "/opt/airflow-provider-cdc"
"""The folder of the driver's pod with the app and this package."""
DRIVER = "spark-kubernetes-driver"
"""The name of the container of the driver, which is Spark's default."""
PACKAGE_VARIABLE = "CDC_PACKAGE"
"""The variable with which the driver sends the package to executors (`jobs.runtime.driver`)."""
FETCH = """\
import sys
from pathlib import Path
from pyarrow import fs
for uri in sys.argv[2:]:
    store, path = fs.FileSystem.from_uri(uri)
    with store.open_input_stream(path) as file:
        Path(sys.argv[1], path.rpartition("/")[2]).write_bytes(file.read())
"""
"""The program of the init container. Spark could also fetch the files, but only with Hadoop's client of the store."""
CONFIGURATION = "spark-conf-volume-driver"
"""The name that Spark gives to the volume with the config map."""
PROTECTED = {
    # Spark's tasks contain the source's password.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}
"""Properties of each job, unless the user sets others."""
UNSET = ("SPARK_REMOTE", "AIRFLOW_")
"""The beginnings of the names of variables that ``spark-submit`` does not get: it refuses a master beside a server of
Spark Connect, and Airflow's variables may have its connections and keys."""
REQUEST_SECONDS = 60.0
"""How long a request may take, in seconds."""
SUBMIT_SECONDS = 600.0
"""How long ``spark-submit`` may take, in seconds."""
_PHASES = {"Succeeded": Phase.SUCCEEDED, "Failed": Phase.FAILED}
_NEVER = ("InvalidImageName", "ErrImageNeverPull")
"""Reasons for which a container never starts."""
_RIGHTS = (
    *(("", "pods", verb) for verb in ("create", "get", "delete")),
    *(("", kind, verb) for kind in ("configmaps", "services") for verb in ("create", "patch")),
    ("", "configmaps", "get"),
)
"""The rights in the namespace of the jobs: API group, kind and verb."""


class Kubernetes:
    """A namespace of a Kubernetes cluster.

    :param settings: those of the connection.
    """

    kind = KIND
    stores: Sequence[str] = ("s3", "gs")
    needs_spark = True

    def __init__(self, settings: SparkPlatformSettings) -> None:
        self.conn_id = settings.spark_conn_id
        self.target = f"namespaces/{settings.namespace}"
        self.limit_seconds = settings.limit_minutes * 60
        self._settings = settings
        self._namespace = settings.namespace

    @cached_property
    def _configuration(self) -> Any:
        """The configuration of this machine, with the address of the API server and the credentials.

        :raises kubernetes.config.ConfigException: there is none.
        """
        from kubernetes import client, config

        found = client.Configuration()
        file = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        if any(Path(one).exists() for one in file.split(os.pathsep)):
            config.load_kube_config(config_file=file, client_configuration=found)
        else:
            config.load_incluster_config(client_configuration=found)
        return found

    @cached_property
    def _client(self) -> Any:
        from kubernetes import client

        return client.CoreV1Api(client.ApiClient(self._configuration))

    def check(self, *, here: bool) -> Sequence[Problem]:
        if not here:
            # Another machine may have the packages, and another configuration.
            return []
        try:
            return list(self._problems_of_rights())
        except ModuleNotFoundError:
            hint = "pip install 'airflow-provider-cdc[kubernetes]', where Airflow's tasks run"
            return [Problem(self._where, "the client of Kubernetes is not installed", hint)]
        except Exception as error:
            if _is_temporary(error):
                raise SparkFailed(f"{KIND} {self.target}: {error}", where=self._where, hint="retry the task") from error
            hint = "let KUBECONFIG name a configuration, or give the pods of Airflow's workers a service account"
            return [Problem(self._where, f"the cluster cannot be used: {error}", hint)]

    def _problems_of_rights(self) -> Iterator[Problem]:
        from kubernetes import client

        reviews = client.AuthorizationV1Api(client.ApiClient(self._configuration))
        for group, resource, verb in _RIGHTS:
            asked = {"namespace": self._namespace, "group": group, "resource": resource, "verb": verb}
            body = {"spec": {"resourceAttributes": asked}}
            if not reviews.create_self_subject_access_review(body, _request_timeout=REQUEST_SECONDS).status.allowed:
                what = f"Airflow's worker may not {verb} {resource} in the namespace {self._namespace}"
                yield Problem(self._where, what, "add the right to its role (docs/kubernetes.md)")

    @property
    def _where(self) -> str:
        return f"spark_conn_id {self.conn_id!r}"

    def start(self, spec: JobSpec) -> str:
        job = _pod_name(spec.token)
        if self.find(spec.token):
            return job
        with TemporaryDirectory(prefix="cdc-submit-") as folder:
            template = Path(folder, "pod.json")
            template.write_text(json.dumps(self._template(spec)))
            done = self._submit(self._command(spec, template))
        if done.returncode and "AlreadyExists" not in done.stdout:
            # What a spark-submit that failed has left would wait for its config map forever.
            self.cancel(job)
            reason = _message(done.stdout) or f"status {done.returncode}"
            if re.search(r"Forbidden|Invalid\b|BadRequest|exceeded quota", done.stdout):
                hint = "correct the fields of the connection, Spark's properties, or the rights of the worker"
                raise ConfigurationError(f"spark-submit: {reason}", where=self._where, hint=hint)
            raise SparkFailed(f"spark-submit: {reason}", where=self._where, hint="retry the task")
        return job

    def _command(self, spec: JobSpec, template: Path) -> list[str]:
        given = self._settings
        app, package = (f"{CODE}/{uri.rpartition('/')[2]}" for uri in (spec.app, spec.package))
        properties = {
            **PROTECTED,
            **spec.properties,
            "spark.kubernetes.namespace": given.namespace,
            "spark.kubernetes.container.image": given.image,
            "spark.kubernetes.authenticate.driver.serviceAccountName": given.service_account,
            "spark.kubernetes.driver.pod.name": _pod_name(spec.token),
            "spark.kubernetes.driver.podTemplateFile": str(template),
            "spark.kubernetes.driver.podTemplateContainerName": DRIVER,
            # Spark does not send to executors what is local to the driver's pod. The driver does.
            f"spark.kubernetes.driverEnv.{PACKAGE_VARIABLE}": package,
            "spark.kubernetes.submission.waitAppCompletion": "false",
        }
        words = [word for name, value in properties.items() for word in ("--conf", f"{name}={value}")]
        host = self._configuration.host
        words += ["--master", f"k8s://{host}", "--deploy-mode", "cluster", "--name", spec.name]
        return [_spark_submit(), *words, "--py-files", f"local://{package}", f"local://{app}", *spec.arguments]

    def _submit(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={name: os.environ[name] for name in os.environ if not name.startswith(UNSET)},
                timeout=SUBMIT_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            hint = "pip install 'airflow-provider-cdc[spark]', where Airflow's tasks run"
            raise ConfigurationError(f"there is no {error.filename}", where=self._where, hint=hint) from error

    def _template(self, spec: JobSpec) -> Mapping[str, Any]:
        """Return the template of the driver's pod: the limit, and a container that fetches the code."""
        mounts = [{"name": "cdc-code", "mountPath": CODE}]
        fetching = {
            "name": "cdc-code",
            "image": self._settings.image,
            "command": ["python3", "-c", FETCH, CODE, spec.app, spec.package],
            "volumeMounts": mounts,
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"labels": {"app.kubernetes.io/managed-by": "airflow-provider-cdc"}},
            "spec": {
                "activeDeadlineSeconds": max(1, round(spec.deadline - time.time())),
                "initContainers": [fetching],
                "containers": [{"name": DRIVER, "volumeMounts": mounts}],
                "volumes": [{"name": "cdc-code", "emptyDir": {}}],
            },
        }

    def find(self, token: str) -> str:
        try:
            pod = self._pod(_pod_name(token))
        except JobGoneError:
            return ""
        # A spark-submit that was killed may have created the pod, but not yet the config map, without which no
        # container starts.
        if pod.status.phase == "Pending" and not all(map(self._has_config_map, pod.spec.volumes)):
            self.cancel(pod.metadata.name)
            return ""
        return str(pod.metadata.name)

    def _has_config_map(self, volume: Any) -> bool:
        from kubernetes.client import ApiException

        if volume.name != CONFIGURATION:
            return True
        try:
            self._client.read_namespaced_config_map(
                volume.config_map.name, self._namespace, _request_timeout=REQUEST_SECONDS
            )
        except ApiException as error:
            if error.status != 404:
                raise
            return False
        return True

    def arguments(self, job: str) -> Sequence[str]:
        containers = self._pod(job).spec.containers
        return [argument for one in containers if one.name == DRIVER for argument in one.args or ()]

    def state(self, job: str) -> JobState:
        pod = self._pod(job)
        phase = _PHASES.get(pod.status.phase, Phase.RUNNING)
        reason = _waits_for(pod)
        if phase is Phase.RUNNING and reason.startswith(_NEVER):
            # Kubernetes would keep the pod until its deadline.
            self.cancel(job)
            phase = Phase.FAILED
        if phase is not Phase.FAILED:
            return JobState(phase)
        ended = ": ".join(filter(None, (pod.status.reason, pod.status.message))) or reason or _ended_with(pod)
        hint = f"see `kubectl logs --all-containers {job} -n {self._namespace}`, fix the cause, and clear the task"
        return JobState(phase, f"the pod {job} is {pod.status.phase}: {ended or 'without a reason'}", hint)

    def _pod(self, job: str) -> Any:
        from kubernetes.client import ApiException

        try:
            return self._client.read_namespaced_pod(job, self._namespace, _request_timeout=REQUEST_SECONDS)
        except ApiException as error:
            if error.status != 404:
                raise
            raise JobGoneError(job) from None

    def cancel(self, job: str) -> None:
        from kubernetes.client import ApiException

        with suppress(JobGoneError):
            if self._pod(job).status.phase in _PHASES:
                # Its output may still be of use.
                return
            try:
                self._client.delete_namespaced_pod(job, self._namespace, _request_timeout=REQUEST_SECONDS)
            except ApiException as error:
                if error.status != 404:
                    raise


def _pod_name(token: str) -> str:
    """Return the name of the pod of a job, by which a repeated submission is refused."""
    return f"cdc-{token}"


def _spark_submit() -> str:
    """Return the path of ``spark-submit``, which `RemoteLauncher.check` looks for in the same folders."""
    path = os.pathsep.join(filter(None, [os.environ.get("PATH"), str(Path(sys.executable).parent)]))
    return which("spark-submit", path=path) or "spark-submit"


def _message(output: str) -> str:
    """Return the message of the API server, or the last line, of what ``spark-submit`` wrote."""
    found = re.findall(r"Message: (.+?)\. Received status", output) or re.findall(r"Exception.*?: (.+)", output)
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("\t")]
    return str((found or lines or [""])[-1])[:500]


def _waits_for(pod: Any) -> str:
    """Return why a container of a pod does not start. Empty: none waits."""
    for one in [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]:
        if one.state is not None and one.state.waiting is not None and one.state.waiting.message:
            return f"{one.state.waiting.reason}: {one.state.waiting.message}"
    for one in pod.status.conditions or ():
        if one.type == "PodScheduled" and one.status == "False":
            return f"{one.reason}: {one.message}"
    return ""


def _ended_with(pod: Any) -> str:
    """Return how the container that failed has ended."""
    for one in [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]:
        ended = one.state.terminated if one.state is not None else None
        if ended is not None and ended.exit_code:
            return f"the container {one.name} ended with status {ended.exit_code} ({ended.reason})"
    return ""


def _is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    return isinstance(error, HTTPError) or (
        isinstance(error, ApiException) and (error.status == 429 or (error.status or 0) >= 500)
    )
