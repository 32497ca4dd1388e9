"""A service on 127.0.0.1 that speaks the API of EMR Serverless and runs the jobs with ``spark-submit`` on this machine.

Each job has an environment of its own: no variable of this process, a folder with only what the job's definition names,
and the S3 server as the only store, with the credentials that stand for the role of the job. The service can lose its
answers, refuse requests, forget a job, and hold jobs back.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyspark
from pyarrow import fs

from harness.java import java_home
from harness.s3_server import s3_environment

APPLICATION = "00fcdcapplication"
RELEASE = "emr-spark-8.0.0"
SPARK_HOME = Path(pyspark.__file__).parent
SUBMIT = (str(SPARK_HOME / "bin/spark-submit"), "--master", "local[2]", "--conf", "spark.ui.enabled=false")
DRIVER_VARIABLE = "spark.emr-serverless.driverEnv."


@dataclass
class RemoteJob:
    """A job, as it was requested, and its process."""

    id: str
    request: dict[str, Any]
    folder: Path
    created: float = field(default_factory=time.time)
    state: str = "SUBMITTED"
    details: str = ""
    process: subprocess.Popen[bytes] | None = None
    unpacked: list[Path] = field(default_factory=list)

    @property
    def output(self) -> str:
        """What the job has printed."""
        log = self.folder / "output.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def shown(self) -> dict[str, Any]:
        return {
            "applicationId": APPLICATION,
            "jobRunId": self.id,
            "arn": f"arn:aws:emr-serverless:us-east-1:0:/applications/{APPLICATION}/jobruns/{self.id}",
            "name": self.request.get("name", ""),
            "createdBy": "arn:aws:iam::0:user/airflow",
            "createdAt": self.created,
            "updatedAt": time.time(),
            "executionRole": self.request["executionRoleArn"],
            "state": self.state,
            "stateDetails": self.details,
            "releaseLabel": RELEASE,
            "jobDriver": self.request["jobDriver"],
        }


class JobsService:
    """The jobs of one application. ``lost_answers`` and ``refusals`` are numbers of requests still to come: of those
    that start a job and get no answer, and of those that are throttled. If jobs are ``held``, they wait for resources
    forever. Unless a client ``may_cancel``, the service refuses it. ``variables`` are more environment variables of the
    jobs."""

    TOKEN: ClassVar[str] = "clientToken"
    """The field of a request that makes it idempotent."""

    def __init__(self, folder: Path, endpoint: str, python: str) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self.python = python
        # Found here, because the search starts processes, which inherit the environment.
        self._java = str(java_home())
        self.jobs: dict[str, RemoteJob] = {}
        self.variables: dict[str, str] = {}
        self.lost_answers = 0
        self.refusals = 0
        self.held = False
        self.may_cancel = True
        self.lock = threading.RLock()

    def start(self, request: dict[str, Any]) -> RemoteJob:
        with self.lock:
            for job in self.jobs.values():
                if job.request[self.TOKEN] == request[self.TOKEN]:
                    return job
            job = RemoteJob(self.new_id(), request, self._folder / uuid.uuid4().hex)
            job.folder.mkdir()
            self.jobs[job.id] = job
        if self.held:
            job.state = "SCHEDULED"
        else:
            threading.Thread(target=self._run, args=(job,), daemon=True).start()
        return job

    def new_id(self) -> str:
        return f"00{uuid.uuid4().hex[:14]}"

    def seconds(self, job: RemoteJob) -> float | None:
        """The time limit of a job, if the service keeps it."""
        return None

    def cancel(self, job: RemoteJob) -> bool:
        with self.lock:
            if job.state in ("SUCCESS", "FAILED", "CANCELLED"):
                return False
            job.state = "CANCELLED"
        self.kill(job)
        return True

    def kill(self, job: RemoteJob) -> None:
        """Kill the processes of a job."""
        if job.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill all jobs."""
        for job in self.jobs.values():
            self.kill(job)
            if job.process is not None:
                job.process.wait()

    def _run(self, job: RemoteJob) -> None:
        try:
            command, environment = self._command(job)
            with (job.folder / "output.log").open("wb") as log, self.lock:
                if job.state != "SUBMITTED":
                    return
                job.process = subprocess.Popen(
                    command,
                    env=environment,
                    cwd=job.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                job.state = "RUNNING"
            status = job.process.wait(self.seconds(job))
        except subprocess.TimeoutExpired:
            status, job.details = 1, "timeout"
            self.kill(job)
        except Exception as error:
            status, job.details = 1, str(error)
        for folder in job.unpacked:
            shutil.rmtree(folder, ignore_errors=True)
        with self.lock:
            if job.state != "CANCELLED":
                job.state = "FAILED" if status else "SUCCESS"
                job.details = job.details or (f"Job failed with exit code {status}" if status else "")

    def _command(self, job: RemoteJob) -> tuple[list[str], dict[str, str]]:
        driver = job.request["jobDriver"]["sparkSubmit"]
        words = iter(shlex.split(driver["sparkSubmitParameters"]))
        options: list[str] = []
        environment = self.environment(job)
        for word in words:
            value = next(words)
            name, _, setting = value.partition("=")
            if word == "--py-files":
                options += [word, str(self._fetched(value, job.folder))]
            elif name == "spark.archives":
                self.unpack(setting, job)
            elif name.startswith(DRIVER_VARIABLE):
                environment[name.removeprefix(DRIVER_VARIABLE)] = setting
            else:
                options += [word, value]
        environment |= {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python}
        app = self._fetched(driver["entryPoint"], job.folder)
        return [*SUBMIT, *options, str(app), *driver.get("entryPointArguments", ())], environment

    def unpack(self, uri: str, job: RemoteJob) -> None:
        """Unpack an archive in the folder of a job. Here, driver and executor are one process."""
        uri, _, alias = uri.partition("#")
        packed = self._fetched(uri, job.folder)
        with tarfile.open(packed) as archive:
            archive.extractall(job.folder / alias, filter="data")
        packed.unlink()
        job.unpacked.append(job.folder / alias)

    def environment(self, job: RemoteJob) -> dict[str, str]:
        """The variables of a job's driver."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(job.folder),
            # Kernels are compiled once for all tests. The folder has nothing else that a job could use.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "LANG": "C.UTF-8",
            "JAVA_HOME": self._java,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(job.folder),
            **s3_environment(self._endpoint),
            **self.variables,
        }

    def _fetched(self, uri: str, folder: Path) -> Path:
        scheme, _, path = uri.partition("://")
        assert scheme == "s3", uri
        target = folder / path.rpartition("/")[2]
        target.write_bytes(self.read(path))
        return target

    def read(self, path: str) -> bytes:
        """Return an object of the S3 server.

        :param path: its bucket and its key.
        """
        variables = s3_environment(self._endpoint)
        store = fs.S3FileSystem(
            access_key=variables["AWS_ACCESS_KEY_ID"],
            secret_key=variables["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=self._endpoint,
            region="us-east-1",
        )
        with store.open_input_stream(path) as file:
            return bytes(file.read())


@contextmanager
def jobs_service(folder: Path, endpoint: str, python: str) -> Iterator[tuple[JobsService, str]]:
    """Start a service. Yield it, and its URL. At the end, all jobs are killed.

    :param endpoint: the S3 server.
    :param python: the Python of the jobs, in place of the one that the jobs name.
    """
    service = JobsService(folder, endpoint, python)

    class Handler(_Handler):
        jobs = service

    with serving(service, Handler) as url:
        yield service, url


@contextmanager
def serving(service: JobsService, handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests, and yield the URL. At the end, all jobs are killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        service.close()


class _Handler(BaseHTTPRequestHandler):
    jobs: JobsService
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self._refuses():
            return
        if path == f"/applications/{APPLICATION}":
            self._send(200, {"application": _application()})
        elif path == f"/applications/{APPLICATION}/jobruns":
            listed = [{**job.shown(), "id": job.id} for job in self.jobs.jobs.values()]
            self._send(200, {"jobRuns": listed})
        elif (job := self._job(path)) is not None:
            self._send(200, {"jobRun": job.shown()})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refuses():
            return
        job = self.jobs.start(body)
        if self.jobs.lost_answers:
            self.jobs.lost_answers -= 1
            self.close_connection = True
            self.connection.close()
            return
        self._send(200, {"applicationId": APPLICATION, "jobRunId": job.id, "arn": job.shown()["arn"]})

    def do_DELETE(self) -> None:
        if self._refuses() or (job := self._job(self.path)) is None:
            return
        if not self.jobs.may_cancel:
            self._fail(403, "AccessDeniedException", "not authorized to perform: emr-serverless:CancelJobRun")
        elif self.jobs.cancel(job):
            self._send(200, {"applicationId": APPLICATION, "jobRunId": job.id})
        else:
            self._fail(400, "ValidationException", f"Job {job.id} is {job.state}")

    def _refuses(self) -> bool:
        if self.jobs.refusals:
            self.jobs.refusals -= 1
            self._fail(429, "ThrottlingException", "Rate exceeded")
            return True
        return False

    def _job(self, path: str) -> RemoteJob | None:
        found = re.fullmatch(rf"/applications/{APPLICATION}/jobruns/(\w+)", path)
        job = self.jobs.jobs.get(found[1]) if found else None
        if job is None:
            self._fail(404, "ResourceNotFoundException", f"{path} does not exist")
        return job

    def _fail(self, status: int, kind: str, message: str) -> None:
        self._send(status, {"message": message}, {"x-amzn-errortype": kind})

    def _send(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def _application() -> dict[str, Any]:
    return {
        "applicationId": APPLICATION,
        "arn": f"arn:aws:emr-serverless:us-east-1:0:/applications/{APPLICATION}",
        "releaseLabel": RELEASE,
        "type": "Spark",
        "state": "STARTED",
        "architecture": "X86_64",
        "networkConfiguration": {"subnetIds": ["subnet-1"], "securityGroupIds": ["sg-1"]},
        "createdAt": 0,
        "updatedAt": 0,
    }
