"""A service on 127.0.0.1 that speaks the part of Kubernetes' API that ``spark-submit`` and the launcher use.

The pods are the jobs of `harness.jobs_service`, with another definition and another interface: a pod's containers are
processes on this machine. Where a volume is mounted, the paths in the container's command and variables are replaced by
those of the volume's folder. The image is this checkout's environment, and its entry point is the one of Spark's
images, with one difference: the master of the driver is a cluster of processes (``local-cluster``), so executors are
processes, which have their own folders, but no pods.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from harness.google_provider import add_packages
from harness.jobs_service import SUBMIT, JobsService, RemoteJob, serving

NAMESPACE = "spark"
PACKAGES = ("kubernetes==37.0.2", "durationpy==0.11", "requests-oauthlib==2.0.0", "websocket-client==1.9.2")
"""The client of Kubernetes, which is not in the environment of the checkout."""
PHASES = {"SUBMITTED": "Pending", "SCHEDULED": "Pending", "RUNNING": "Running", "SUCCESS": "Succeeded"}
"""The phases of pods, by the states of jobs. The others are failures."""
LOCAL = (
    *("--master", "local-cluster[1,2,1024]", "--conf", "spark.ui.enabled=false"),
    *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
    # On Kubernetes, the driver makes it.
    *("--conf", "spark.authenticate.secret=of-this-driver"),
)
CONFIG_MAP_SECONDS = 60.0
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
KINDS = "pods|configmaps|services|networkpolicies"
PATHS = rf"(?:/api/v1|/apis/networking.k8s.io/v1)/namespaces/([^/]+)/({KINDS})(?:/([^/]+))?"


class KubernetesService(JobsService):
    """The pods of one namespace. ``objects`` has the other objects, by their kind and their name. With a ``fault``, the
    containers of pods that have not started wait for this reason. ``denied`` are verbs that the user may not use."""

    TOKEN = "name"

    def __init__(self, folder: Path, endpoint: str, python: str) -> None:
        super().__init__(folder, endpoint, python)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.deleted: list[str] = []
        self.fault = ""
        self.denied: set[str] = set()

    def named(self, name: str) -> RemoteJob | None:
        return next((job for job in self.jobs.values() if job.request["name"] == name), None)

    def seconds(self, job: RemoteJob) -> float | None:
        limit = job.request["pod"]["spec"].get("activeDeadlineSeconds")
        return None if limit is None else float(limit)

    def delete(self, job: RemoteJob) -> None:
        """Delete a pod, and what it owns."""
        self.cancel(job)
        with self.lock:
            self.deleted.append(job.request["name"])
            del self.jobs[job.id]
            for key, found in list(self.objects.items()):
                if job.id in [owner["uid"] for owner in found["metadata"].get("ownerReferences", ())]:
                    del self.objects[key]

    def _command(self, job: RemoteJob) -> tuple[list[str], dict[str, str]]:
        spec = job.request["pod"]["spec"]
        folders = {volume["name"]: self._volume(volume, job) for volume in spec.get("volumes", ())}
        for container in spec.get("initContainers", ()):
            command, environment = self._process(container, folders, job)
            with (job.folder / "init.log").open("wb") as log:
                subprocess.run(command, env=environment, cwd=job.folder, stdout=log, stderr=log, check=True)
        (container,) = spec["containers"]
        return self._process(container, folders, job)

    def _volume(self, volume: Mapping[str, Any], job: RemoteJob) -> Path:
        folder: Path = job.folder / "volumes" / volume["name"]
        folder.mkdir(parents=True)
        if "configMap" in volume:
            # As a kubelet, wait for it: spark-submit creates it after the pod.
            deadline = time.monotonic() + CONFIG_MAP_SECONDS
            while (found := self.objects.get(("configmaps", volume["configMap"]["name"]))) is None:
                assert time.monotonic() < deadline, "FailedMount"
                time.sleep(0.05)
            for name, text in found["data"].items():
                (folder / name).write_text(text)
        return folder

    def _process(
        self, container: Mapping[str, Any], folders: Mapping[str, Path], job: RemoteJob
    ) -> tuple[list[str], dict[str, str]]:
        mounts = {mount["mountPath"]: folders[mount["name"]] for mount in container.get("volumeMounts", ())}

        def here(text: str) -> str:
            for path, folder in mounts.items():
                text = text.replace(path, str(folder))
            return text

        given = {one["name"]: here(one["value"]) for one in container.get("env", ()) if one.get("value") is not None}
        environment = self.environment(job) | given
        environment |= {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python}
        command, arguments = [[here(one) for one in container.get(name, ())] for name in ("command", "args")]
        if command:
            # The image has one Python.
            return [self.python, *command[1:], *arguments], environment
        kind, *options = arguments
        assert kind == "driver", kind
        for name in folders:
            for file in folders[name].glob("spark.properties"):
                file.write_text(here(file.read_text()))
        return [SUBMIT[0], *LOCAL, "--deploy-mode", "client", *options], environment

    def shown(self, job: RemoteJob) -> dict[str, Any]:
        """The pod of a job, with its status."""
        pod = job.request["pod"]
        phase = PHASES.get(job.state, "Failed")
        status: dict[str, Any] = {"phase": phase}
        if phase == "Pending" and self.fault:
            waiting = {"reason": self.fault, "message": "the stand-in was asked for it"}
            container = {"name": "driver", "ready": False, "restartCount": 0, "image": "", "imageID": ""}
            status["containerStatuses"] = [{**container, "state": {"waiting": waiting}}]
        elif phase == "Pending":
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"}
            status["conditions"] = [condition]
        elif phase == "Failed":
            late = job.details == "timeout"
            status |= {"reason": "DeadlineExceeded" if late else "Error", "message": job.details}
        return {**pod, "status": status}


@contextmanager
def kubernetes_service(folder: Path, endpoint: str, python: str) -> Iterator[tuple[KubernetesService, Path]]:
    """Start a service. Yield it, and a ``kubeconfig`` file for it. At the end, all pods are killed.

    :param endpoint: the S3 server.
    :param python: the Python of the pods.
    """
    add_packages("kubernetes", PACKAGES)
    service = KubernetesService(folder, endpoint, python)

    class Handler(_Handler):
        jobs = service

    with serving(service, Handler) as url:
        config = folder / "kubeconfig"
        config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "clusters": [{"name": "here", "cluster": {"server": url}}],
                    "users": [{"name": "airflow", "user": {"token": "t0ken-of-airflow"}}],
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "airflow"}}],
                }
            )
        )
        yield service, config


class _Handler(BaseHTTPRequestHandler):
    jobs: KubernetesService
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind, name = self._target()
        if kind is None:
            return
        if kind == "pods" and not name:
            pods = [self.jobs.shown(job) for job in self.jobs.jobs.values()]
            self._send(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})
        elif kind == "pods" and (job := self.jobs.named(name)) is not None:
            self._send(200, self.jobs.shown(job))
        elif (found := self.jobs.objects.get((kind, name))) is not None:
            self._send(200, found)
        else:
            self._fail(404, "NotFound", f'{kind} "{name}" not found')

    def do_POST(self) -> None:
        body = self._body()
        if self.jobs.refusals:
            self.jobs.refusals -= 1
            self._fail(429, "TooManyRequests", "the server is busy")
            return
        if self.path.partition("?")[0] == REVIEWS:
            verb = body["spec"]["resourceAttributes"]["verb"]
            self._send(201, {**body, "status": {"allowed": verb not in self.jobs.denied}})
            return
        kind, _ = self._target()
        if kind is None:
            return
        name = body["metadata"]["name"]
        if kind != "pods":
            self.jobs.objects[kind, name] = _made(body)
            self._send(201, self.jobs.objects[kind, name])
            return
        with self.jobs.lock:
            if self.jobs.named(name) is not None:
                self._fail(409, "AlreadyExists", f'pods "{name}" already exists')
                return
            body = _made(body)
            job = self.jobs.start({"name": name, "pod": body})
            body["metadata"]["uid"] = job.id
        self._send(201, self.jobs.shown(job))

    def do_PATCH(self) -> None:
        body = self._body()
        kind, name = self._target()
        if kind is None:
            return
        self.jobs.objects[kind, name] = _made(body)
        self._send(200, body)

    def do_DELETE(self) -> None:
        self._body()
        kind, name = self._target()
        if kind is None:
            return
        job = self.jobs.named(name)
        if job is None:
            self._fail(404, "NotFound", f'{kind} "{name}" not found')
            return
        self.jobs.delete(job)
        self._send(200, self.jobs.shown(job))

    def _body(self) -> Any:
        return yaml.safe_load(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _target(self) -> tuple[str | None, str]:
        path = self.path.partition("?")[0]
        found = re.fullmatch(PATHS, path)
        if found is None:
            self._fail(404, "NotFound", path)
        elif found[1] != NAMESPACE or self.headers.get("Authorization") != "Bearer t0ken-of-airflow":
            self._fail(403, "Forbidden", f'cannot use resource "{found[2]}" in the namespace "{found[1]}"')
        else:
            return found[2], found[3] or ""
        return None, ""

    def _fail(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
        self._send(code, {**status, "message": message, "metadata": {}})

    def _send(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def _made(body: dict[str, Any]) -> dict[str, Any]:
    """An object as it is stored."""
    uid, now = uuid.uuid4().hex, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body["metadata"] = {"uid": uid, "creationTimestamp": now, "namespace": NAMESPACE, **body["metadata"]}
    return body
