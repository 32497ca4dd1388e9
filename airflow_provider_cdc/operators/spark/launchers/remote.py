"""The launcher of platforms that start the driver themselves.

A task only starts a job, follows it and ends it; the job outlives the task. So the record of a job is written before
the job is submitted, and the next try finds the job: by the id that the platform gave, or, if the answer was lost, by
the token in the name of the job. A job that is given up is revoked first. Its driver sees that, and ends.

A run has at most one job that is not revoked. The try that follows it renews a record (`jobs.runtime.remote.Follower`);
without it, the driver ends, too.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, Problem, SparkFailed
from airflow_provider_cdc.hooks.platforms import JobGoneError, JobSpec, JobState, Phase, Platform
from airflow_provider_cdc.hooks.spark import open_platform
from airflow_provider_cdc.jobs.runtime import remote
from airflow_provider_cdc.jobs.runtime.driver import package_zip, to_argument, to_environment
from airflow_provider_cdc.jobs.runtime.remote import FOLDER, Follower, JobId, JobRecord
from airflow_provider_cdc.operators.spark.launchers.client.launcher import log_line, spark_app
from airflow_provider_cdc.operators.spark.launchers.registry import Job, SparkRequest

_log = logging.getLogger(__name__)

RECORDS = f"{FOLDER}/jobs"
"""The folder with the records of the jobs, in their order."""
POLL_SECONDS = 5.0
"""How often a job is looked at, in seconds."""
RENEW_SECONDS = 60.0
"""How often the try that follows a job renews its record, in seconds."""
PATIENCE_SECONDS = 900.0
"""How long the platform may fail to answer before the task fails, in seconds."""


@dataclass
class _Followed:
    """A job that this process follows.

    :param follower: the record of this try.
    :param renewed: when it was written.
    :param answered: the key of the driver that has its settings from this process.
    :param parts: the number of parts of its output that are in the log of the task.
    :param failing_since: when the platform last answered, if it does not answer now.
    """

    run: Storage
    follower: Follower
    nonce: str = field(repr=False)
    variables: Mapping[str, str] = field(repr=False)
    renewed: float = field(default_factory=time.monotonic)
    answered: str = ""
    parts: int = 0
    failing_since: float | None = None


class RemoteLauncher:
    """Starts jobs on a platform.

    :param properties: the Spark properties of the application.
    :param log: the log that gets the output of the driver.
    """

    def __init__(self, platform: Platform, properties: Mapping[str, Any], log: Any) -> None:
        self._platform = platform
        self._properties = {name: str(value) for name, value in properties.items()}
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
        # If a file of the connection cannot be read, no job is started.
        variables = to_environment(request.settings.with_files(), request.catalog)
        with self._asking():
            job, nonce = self._submit(request)
        self._followed[job.id] = _Followed(request.run, Follower(request.token), nonce, variables)
        return job

    def _submit(self, request: SparkRequest) -> tuple[Job, str]:
        run, begun = request.run, _begun(request.run)
        last = _last_record(run)
        if last is not None and not run.exists(_ended_file(last[1].token)):
            record = last[1]
            if self._goes_on(run, record, request.step, begun) and (job := _found(self._platform, run, record.token)):
                # From now on, an earlier try does not end this job.
                records.write(run, remote.follower_file(record.token), Follower(request.token))
                if nonce := self._nonce(job):
                    self._log.info("%s: continues the %s job %s", request.step, self._platform.kind, job)
                    return Job(job, record.token), nonce
            self._give_up(run, record)
        return self._start(request, begun, last)

    def _start(self, request: SparkRequest, begun: str, last: tuple[str, JobRecord] | None) -> tuple[Job, str]:
        run, platform, token = request.run, self._platform, request.token
        deadline = int(time.time()) + platform.limit_seconds
        record = JobRecord(platform.kind, platform.target, platform.conn_id, request.step, token, begun, deadline)
        if not run.create_json(_next_name(last), records.encode(record)):
            # Another try starts a job at the same time.
            return self._submit(request)
        records.write(run, remote.follower_file(token), Follower(token))
        nonce = secrets.token_hex(16)
        code = _upload_code(run, request.step)
        spec = JobSpec(
            name=f"{request.name}-{token}",
            token=token,
            app=code.uri_of(f"{request.step}.py"),
            package=code.uri_of("airflow_provider_cdc.zip"),
            arguments=[
                *("--run-uri", to_argument(run.uri), "--token", token, "--nonce", nonce),
                *("--deadline", str(deadline), *map(self._patient, request.arguments)),
            ],
            properties=self._properties,
            deadline=deadline,
        )
        job = platform.start(spec)
        records.write(run, _id_file(token), JobId(job))
        if run.exists(remote.revoked_file(token)):
            # Another try, or the release of the run, looked for the job before it existed.
            platform.cancel(job)
        self._log.info("%s: %s job %s of %s", request.step, platform.kind, job, platform.target)
        return Job(job, token), nonce

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert the errors of the platform.

        :raises SparkFailed: the platform refuses a request, or does not answer.
        """
        try:
            yield
        except CdcError:
            raise
        except Exception as error:
            what = f"{self._platform.kind} {self._platform.target}: {type(error).__name__}: {error}"
            hint = "retry the task: it continues the job, if one was started"
            raise SparkFailed(what, hint=hint) from error

    def _patient(self, argument: str) -> str:
        """Let a job go on with the next steps at any time, because the start of another job takes minutes."""
        return f"--within={self._platform.limit_seconds}" if argument.startswith("--within=") else argument

    def _nonce(self, job: str) -> str:
        """Return the nonce in the arguments of a job. Empty: there is none, or no such job."""
        try:
            return _value(self._platform.arguments(job), "--nonce")
        except JobGoneError:
            return ""

    def _is_here(self, record: JobRecord) -> bool:
        return (record.launcher, record.target) == (self._platform.kind, self._platform.target)

    def _goes_on(self, run: Storage, record: JobRecord, step: str, begun: str) -> bool:
        """Return whether an earlier job does what this task is to do. Without a run, this is not known."""
        return (
            bool(begun)
            and self._is_here(record)
            and (record.step, record.begun) == (step, begun)
            and not run.exists(remote.revoked_file(record.token))
            and record.deadline > time.time()
        )

    def _give_up(self, run: Storage, record: JobRecord) -> None:
        # The order matters: a driver that is revoked ends, even if the platform does not end it.
        _revoke(run, record.token)
        if self._is_here(record):
            _end(self._platform, run, record.token)
        else:
            _end_elsewhere(run, record)

    def poll(self, job: Job) -> JobState:
        followed = self._followed[job.id]
        time.sleep(POLL_SECONDS)
        self._renew(job, followed)
        try:
            state = self._platform.state(job.id)
            followed.failing_since = None
        except JobGoneError:
            # Its driver may still run.
            _revoke(followed.run, job.token)
            state = JobState(Phase.FAILED, f"{self._platform.kind} no longer knows the job {job.id}", "retry the task")
        except CdcError:
            raise
        except Exception as error:
            state = self._not_answered(followed, error)
        if state.phase is Phase.RUNNING:
            key = remote.answer_request(followed.run, job.token, followed.nonce, followed.variables, followed.answered)
            followed.answered = key or followed.answered
        self._log_parts(job, followed)
        if state.phase is not Phase.RUNNING:
            _note_ended(followed.run, job.token)
        return state

    def _renew(self, job: Job, followed: _Followed) -> None:
        """Keep the driver at work.

        :raises SparkFailed: another try follows the job now.
        """
        if time.monotonic() - followed.renewed < RENEW_SECONDS:
            return
        if _is_taken_over(job, followed):
            what = f"another try of this task follows the {self._platform.kind} job {job.id}"
            raise SparkFailed(what, hint="see the log of the other try")
        followed.follower = replace(followed.follower, renewals=followed.follower.renewals + 1)
        followed.renewed = time.monotonic()
        records.write(followed.run, remote.follower_file(job.token), followed.follower)

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
        try:
            if _is_taken_over(job, followed):
                self._log.info("Another try of this task follows the %s job %s", self._platform.kind, job.id)
                return
            # The driver ends even if the platform does not answer.
            _revoke(followed.run, job.token)
        except (CdcError, OSError) as error:
            self._log.warning("Could not revoke the job %s: %s", job.id, error)
        try:
            self._platform.cancel(job.id)
        except Exception as error:
            self._log.warning("%s does not end the job %s: %s", self._platform.kind, job.id, error)


