"""Amazon EMR Serverless."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from airflow_provider_cdc.compat import hide_answers_of_aws
from airflow_provider_cdc.errors import Problem, SparkFailed
from airflow_provider_cdc.hooks.platforms import JobGoneError, JobSpec, JobState, Phase
from airflow_provider_cdc.hooks.spark import SparkPlatformSettings

KIND = "emr_serverless"
PYTHON = re.compile(r"-cp3(\d+)-(x86_64|aarch64)\.tar\.gz$")
"""How the name of an archive ends: `python -m airflow_provider_cdc.bundle`."""
PROTECTED = {
    # Mutual TLS between driver and executors, because Spark's tasks contain the source's password.
    "spark.ssl.internode.enabled": "true",
}
"""Properties of each job, unless the user sets others."""
_ARCHITECTURES = {"X86_64": "x86_64", "ARM64": "aarch64"}
_PHASES = {"SUCCESS": Phase.SUCCEEDED, "FAILED": Phase.FAILED, "CANCELLED": Phase.FAILED}
_RETRY = "see the log of the job in EMR Studio, fix the cause, and clear the task"
_DAY = 86_400.0


class EmrServerless:
    """An application of EMR Serverless.

    :param settings: those of the connection.
    """

    kind = KIND
    stores: Sequence[str] = ("s3",)
    needs_spark = False

    def __init__(self, settings: SparkPlatformSettings) -> None:
        self.conn_id = settings.spark_conn_id
        self.target = settings.application_id
        self.limit_seconds = settings.limit_minutes * 60
        self._settings = settings

    @cached_property
    def _client(self) -> Any:
        # Opened once, because a task that is being killed cannot ask Airflow for a connection.
        from airflow.providers.amazon.aws.hooks.emr import EmrServerlessHook

        # The definition of a job has the nonce.
        hide_answers_of_aws()
        return EmrServerlessHook(aws_conn_id=self._settings.conn_id or None).conn

    def check(self, *, here: bool) -> Sequence[Problem]:
        try:
            application = self._client.get_application(applicationId=self.target)["application"]
        except ModuleNotFoundError:
            if not here:
                return []
            hint = "pip install 'airflow-provider-cdc[emr]', where Airflow's tasks run"
            return [Problem(self._where, "the provider for Amazon is not installed", hint)]
        except Exception as error:
            if _is_temporary(error):
                raise SparkFailed(f"{KIND} {self.target}: {error}", where=self._where, hint="retry the task") from error
            hint = "check application_id, conn_id, and the right emr-serverless:GetApplication"
            return [Problem(self._where, f"the application cannot be read: {error}", hint)]
        return list(self._problems(application))

    def _problems(self, application: dict[str, Any]) -> Iterator[Problem]:
        release, state = application["releaseLabel"], application["state"]
        if str(application["type"]).lower() != "spark" or state in ("STOPPING", "TERMINATED"):
            yield Problem(
                self._where, f"the application is of type {application['type']}, and {state}", "name another one"
            )
        if not application.get("networkConfiguration", {}).get("subnetIds"):
            # Without subnets, jobs reach only services of AWS.
            yield Problem(
                self._where,
                "the application has no network, so its jobs cannot reach the source",
                "configure subnets and security groups of the application",
            )
        found = re.match(r"emr-(?:spark-)?(\d+)\.", release)
        if found is None or int(found[1]) < 8:
            yield Problem(self._where, f"the release {release} has no Spark 4", "use emr-spark-8.0.0 or later")
        named = PYTHON.search(self._settings.archive)
        has = _ARCHITECTURES.get(application.get("architecture", "X86_64"), "")
        if named is not None and named[2] != has:
            what = f"the archive is for {named[2]}, and the application has {has}"
            yield Problem(self._where, what, f"python -m airflow_provider_cdc.bundle --arch {has}")

    @property
    def _where(self) -> str:
        return f"spark_conn_id {self._settings.spark_conn_id!r}"

    def start(self, spec: JobSpec) -> str:
        properties = {**PROTECTED, **self._packages(), **spec.properties}
        words = ["--py-files", spec.package]
        for name, value in properties.items():
            words += ["--conf", f"{name}={value}"]
        started = self._client.start_job_run(
            applicationId=self.target,
            clientToken=spec.token,
            executionRoleArn=self._settings.execution_role_arn,
            name=spec.name[-256:],
            # The service's own limit is 12 hours.
            executionTimeoutMinutes=max(1, round((spec.deadline - time.time()) / 60)),
            jobDriver={
                "sparkSubmit": {
                    "entryPoint": spec.app,
                    "entryPointArguments": list(spec.arguments),
                    "sparkSubmitParameters": shlex.join(words),
                }
            },
        )
        return str(started["jobRunId"])

    def _packages(self) -> dict[str, str]:
        if not self._settings.archive:
            # The image of the application has the packages.
            return {}
        found = {
            "spark.archives": f"{self._settings.archive}#environment",
            "spark.emr-serverless.driverEnv.PYTHONPATH": "./environment",
            "spark.executorEnv.PYTHONPATH": "./environment",
        }
        if named := PYTHON.search(self._settings.archive):
            python = f"/usr/bin/python3.{named[1]}"
            found["spark.emr-serverless.driverEnv.PYSPARK_PYTHON"] = python
            found["spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON"] = python
            found["spark.executorEnv.PYSPARK_PYTHON"] = python
        return found

    def find(self, token: str) -> str:
        pages = self._client.get_paginator("list_job_runs").paginate(
            applicationId=self.target, createdAtAfter=time.time() - self.limit_seconds - _DAY
        )
        runs = (one for page in pages for one in page["jobRuns"])
        return next((str(one["id"]) for one in runs if one.get("name", "").endswith(token)), "")

    def arguments(self, job: str) -> Sequence[str]:
        return list(self._job(job)["jobDriver"]["sparkSubmit"].get("entryPointArguments", ()))

    def state(self, job: str) -> JobState:
        found = self._job(job)
        phase = _PHASES.get(found["state"], Phase.RUNNING)
        if phase is not Phase.FAILED:
            return JobState(phase)
        details = f"the EMR Serverless job {job} is {found['state']}: {found.get('stateDetails') or 'without a reason'}"
        return JobState(phase, details, _RETRY)

    def _job(self, job: str) -> dict[str, Any]:
        client = self._client
        try:
            return dict(client.get_job_run(applicationId=self.target, jobRunId=job)["jobRun"])
        except client.exceptions.ResourceNotFoundException:
            raise JobGoneError(job) from None

    def cancel(self, job: str) -> None:
        client = self._client
        # These errors mean that it has ended.
        with suppress(client.exceptions.ResourceNotFoundException, client.exceptions.ValidationException):
            client.cancel_job_run(applicationId=self.target, jobRunId=job)


def _is_temporary(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    if isinstance(error, ClientError):
        status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
        return status == 429 or status >= 500
    return isinstance(error, (ConnectionError, HTTPClientError))
