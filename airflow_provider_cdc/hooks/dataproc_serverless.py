"""Batches of Google Cloud Serverless for Apache Spark, formerly Dataproc Serverless."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from airflow_provider_cdc.errors import ConfigurationError, Problem, SparkFailed
from airflow_provider_cdc.hooks.platforms import JobGoneError, JobSpec, JobState, Phase
from airflow_provider_cdc.hooks.spark import SparkPlatformSettings

KIND = "dataproc_serverless"
RUNTIME = "3.0"
"""The default version of the runtime. It has Spark 4 and Python 3.12, on x86-64."""
ARCHIVE = re.compile(r"-cp312-x86_64\.tar\.gz$")
"""How the name of an archive for this runtime ends: `python -m airflow_provider_cdc.bundle`."""
PROTECTED = {
    # Spark's tasks contain the source's password.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
}
"""Properties of each batch, unless the user sets others. The service enables both by itself."""
LEAST_SECONDS, MOST_SECONDS = 600, 14 * 86_400
"""The limits of the service for the longest time that a batch may take."""
REQUEST_SECONDS = 60.0
"""How long a request is repeated while the service is busy, in seconds."""
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_PHASES = {"SUCCEEDED": Phase.SUCCEEDED, "FAILED": Phase.FAILED, "CANCELLED": Phase.FAILED}


class DataprocServerless:
    """A region of a project of Google Cloud.

    :param settings: those of the connection.
    :raises ConfigurationError: the connection names no region.
    """

    kind = KIND
    stores: Sequence[str] = ("gs",)
    needs_spark = False

    def __init__(self, settings: SparkPlatformSettings) -> None:
        self.conn_id = settings.spark_conn_id
        self.target = f"projects/{settings.project_id}/locations/{settings.region}"
        self.limit_seconds = settings.limit_minutes * 60
        self._settings = settings
        if not _REGION.fullmatch(settings.region):
            # The name of the service's host is made of it.
            what, where = f"{settings.region!r} is no region", f"{self._where}, region"
            raise ConfigurationError(what, where=where, hint="give a region, such as europe-west3, without its zone")

    @cached_property
    def _client(self) -> Any:
        # One client, which keeps its credentials, because a task that is being killed cannot ask Airflow for them.
        from airflow.providers.google.cloud.hooks.dataproc import DataprocHook

        hook = DataprocHook(gcp_conn_id=self._settings.conn_id or "google_cloud_default")
        return hook.get_batch_client(self._settings.region)

    @cached_property
    def _patience(self) -> dict[str, Any]:
        """The arguments with which the client repeats a request."""
        from google.api_core.retry import Retry

        return {"retry": Retry(timeout=REQUEST_SECONDS), "timeout": REQUEST_SECONDS / 2}

    def check(self, *, here: bool) -> Sequence[Problem]:
        problems = list(self._problems())
        try:
            request = {"parent": self.target, "page_size": 1}
            next(iter(self._client.list_batches(request=request, **self._patience)), None)
        except ModuleNotFoundError:
            if here:
                hint = "pip install 'airflow-provider-cdc[google]', where Airflow's tasks run"
                problems.append(Problem(self._where, "the provider for Google is not installed", hint))
        except Exception as error:
            if _is_temporary(error):
                raise SparkFailed(f"{KIND} {self.target}: {error}", where=self._where, hint="retry the task") from error
            hint = "check project_id, region and conn_id, and the right dataproc.batches.list"
            problems.append(Problem(self._where, f"the batches cannot be listed: {error}", hint))
        return problems

    def _problems(self) -> Iterator[Problem]:
        given = self._settings
        version = given.runtime_version or RUNTIME
        if not version.partition(".")[0].isdecimal() or int(version.partition(".")[0]) < 3:
            yield Problem(f"{self._where}, runtime_version", f"{version} has no Spark 4", "use 3.0 or later")
        if not (given.archive or given.image):
            hint = "set archive or image"
            yield Problem(self._where, "it names no packages for driver and executors", hint)
        if "-cp3" in given.archive and not ARCHIVE.search(given.archive):
            hint = "python -m airflow_provider_cdc.bundle --python 3.12 --arch x86_64 --extras gcs"
            yield Problem(f"{self._where}, archive", "it is for another Python or processor than the runtime has", hint)
        if not LEAST_SECONDS <= self.limit_seconds <= MOST_SECONDS:
            what = f"a batch cannot have a limit of {given.limit_minutes} minutes"
            yield Problem(f"{self._where}, limit_minutes", what, "give 10 minutes to 14 days (20160)")

    @property
    def _where(self) -> str:
        return f"spark_conn_id {self.conn_id!r}"

    def start(self, spec: JobSpec) -> str:
        from google.api_core import exceptions

        given, job = self._settings, _batch_id(spec.token)
        archives = [f"{given.archive}#environment"] if given.archive else []
        batch = {
            "pyspark_batch": {
                "main_python_file_uri": spec.app,
                "args": list(spec.arguments),
                "python_file_uris": [spec.package],
                "archive_uris": archives,
            },
            "runtime_config": {
                "version": given.runtime_version or RUNTIME,
                "container_image": given.image,
                "properties": {**PROTECTED, **(_UNPACKED if archives else {}), **spec.properties},
            },
            "environment_config": {
                "execution_config": {
                    "service_account": given.service_account,
                    "subnetwork_uri": given.subnetwork_uri,
                    # Otherwise, the service ends each batch after 4 hours.
                    "ttl": {"seconds": min(MOST_SECONDS, max(LEAST_SECONDS, round(spec.deadline - time.time())))},
                }
            },
        }
        request = {"parent": self.target, "batch": batch, "batch_id": job, "request_id": str(uuid.UUID(spec.token))}
        try:
            self._client.create_batch(request=request, **self._patience)
        except exceptions.AlreadyExists:
            # An answer was lost: only a job with this token has this id.
            pass
        except (exceptions.InvalidArgument, exceptions.PermissionDenied, exceptions.NotFound) as error:
            hint = f"correct the fields of the connection, or the rights of the connection {given.conn_id!r}"
            raise ConfigurationError(f"Google refuses the batch: {error}", where=self._where, hint=hint) from error
        return job

    def find(self, token: str) -> str:
        job = _batch_id(token)
        try:
            self._batch(job)
        except JobGoneError:
            return ""
        return job

    def arguments(self, job: str) -> Sequence[str]:
        return list(self._batch(job).pyspark_batch.args)

    def state(self, job: str) -> JobState:
        batch = self._batch(job)
        phase = _PHASES.get(batch.state.name, Phase.RUNNING)
        if phase is not Phase.FAILED:
            return JobState(phase)
        details = f"the batch {job} is {batch.state.name}: {batch.state_message or 'without a reason'}"
        output = batch.runtime_info.output_uri or "its output in the console"
        return JobState(phase, details, f"see {output}, fix the cause, and clear the task")

    def _batch(self, job: str) -> Any:
        from google.api_core import exceptions

        try:
            return self._client.get_batch(request={"name": f"{self.target}/batches/{job}"}, **self._patience)
        except exceptions.NotFound:
            raise JobGoneError(job) from None

    def cancel(self, job: str) -> None:
        from google.api_core import exceptions

        # These errors mean that it has ended.
        with suppress(JobGoneError, exceptions.NotFound, exceptions.FailedPrecondition):
            batch = self._batch(job)
            if batch.state.name not in _PHASES:
                self._client.transport.operations_client.cancel_operation(batch.operation, **self._patience)


_UNPACKED = {"spark.dataproc.driverEnv.PYTHONPATH": "./environment", "spark.executorEnv.PYTHONPATH": "./environment"}
"""Properties with which driver and executors find the packages of the archive."""


def _batch_id(token: str) -> str:
    """Return the id of the batch of a job. Ids have 4 to 63 characters, which are lower-case letters, digits and ``-``,
    so the name of a job cannot be one."""
    return f"cdc-{token}"


def _is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    from google.api_core import exceptions
    from google.auth.exceptions import TransportError

    # Without an answer, Google's client has no token either.
    kinds = (exceptions.ServerError, exceptions.TooManyRequests, exceptions.RetryError, TransportError)
    return isinstance(error, kinds) or bool(getattr(error, "retryable", False))
