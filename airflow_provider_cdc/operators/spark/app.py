"""The base class of the operators that run an application on Spark: from its start to its end."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.configuration import conf as airflow_conf
from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import LoginRefused, ManifestError, SparkFailed
from airflow_provider_cdc.hooks.platforms import FollowedJob, JobState
from airflow_provider_cdc.jobs.runtime.driver import error_file
from airflow_provider_cdc.operators.release import ReleasingOperator
from airflow_provider_cdc.operators.spark.launchers.registry import (
    Job,
    Phase,
    SparkLauncher,
    SparkRequest,
    check_spark,
    open_launcher,
)
from airflow_provider_cdc.operators.task_errors import airflow_error
from airflow_provider_cdc.sinks.registry import CatalogSettings
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.triggers.waiting import WaitFailure

if TYPE_CHECKING:
    from airflow.sdk import Context


QUIET = {
    # By default, spark-submit logs at the level INFO and draws a progress bar. The task log should show only the app's
    # own output.
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
}


_ENDED = (
    "the task or its DAG run was marked or cleared, a timeout passed, or the worker was stopped: Airflow's audit log "
    "says which. Clear the task to run it again"
)
END_SECONDS = 15.0
"""The maximum number of seconds to wait until Spark's processes have ended after they were killed."""


class SparkAppOperator(ReleasingOperator):
    """Run a Spark app on a folder. A launcher starts the application (`operators.spark.launchers`). While a trigger can
    follow the job, the task is deferred if ``deferrable`` is set."""

    step: ClassVar[str]
    """The name of the Spark app, and of the step's record."""
    spark_conn_id: str
    conf: Any
    deferrable: bool
    _submit_arguments: Mapping[str, Any]
    _job: tuple[SparkLauncher, Job] | None = None
    """The job of this task, with the launcher that started it."""
    _ended_by_airflow = False
    _resumed: Mapping[str, Any] | None = None
    """The event of the trigger (`SparkJobTrigger`), if the task was deferred."""

    def resume(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Go on with a job that a trigger has followed. Airflow calls this when the trigger has fired."""
        self._resumed = event
        return self.execute(context)

    def open_launcher(self, context: Context) -> SparkLauncher:
        """Return the launcher of this task's connection, after its checks.

        :raises ConfigurationError: there is one problem because of which no application can start.
        :raises PreflightError: there are several problems.
        """
        properties = _with_lineage({**QUIET, **(self.conf or {})}, context)
        launcher = open_launcher(self.spark_conn_id, properties, self._submit_arguments, self.log)
        if self._resumed is None:
            check_spark(launcher)
        return launcher

    def run_app(
        self,
        launcher: SparkLauncher,
        context: Context,
        run: Storage,
        read_settings: Callable[[], ConnectionSettings],
        catalog: CatalogSettings | None = None,
        then: Sequence[str] = (),
    ) -> None:
        """Run this step's app on the folder ``run``, from its submission to its end. If the server refuses a password
        that was changed meanwhile, run the app again with the present one. It goes on where the last one ended.

        :param read_settings: reads the settings of the source from Airflow's connections.
        :param then: more arguments of the app.
        :raises AirflowException: the app recorded why it failed. The class of the exception has the name of the error.
        :raises SparkFailed: the application failed without such a record.
        """
        settings = read_settings()
        # With which password a resumed job was started is unknown.
        tried = [settings] if self._resumed is None else []
        while (failure := self._run_once(launcher, context, run, settings, catalog, then)) is not None:
            present = self._present_settings(failure, read_settings)
            # No password is tried twice, because more wrong logins could lock the account. A connection to another
            # server, user or database is left to the next try of the task.
            if present is None or present in tried or _without_passwords(present) != _without_passwords(settings):
                raise airflow_error(failure.type, failure.message, terminal=failure.terminal)
            self.log.warning("%s: the connection has another password now. Starts the application again", self.step)
            tried.append(settings := present)
            # The job that a trigger followed has ended.
            self._resumed = None

    def _present_settings(
        self, failure: records.Failure, read_settings: Callable[[], ConnectionSettings]
    ) -> ConnectionSettings | None:
        """Return the present settings of the source, if an app failed because the server refused the password."""
        if failure.type != LoginRefused.__name__ or self._ended_by_airflow:
            return None
        try:
            return read_settings()
        except Exception as error:
            self.log.warning("Could not read the connection again: %s: %s", type(error).__name__, error)
            return None

    def _run_once(
        self,
        launcher: SparkLauncher,
        context: Context,
        run: Storage,
        settings: ConnectionSettings,
        catalog: CatalogSettings | None,
        then: Sequence[str],
    ) -> records.Failure | None:
        """Run the app once. Return the error that it recorded.

        :raises SparkFailed: the application failed without such a record.
        """
        self.will_release(run, settings, context)
        name = f"{context['ti'].dag_id}.{self.step}.{run.uri.rsplit('/', 1)[-1]}"
        request = SparkRequest(
            name=re.sub(r"[^\w.:+-]", "_", name, flags=re.ASCII),
            step=self.step,
            run=run,
            arguments=then,
            token=uuid.uuid4().hex,
            settings=settings,
            catalog=catalog,
        )
        event = self._resumed
        job = launcher.submit(request) if event is None else launcher.resume(request, FollowedJob(**event["job"]))
        self._job = launcher, job
        if self._ended_by_airflow:
            # The task was killed before it knew the job.
            launcher.cancel(job)
        try:
            state = self._follow(launcher, job, context)
        except SparkFailed:
            # If another try goes on with the run, this one must not release it.
            self._continues_in_another_try = launcher.is_taken_over(job)
            raise
        if state.phase is Phase.FAILED:
            if (failure := self._recorded_failure(run, error_file(self.step, job.token))) is not None:
                return failure
            if self._ended_by_airflow:
                what = "Airflow ended this task while its Spark application was running"
                raise SparkFailed(what, where=self.step, hint=_ENDED)
            raise SparkFailed(state.details, where=self.step, hint=state.hint)
        return None

    def _follow(self, launcher: SparkLauncher, job: Job, context: Context) -> JobState:
        """Follow the job to its end. If a trigger can do so, defer the task."""
        state = launcher.poll(job)
        if self._resumed is not None and state.phase is Phase.RUNNING:
            self._check_event(self._resumed)
        while state.phase is Phase.RUNNING:
            if self.deferrable and not self._ended_by_airflow and (followed := launcher.to_defer(job)) is not None:
                self._defer(followed, context)
            state = launcher.poll(job)
        return state

    def _defer(self, followed: FollowedJob, context: Context) -> NoReturn:
        from airflow_provider_cdc.triggers.spark_job import SparkJobTrigger

        until = None
        if self.execution_timeout is not None:
            # Airflow does not apply this time limit to a deferred task.
            started = getattr(context["ti"], "start_date", None) or datetime.now(UTC)
            until = (started + self.execution_timeout).timestamp()
        trigger = SparkJobTrigger(
            spark_conn_id=self.spark_conn_id, storage_conn_id=self.storage_conn_id, job=asdict(followed), until=until
        )
        self.defer(trigger=trigger, method_name="resume")
        raise AssertionError("defer() returned, although it ends the task")

    def _check_event(self, event: Mapping[str, Any]) -> None:
        """Raise the error of the trigger, if there is one."""
        if event["timed_out"]:
            raise AirflowTaskTimeout("the execution_timeout is over")
        if event["failure"] is not None:
            failure = WaitFailure(**event["failure"])
            raise airflow_error(failure.type, failure.message, terminal=failure.terminal)

    def _recorded_failure(self, run: Storage, record: str) -> records.Failure | None:
        if not run.exists(record):
            return None
        try:
            return records.read(records.Failure, run, record)
        except ManifestError as error:
            # Without the app's error record, it is unknown whether a retry may help.
            self.log.warning("Could not read the app's error record: %s", error)
            return None

    def on_kill(self) -> None:
        self._ended_by_airflow = True
        if self._job is not None:
            launcher, job = self._job
            launcher.cancel(job)
            if launcher.is_taken_over(job):
                self._continues_in_another_try = True
                return
        # Release the run before any wait, because Airflow kills this process 5 s after SIGTERM.
        self.release_when_killed()
        if self._job is not None:
            launcher.cancel(job, wait_seconds=END_SECONDS)


def _without_passwords(settings: ConnectionSettings) -> ConnectionSettings:
    return replace(
        settings,
        password="",
        replicas=tuple(map(_without_passwords, settings.replicas)),
        log_server=settings.log_server and _without_passwords(settings.log_server),
    )


def _with_lineage(properties: dict[str, Any], context: Context) -> dict[str, Any]:
    """Return Spark properties, with those of OpenLineage that Airflow is configured to add to Spark jobs."""
    if airflow_conf.getboolean("openlineage", "spark_inject_parent_job_info", fallback=False):
        from airflow.providers.common.compat.openlineage.utils.spark import (
            inject_parent_job_information_into_spark_properties,
        )

        properties = inject_parent_job_information_into_spark_properties(properties, context)
    if airflow_conf.getboolean("openlineage", "spark_inject_transport_info", fallback=False):
        from airflow.providers.common.compat.openlineage.utils.spark import (
            inject_transport_information_into_spark_properties,
        )

        properties = inject_transport_information_into_spark_properties(properties, context)
    return properties
