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
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, Problem, SparkFailed
from airflow_provider_cdc.hooks.platforms import FollowedJob, JobGoneError, JobSpec, JobState, Phase, Platform
from airflow_provider_cdc.hooks.spark import open_platform
from airflow_provider_cdc.jobs.runtime import remote
from airflow_provider_cdc.jobs.runtime.driver import package_zip, to_argument, to_environment
from airflow_provider_cdc.jobs.runtime.remote import FOLDER, Follower, JobId, JobRecord
from airflow_provider_cdc.operators.spark.launchers.client.checks import problems_of_submit
from airflow_provider_cdc.operators.spark.launchers.client.launcher import spark_app
from airflow_provider_cdc.operators.spark.launchers.registry import Job, SparkRequest
from airflow_provider_cdc.triggers.spark_job import POLL_SECONDS, JobFollower

_log = logging.getLogger(__name__)

RECORDS = f"{FOLDER}/jobs"
"""The folder with the records of the jobs, in their order."""
_TRANSPORT = "spark.openlineage.transport."
_PUBLIC = re.compile(
    re.escape(_TRANSPORT) + r"(?:transports\.[^.]+\.)?(?:type|url|endpoint|timeoutInMillis|compression|"
    r"continueOnFailure|mode|projectId|location|region|roleArn|streamName|topicName)"
)
"""Properties of a transport of OpenLineage without a key. Airflow may add a transport."""
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of properties that Spark hides on its pages (the default of ``spark.redaction.regex``)."""


class _Follower(JobFollower):
    """Follows a job, and gives its driver the settings.

    :param variables: the settings, as environment variables.
    """

    def __init__(
        self, platform: Platform, run: Storage, job: FollowedJob, log: Any, variables: Mapping[str, str]
    ) -> None:
        super().__init__(lambda: platform, run, job, log)
        self._variables = variables

    def handle_request(self) -> None:
        super().handle_request()
        # Without a nonce, any program could ask.
        if self.has_request and (nonce := _nonce(self._platform, self.job.id)):
            job = self.job
            key = remote.answer_request(self.run, job.token, nonce, self._variables, job.answered)
            self.job = replace(job, answered=key or job.answered)


class RemoteLauncher:
    """Starts jobs on a platform.

    :param properties: the Spark properties of the application.
    :param log: the log that gets the output of the driver.
    """

    def __init__(self, platform: Platform, properties: Mapping[str, Any], log: Any) -> None:
        self._platform = platform
        self._properties = {name: str(value) for name, value in properties.items()}
        self._log = log
        if hidden := sorted(name for name, value in self._properties.items() if _may_have_key(name, value)):
            log.warning(
                "Spark sends no lineage: %s would be readable in the definition of the job, and may have the key of "
                "the OpenLineage server. Configure the transport in %s itself, and turn off [openlineage] "
                "spark_inject_transport_info",
                ", ".join(hidden),
                platform.kind,
            )
            self._properties = {name: value for name, value in self._properties.items() if _TRANSPORT not in name}
        _warn_of_secrets(self._properties, platform.kind, log)
        self._followers: dict[str, _Follower] = {}

    def check(self, *, here: bool = True) -> Sequence[Problem]:
        problems = self._platform.check(here=here)
        if here and self._platform.needs_spark:
            problems = [*problems, *problems_of_submit(self._platform.conn_id)]
        return problems

    def check_reachable(self) -> None:
        """Do nothing: `check` has asked the platform."""

    def submit(self, request: SparkRequest) -> Job:
        if request.run.uri.partition("://")[0] not in self._platform.stores:
            hint = f"give a scratch or a target in {' or '.join(f'{one}://…' for one in self._platform.stores)}"
            raise ConfigurationError("the platform cannot read this folder", where=request.run.uri, hint=hint)
        # If a file of the connection cannot be read, no job is started.
        variables = _variables(request)
        with self._asking():
            job = self._submit(request)
        return self._follow(request, job, variables)

    def resume(self, request: SparkRequest, followed: FollowedJob) -> Job:
        return self._follow(request, followed, _variables(request))

    def to_defer(self, job: Job) -> FollowedJob | None:
        """Return the job for a trigger, which cannot give the driver its settings. None: the driver has none yet."""
        follower = self._followers[job.id]
        has_settings = follower.job.answered or follower.run.exists(remote.settings_file(job.token))
        return follower.job if has_settings else None

    def _follow(self, request: SparkRequest, job: FollowedJob, variables: Mapping[str, str]) -> Job:
        self._followers[job.id] = _Follower(self._platform, request.run, job, self._log, variables)
        return Job(job.id, job.token)

    def _submit(self, request: SparkRequest) -> FollowedJob:
        run, begun = request.run, _begun(request.run)
        last = _last_record(run)
        if last is not None and not run.exists(remote.ended_file(last[1].token)):
            record = last[1]
            if self._goes_on(run, record, request.step, begun) and (job := _found(self._platform, run, record.token)):
                # From now on, an earlier try does not end this job.
                records.write(run, remote.follower_file(record.token), Follower(request.token))
                if self._is_alive(job):
                    self._log.info("%s: continues the %s job %s", request.step, self._platform.kind, job)
                    return FollowedJob(run.uri, job, record.token, request.token, record.deadline)
            self._give_up(run, record)
        return self._start(request, begun, last)

    def _start(self, request: SparkRequest, begun: str, last: tuple[str, JobRecord] | None) -> FollowedJob:
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
        return FollowedJob(run.uri, job, token, token, deadline)

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

    def _is_alive(self, job: str) -> bool:
        """Return whether a job runs, or has succeeded. One that has failed, for example because no task followed it,
        would only fail this try, too."""
        try:
            return bool(_nonce(self._platform, job)) and self._platform.state(job).phase is not Phase.FAILED
        except JobGoneError:
            return False

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
        remote.revoke(run, record.token)
        if self._is_here(record):
            _end(self._platform, run, record.token)
        else:
            _end_elsewhere(run, record)

    def poll(self, job: Job) -> JobState:
        time.sleep(POLL_SECONDS)
        return self._followers[job.id].poll()

    def cancel(self, job: Job, *, wait_seconds: float = 0.0) -> None:
        self._followers[job.id].cancel()

    def is_taken_over(self, job: Job) -> bool:
        return self._followers[job.id].taken_over


def _warn_of_secrets(properties: Mapping[str, str], kind: str, log: Any) -> None:
    if secret := sorted(name for name in properties if _SECRET.search(name)):
        what = "Everyone who may read the definition of the %s job reads these Spark properties, too: %s"
        log.warning(what, kind, ", ".join(secret))


def _may_have_key(name: str, value: str) -> bool:
    """Return whether a property may have the key of an OpenLineage server. A URL may have a user, or a query."""
    return name.startswith(_TRANSPORT) and (_PUBLIC.fullmatch(name) is None or "@" in value or "?" in value)


def revoke_jobs(run: Storage) -> None:
    """Revoke the job of a run, so that its driver ends. Airflow is not asked for anything."""
    if (last := _last_record(run)) is not None and not run.exists(remote.ended_file(last[1].token)):
        remote.revoke(run, last[1].token)


def end_jobs(run: Storage) -> None:
    """End the job of a run on its platform, if `revoke_jobs` has revoked it."""
    if (last := _last_record(run)) is None or run.exists(remote.ended_file(last[1].token)):
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
    # Airflow need not have the right to cancel a job that has ended by itself.
    with suppress(JobGoneError):
        if (job := _found(platform, run, token)) and platform.state(job).phase is Phase.RUNNING:
            platform.cancel(job)
    remote.note_ended(run, token)


def _found(platform: Platform, run: Storage, token: str) -> str:
    """Return the id of a job. Empty: it was not started."""
    if run.exists(_id_file(token)):
        return records.read(JobId, run, _id_file(token)).id
    if job := platform.find(token):
        records.write(run, _id_file(token), JobId(job))
    return job


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


def _nonce(platform: Platform, job: str) -> str:
    """Return the nonce in the arguments of a job. Empty: there is none, or no such job."""
    try:
        arguments = platform.arguments(job)
    except JobGoneError:
        return ""
    return next((value for argument, value in pairwise(arguments) if argument == "--nonce"), "")


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


def _variables(request: SparkRequest) -> Mapping[str, str]:
    return to_environment(request.settings.with_files(), request.catalog)
