"""The launcher of platforms that start the driver themselves.

A task only starts a job, follows it and ends it; the job outlives the task. So the record of a job is written before
the job is submitted, and the next try finds the job: by the id that the platform gave, or, if the answer was lost, by
the token in the name of the job. A job that is given up is revoked first. Its driver sees that, and ends.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, Problem, SparkFailed
from airflow_provider_cdc.jobs.runtime import remote
from airflow_provider_cdc.jobs.runtime.driver import package_zip, to_argument, to_environment
from airflow_provider_cdc.jobs.runtime.remote import FOLDER, JobId, JobRecord
from airflow_provider_cdc.operators.spark.launchers.client.launcher import log_line, spark_app
from airflow_provider_cdc.operators.spark.launchers.registry import Job, JobState, Phase, SparkRequest

RECORDS = f"{FOLDER}/jobs"
"""The folder with the records of the jobs, in a folder for each step."""
POLL_SECONDS = 5.0
"""How often a job is looked at, in seconds."""
PATIENCE_SECONDS = 900.0
"""How long the platform may fail to answer before the task fails, in seconds."""
PROTECTED = {
    # Spark's tasks contain the source's password.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}
"""Properties of each job, unless the user sets others."""


class JobGoneError(Exception):
    """The platform does not know the job."""


@dataclass(frozen=True)
class JobSpec:
    """A job to start.

    :param name: for people, and to find the job: it ends with the token.
    :param app: the URI of the app.
    :param package: the URI of the zip file with this package.
    :param deadline: the Unix time at which the platform ends the job.
    """

    name: str
    token: str
    app: str
    package: str
    arguments: Sequence[str]
    properties: Mapping[str, str]
    deadline: int


class Platform(Protocol):
    """A service that runs Spark jobs. Its methods raise their library's errors, which may be temporary."""

    kind: str
    target: str
    """What runs the jobs, such as the id of an application."""
    limit_seconds: int
    """The longest time that a job may take, in seconds."""
    stores: Sequence[str]
    """The schemes of the URIs that a job can read."""

    def check(self, *, here: bool) -> Sequence[Problem]:
        """Return the problems because of which no job can start."""

    def start(self, spec: JobSpec) -> str:
        """Start a job, and return its id. Called again with the same token, this method starts no second job."""

    def find(self, token: str) -> str:
        """Return the id of the job whose name ends with the token. Empty: there is none."""

    def arguments(self, job: str) -> Sequence[str]:
        """Return the arguments of a job.

        :raises JobGoneError: there is no such job.
        """

    def state(self, job: str) -> JobState:
        """Return the state of a job.

        :raises JobGoneError: there is no such job.
        """

    def cancel(self, job: str) -> None:
        """End a job. If it has ended, or does not exist, do nothing."""


@dataclass
class _Followed:
    """A job that this process follows.

    :param parts: the number of parts of its output that are in the log of the task.
    :param failing_since: when the platform last answered, if it does not answer now.
    """

    record: str
    run: Storage
    nonce: str
    variables: Mapping[str, str]
    parts: int = 0
    failing_since: float | None = None


