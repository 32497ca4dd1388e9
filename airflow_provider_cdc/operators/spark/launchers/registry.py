"""The interface of a launcher, and the choice of a launcher for a Spark connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.hooks.platforms import FollowedJob, JobState
from airflow_provider_cdc.hooks.platforms import Phase as Phase
from airflow_provider_cdc.sinks.registry import CatalogSettings
from airflow_provider_cdc.sources.api.source import ConnectionSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """An application that a launcher has started.

    :param id: the id that the launcher chose.
    :param token: identifies the job. The app names its error record after it (`jobs.runtime.driver.error_file`).
    """

    id: str
    token: str


@dataclass(frozen=True)
class SparkRequest:
    """One application of a step.

    :param name: the name of the application, for people.
    :param step: the step, which is also the name of its app (``spark_apps``).
    :param run: the folder that the app works on.
    :param arguments: more arguments of the app.
    :param token: identifies the try, and the job if this try starts one.
    :param settings: the connection to the source. It has the password, so a launcher passes it neither as an argument
        nor as a property.
    :param catalog: the connection to the catalog, which may have secrets, too.
    """

    name: str
    step: str
    run: Storage
    arguments: Sequence[str]
    token: str
    settings: ConnectionSettings = field(repr=False)
    catalog: CatalogSettings | None = field(default=None, repr=False)


class SparkLauncher(Protocol):
    """Starts Spark applications. A launcher is made for one Spark connection and the properties of one application."""

    def check(self, *, here: bool = True) -> Sequence[Problem]:
        """Return the problems because of which no application can start.

        :param here: whether the application will be submitted on this machine. Otherwise only the settings are checked.
        """

    def check_reachable(self) -> None:
        """Check that the cluster accepts connections from this machine. Settings that `check` refuses are not checked.

        :raises SparkFailed: it does not.
        """

    def submit(self, request: SparkRequest) -> Job:
        """Start an application, or find the one that an earlier try has started and that still runs."""

    def resume(self, request: SparkRequest, followed: FollowedJob) -> Job:
        """Follow a job again that a trigger has followed (`to_defer`)."""

    def to_defer(self, job: Job) -> FollowedJob | None:
        """Return a job that a trigger can follow from now on. None: this process has to follow it."""

    def poll(self, job: Job) -> JobState:
        """Return the state of a job, after waiting for a change. Pass the new output of the job to the log."""

    def cancel(self, job: Job, *, wait_seconds: float = 0.0) -> None:
        """End a job. If it has ended, do nothing.

        :param wait_seconds: the maximum number of seconds to wait until the job has ended.
        """

    def is_taken_over(self, job: Job) -> bool:
        """Return whether `poll` or `cancel` has seen that another try of the task follows the job."""


def open_launcher(
    conn_id: str, properties: Mapping[str, Any], arguments: Mapping[str, Any] | None = None, log: Any = _log
) -> SparkLauncher:
    """Return the launcher of the connection ``conn_id``.

    :param properties: the Spark properties of the application.
    :param arguments: arguments of Airflow's ``SparkSubmitHook`` that the DAG's author gave.
    :param log: the log that gets the output of the application.
    """
    # Import a launcher late: a DAG file is parsed where Spark may not be installed.
    if _type_of(conn_id) == "cdc_spark":
        from airflow_provider_cdc.hooks.spark import open_platform
        from airflow_provider_cdc.operators.spark.launchers.remote import RemoteLauncher

        return RemoteLauncher(open_platform(conn_id), properties, log)
    from airflow_provider_cdc.operators.spark.launchers.client.launcher import ClientLauncher

    return ClientLauncher(conn_id, properties, arguments or {}, log)


def _type_of(conn_id: str) -> str:
    """Return the type of a connection. Empty: it does not exist."""
    try:
        return str(BaseHook.get_connection(conn_id).conn_type)
    except AirflowNotFoundException:
        return ""


def check_spark(launcher: SparkLauncher, *, here: bool = True) -> None:
    """Check that the launcher can start an application.

    :param here: whether the application will be submitted on this machine. Otherwise only the settings are checked.
    :raises ConfigurationError: there is one problem, for example because the connection does not exist (spark-submit
        would then use YARN).
    :raises PreflightError: there are several problems.
    """
    problems = launcher.check(here=here)
    if len(problems) == 1:
        (problem,) = problems
        raise ConfigurationError(problem.what, where=problem.where, hint=problem.hint)
    if problems:
        raise PreflightError(problems)