def revoke_jobs(run: Storage) -> None:
    """Revoke the job of a run, so that its driver ends. Airflow is not asked for anything."""
    if (last := _last_record(run)) is not None and not run.exists(_ended_file(last[1].token)):
        _revoke(run, last[1].token)


def end_jobs(run: Storage) -> None:
    """End the job of a run on its platform, if `revoke_jobs` has revoked it."""
    if (last := _last_record(run)) is None or run.exists(_ended_file(last[1].token)):
        return
    if run.exists(remote.revoked_file(last[1].token)):
        _end_elsewhere(run, last[1])


def _end_elsewhere(run: Storage, record: JobRecord) -> None:
    """End a revoked job on the platform of its record. If this fails, the driver ends anyway."""
    try:
        platform = open_platform(record.conn_id)
        if (platform.kind, platform.target) == (record.launcher, record.target):
            _end(platform, run, record.token)
    except Exception as error:
        _log.warning("Could not end the job of %s on %s: %s", run.uri, record.conn_id, error)


def _end(platform: Platform, run: Storage, token: str) -> None:
    if job := _found(platform, run, token):
        platform.cancel(job)
    _note_ended(run, token)


def _found(platform: Platform, run: Storage, token: str) -> str:
    """Return the id of a job. Empty: it was not started."""
    if run.exists(_id_file(token)):
        return records.read(JobId, run, _id_file(token)).id
    if job := platform.find(token):
        records.write(run, _id_file(token), JobId(job))
    return job


def _revoke(run: Storage, token: str) -> None:
    run.write_json(remote.revoked_file(token), {})


def _is_taken_over(job: Job, followed: _Followed) -> bool:
    return records.read(Follower, followed.run, remote.follower_file(job.token)).token != followed.follower.token


def _begun(run: Storage) -> str:
    return Run.load(run).state.begun if Run.exists(run) else ""


def _last_record(run: Storage) -> tuple[str, JobRecord] | None:
    names = run.files(RECORDS)
    return (names[-1], records.read(JobRecord, run, names[-1])) if names else None


def _next_name(last: tuple[str, JobRecord] | None) -> str:
    number = int(last[0].rpartition("/")[2].removesuffix(".json")) + 1 if last else 1
    return f"{RECORDS}/{number:06d}.json"


def _id_file(token: str) -> str:
    return f"{FOLDER}/{token}.id.json"


def _ended_file(token: str) -> str:
    return f"{FOLDER}/{token}.ended.json"


def _note_ended(run: Storage, token: str) -> None:
    run.write_json(_ended_file(token), {})
    # A driver that ended before it read them left them.
    run.delete_file(remote.request_file(token))
    run.delete_file(remote.settings_file(token))


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