class RemoteLauncher:
    """Starts jobs on a platform.

    :param properties: the Spark properties of the application.
    :param log: the log that gets the output of the driver.
    """

    def __init__(self, platform: Platform, properties: Mapping[str, Any], log: Any) -> None:
        self._platform = platform
        self._properties = {name: str(value) for name, value in {**PROTECTED, **properties}.items()}
        self._log = log
        self._followed: dict[str, _Followed] = {}

    def check(self, *, here: bool = True) -> Sequence[Problem]:
        return self._platform.check(here=here)

    def check_reachable(self) -> None:
        """Do nothing: `check` has asked the platform."""

    def submit(self, request: SparkRequest) -> Job:
        if request.run.uri.partition("://")[0] not in self._platform.stores:
            hint = f"give a scratch or a target in {' or '.join(f'{one}://…' for one in self._platform.stores)}"
            raise ConfigurationError("the platform cannot read this folder", where=request.run.uri, hint=hint)
        with self._asking():
            return self._submit(request)

    def _submit(self, request: SparkRequest) -> Job:
        run, begun = request.run, _begun(request.run)
        while (last := _last_record(run, request.step)) is not None:
            name, record = last
            if run.exists(_ended_file(record.token)):
                break
            if self._goes_on(run, record, begun) and (job := self._found(run, record)):
                try:
                    nonce = _value(self._platform.arguments(job), "--nonce")
                except JobGoneError:
                    nonce = ""
                if nonce:
                    self._log.info("%s: continues the %s job %s", request.step, self._platform.kind, job)
                    return self._follow(Job(job, record.token), name, request, nonce)
            self._give_up(run, record)
        return self._start(request, begun, last)

    def _start(self, request: SparkRequest, begun: str, last: tuple[str, JobRecord] | None) -> Job:
        run, platform = request.run, self._platform
        deadline = int(time.time()) + platform.limit_seconds
        record = JobRecord(platform.kind, platform.target, request.token, begun, deadline)
        name = _next_name(request.step, last)
        if not run.create_json(name, records.encode(record)):
            # Another try of this task starts a job at the same time.
            return self._submit(request)
        nonce = secrets.token_hex(16)
        code = _upload_code(run, request.step)
        spec = JobSpec(
            name=f"{request.name}-{record.token}",
            token=record.token,
            app=code.uri_of(f"{request.step}.py"),
            package=code.uri_of("airflow_provider_cdc.zip"),
            arguments=[
                *("--run-uri", to_argument(run.uri), "--token", record.token, "--nonce", nonce),
                *("--deadline", str(deadline), *map(self._patient, request.arguments)),
            ],
            properties=self._properties,
            deadline=deadline,
        )
        job = platform.start(spec)
        run.write_json(_id_file(record.token), records.encode(JobId(job)))
        self._log.info("%s: %s job %s of %s", request.step, platform.kind, job, platform.target)
        return self._follow(Job(job, record.token), name, request, nonce)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert the errors of the platform.

        :raises SparkFailed: the platform refuses a request, or does not answer.
        """
        try:
            yield
        except (CdcError, JobGoneError):
            raise
        except Exception as error:
            what = f"{self._platform.kind} {self._platform.target}: {type(error).__name__}: {error}"
            hint = "retry the task: it continues the job, if one was started"
            raise SparkFailed(what, hint=hint) from error

    def _patient(self, argument: str) -> str:
        """Let a job go on with the next steps at any time, because the start of another job takes minutes."""
        return f"--within={self._platform.limit_seconds}" if argument.startswith("--within=") else argument

    def _follow(self, job: Job, record: str, request: SparkRequest, nonce: str) -> Job:
        variables = to_environment(request.settings.with_files(), request.catalog)
        self._followed[job.id] = _Followed(record, request.run, nonce, variables)
        return job

    def _goes_on(self, run: Storage, record: JobRecord, begun: str) -> bool:
        """Return whether an earlier job does what this task is to do. Without a run, this is not known."""
        return (
            bool(begun)
            and (record.launcher, record.target, record.begun) == (self._platform.kind, self._platform.target, begun)
            and not run.exists(remote.revoked_file(record.token))
            and record.deadline > time.time()
        )

    def _found(self, run: Storage, record: JobRecord) -> str:
        if run.exists(_id_file(record.token)):
            return records.read(JobId, run, _id_file(record.token)).id
        if job := self._platform.find(record.token):
            run.write_json(_id_file(record.token), records.encode(JobId(job)))
        return job

    def _give_up(self, run: Storage, record: JobRecord) -> None:
        # The order matters: a driver that is revoked writes nothing, even if the platform does not end it.
        run.write_json(remote.revoked_file(record.token), {})
        is_here = (record.launcher, record.target) == (self._platform.kind, self._platform.target)
        if is_here and (job := self._found(run, record)):
            self._platform.cancel(job)
        _note_ended(run, record.token)

    def poll(self, job: Job) -> JobState:
        followed = self._followed[job.id]
        time.sleep(POLL_SECONDS)
        try:
            state = self._platform.state(job.id)
            followed.failing_since = None
        except JobGoneError:
            state = JobState(Phase.FAILED, f"{self._platform.kind} no longer knows the job {job.id}", "retry the task")
        except CdcError:
            raise
        except Exception as error:
            state = self._not_answered(followed, error)
        if state.phase is Phase.RUNNING:
            remote.answer(followed.run, job.token, followed.nonce, followed.variables)
        self._log_parts(job, followed)
        if state.phase is not Phase.RUNNING:
            _note_ended(followed.run, job.token)
            if followed.run.exists(remote.revoked_file(job.token)):
                return replace(state, phase=Phase.FAILED)
        return state

    def _not_answered(self, followed: _Followed, error: Exception) -> JobState:
        followed.failing_since = followed.failing_since or time.monotonic()
        if time.monotonic() - followed.failing_since > PATIENCE_SECONDS:
            what = f"{self._platform.kind} has not told the state of the job for {PATIENCE_SECONDS:.0f} s: {error}"
            raise SparkFailed(what, hint="retry the task: it continues the job, which may still run") from error
        self._log.warning("%s does not tell the state of the job: %s", self._platform.kind, error)
        return JobState(Phase.RUNNING)

    def _log_parts(self, job: Job, followed: _Followed) -> None:
        while followed.run.exists(name := remote.log_file(job.token, followed.parts)):
            followed.parts += 1
            for line in records.read(list[str], followed.run, name):
                log_line(line, self._log)

    def cancel(self, job: Job, *, wait_seconds: float = 0.0) -> None:
        followed = self._followed[job.id]
        # The driver ends even if the platform does not answer.
        followed.run.write_json(remote.revoked_file(job.token), {})
        try:
            self._platform.cancel(job.id)
        except Exception as error:
            self._log.warning("%s does not end the job %s: %s", self._platform.kind, job.id, error)


def revoke_jobs(run: Storage) -> None:
    """Revoke all jobs of a run, so that their drivers end."""
    for folder in run.folders(RECORDS):
        for name in run.files(folder):
            record = records.read(JobRecord, run, name)
            if not run.exists(_ended_file(record.token)):
                run.write_json(remote.revoked_file(record.token), {})


def _begun(run: Storage) -> str:
    return Run.load(run).state.begun if Run.exists(run) else ""


def _last_record(run: Storage, step: str) -> tuple[str, JobRecord] | None:
    names = run.files(f"{RECORDS}/{step}")
    return (names[-1], records.read(JobRecord, run, names[-1])) if names else None


def _next_name(step: str, last: tuple[str, JobRecord] | None) -> str:
    number = int(last[0].rpartition("/")[2].removesuffix(".json")) + 1 if last else 1
    return f"{RECORDS}/{step}/{number:06d}.json"


def _id_file(token: str) -> str:
    return f"{FOLDER}/{token}.id.json"


def _ended_file(token: str) -> str:
    return f"{FOLDER}/{token}.ended.json"


def _note_ended(run: Storage, token: str) -> None:
    run.write_json(_ended_file(token), {})
    # A driver that ended before it read them left them.
    run.delete_file(remote.ask_file(token))
    run.delete_file(remote.give_file(token))


def _value(arguments: Sequence[str], name: str) -> str:
    """Return the value of an argument; empty: it is not there."""
    found = [value for argument, value in pairwise(arguments) if argument == name]
    return found[0] if found else ""


def _upload_code(run: Storage, step: str) -> Storage:
    """Write the app and this package where the platform reads them, and return their folder."""
    with TemporaryDirectory(prefix="cdc-code-") as directory:
        package = package_zip(Path(directory)).read_bytes()
    app = spark_app(step).read_bytes()
    code = run.folder(*remote.CODE.split("/"), hashlib.sha256(app + package).hexdigest()[:16])
    code.make_folder()
    code.write_bytes(f"{step}.py", app)
    code.write_bytes("airflow_provider_cdc.zip", package)
    return code
