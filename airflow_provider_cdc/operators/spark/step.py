"""What the steps that run on Spark share."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException

import airflow_provider_cdc
from airflow_provider_cdc.compat import GuardsSparkSubmit, submitted_process, supervisor_channel
from airflow_provider_cdc.core.run.release import check_not_released
from airflow_provider_cdc.core.run.run import Run, run_id_in
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ManifestError, SparkFailed
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.jobs.runtime.driver import (
    TRY_VARIABLE,
    done_file,
    error_file,
)
from airflow_provider_cdc.links.report import ReportLink
from airflow_provider_cdc.operators.arguments import SparkArguments
from airflow_provider_cdc.operators.base import hand_on, same_run
from airflow_provider_cdc.operators.release import ReleasingOperator
from airflow_provider_cdc.operators.spark import guardian
from airflow_provider_cdc.operators.spark.driver_log import levelled, log4j_option
from airflow_provider_cdc.operators.spark.failure import LastLines, spark_failed
from airflow_provider_cdc.operators.spark.launch import (
    check_spark,
    driver_environment,
    environment,
    scratch_environment,
)
from airflow_provider_cdc.operators.spark.scratch import scratch, scratch_parent
from airflow_provider_cdc.operators.spark.shared_app import steps_after
from airflow_provider_cdc.operators.task_errors import airflow_error, failing
from airflow_provider_cdc.report.facts import DagRunName, Failed
from airflow_provider_cdc.report.page import write_failure

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

QUIET = {
    # spark-submit logs at INFO and draws a bar: the task log is for what the app says.
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
}


END_SECONDS = 15
"""How long the end of all of Spark's processes may take once they are killed."""


class SparkStepOperator(ReleasingOperator, GuardsSparkSubmit, SparkSubmitOperator):
    """Run one Spark app on the run's folder, and push what it recorded in the manifest.

    XComs: ``counts``, and each of ``outputs`` under its own name.

    The source's credentials reach the driver by the environment alone, so Spark must run in client mode.

    :param source_conn_id: connection to the source.
    :param run_uri: XCom ``run_uri`` of lock_and_record.
    :param spark_conn_id: connection to Spark.
    :param conf: Spark properties. They show in the process list: no secrets.
    :param shared_app_seconds: how old the app may be when it goes on with the step of the next task (`shared_app`).
    """

    step: ClassVar[str]
    """The name of the Spark app, and of the step in the manifest."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """What the step finds that has an XCom of its own."""

    template_fields: Sequence[str] = ("source_conn_id", "run_uri", "spark_conn_id", "conf", "shared_app_seconds")
    ui_color = "#f9d8b5"
    operator_extra_links = (ReportLink(),)
    report_uri = ""
    """Where the report is, once there is one: when the run is published, or when the step has failed."""
    _hook: Any
    _ended_by_airflow = False
    _scratch: Path
    _said: LastLines

    def __init__(
        self,
        *,
        source_conn_id: str,
        run_uri: XComArg | str,
        spark_conn_id: str = "spark_default",
        conf: Mapping[str, object] | str | None = None,
        shared_app_seconds: float | str = 0.0,
        **kwargs: Unpack[SparkArguments],
    ) -> None:
        # The deploy mode given here wins over every other place that could name one.
        super().__init__(conf=conf, deploy_mode="client", do_xcom_push=False, **kwargs)
        # Params keep their types, whatever the DAG's own setting is.
        self.render_template_as_native_obj = True
        self.source_conn_id = source_conn_id
        # Once it is rendered, it no longer says whose it is.
        self._recorded_by: str = getattr(getattr(run_uri, "operator", None), "task_id", "")
        self.run_uri: Any = run_uri
        self.spark_conn_id = spark_conn_id
        self.shared_app_seconds = shared_app_seconds

    @failing
    def execute(self, context: Context) -> dict[str, Any]:
        try:
            return self._execute(context)
        except (CdcError, AirflowException) as error:
            self._report_failure(context, error)
            raise

    def _execute(self, context: Context) -> dict[str, Any]:
        run = self.own_run(context)
        check_not_released(run, self.step)
        if self._is_done(context, run):
            self.log.info("%s: done in the Spark application of an earlier task, whose log tells of it", self.step)
        else:
            self._do(context, run)
        result = Run.load(run).steps.get(self.step)
        if result is None:
            raise ManifestError(
                f"the Spark app ended well but {self.step} is not recorded as done",
                where=run.uri,
                hint="look at its output above; the driver must write where this task reads",
            )
        shown = records.encode(result)
        outputs = {name: shown.pop(name) for name in self.outputs}
        # What remains as text is for the next step: names of records, a place in the log.
        outputs["counts"] = {name: value for name, value in shown.items() if not isinstance(value, str)}
        hand_on(context, outputs)
        return outputs

    def own_run(self, context: Context) -> Storage:
        """The folder of this DAG run's run.

        :raises ConfigurationError: ``run_uri`` names none, or another run's. That may be finished: then there would be
            nothing to do, and no copy. Or it may be under way: then a failure here must not be taken for its own.
        """
        if not isinstance(self.run_uri, str):
            raise ConfigurationError(
                f"run_uri is {self.run_uri!r}, and not the folder of a run",
                where=f"task {self.task_id}",
                hint="it is what the task lock_and_record leaves as the XCom run_uri; if that is gone or was changed, "
                "clear lock_and_record",
            )
        folder = Storage(self.run_uri)
        if not self._recorded_by or not Run.exists(folder):
            return folder
        lake, dag_run = Run.load(folder).manifest.lake, context["dag_run"]
        names = dag_run.dag_id, dag_run.run_id, self._recorded_by, lake, context["ti"].map_index
        if not same_run(run_id_in(folder), *names):
            raise ConfigurationError(
                f"{folder.uri} is another run than the one that {self._recorded_by} began for this DAG run",
                where=f"task {self.task_id}, run_uri",
                hint="the XCom run_uri was changed: clear lock_and_record and the tasks after it",
            )
        return folder

    def _is_done(self, context: Context, run: Storage) -> bool:
        """Whether the application of an earlier task has done this one's work."""
        # Whoever clears a task wants it to be done, even if all that is left to do is to look.
        if context["ti"].try_number != 1 or not run.exists(done_file(self.step)):
            return False
        # It counts once: the DAG run may be deleted, and made again by the same name. And it may be of a manifest that
        # no longer counts, for the run began anew before this task was reached.
        run.delete_file(done_file(self.step))
        return Run.load(run).steps.get(self.step) is not None

    def _do(self, context: Context, run: Storage) -> None:
        properties = {**QUIET, **(self.conf or {})}
        master = check_spark(self.spark_conn_id, properties)
        settings = open_hook(self.source_conn_id).settings()
        self.will_release(run, settings, context)
        then = self._then(context)
        try:
            self._submit(context, run, properties, driver_environment(settings, master), then)
        except (AirflowException, SparkFailed) as error:
            # Then a step after this one is what broke the application, and its own task does it again.
            if not then or Run.load(run).steps.get(self.step) is None:
                raise
            self.log.warning("%s is done, but its Spark application did not end well: %s", self.step, error)

    def _submit(
        self,
        context: Context,
        run: Storage,
        properties: Mapping[str, Any],
        variables: Mapping[str, str],
        then: Sequence[str],
    ) -> None:
        from airflow_provider_cdc.jobs.runtime.shipping import package_zip

        token = uuid.uuid4().hex
        variables = {**variables, TRY_VARIABLE: token}
        with scratch(scratch_parent(properties)) as folder:
            self._scratch = folder
            self._conn_id = self.spark_conn_id
            self.conf = dict(properties)
            self.application = str(spark_app(self.step))
            self.application_args = ["--run-uri", run.uri, *then]
            self.py_files = str(package_zip(folder))
            self.name = re.sub(r"[^\w.:+-]", "_", f"{context['ti'].dag_id}.{self.step}.{run.uri.rsplit('/', 1)[-1]}")
            self._hook, self._said = None, LastLines()
            try:
                with environment({**variables, **scratch_environment(folder, variables, log4j_option(properties))}):
                    super().execute(context)
            except Exception:
                self._raise_what_the_app_said(run, error_file(self.step, token))
                self._raise_how_it_ended()
                raise

    def _then(self, context: Context) -> list[str]:
        if not self.shared_app_seconds:
            return []
        # The one that stands in the DAG: this one has its templates rendered.
        task = context["dag"].get_task(self.task_id)
        following = [f"--then={step}" for step in steps_after(task, SparkStepOperator)]
        return [*following, f"--within={self.shared_app_seconds}"] if following else []

    def _report_failure(self, context: Context, error: Exception) -> None:
        try:
            run = Run.load(self.own_run(context))
            self.report_uri = write_failure(
                run, dag_run_name(context), Failed(self.step, type(error).__name__, str(error))
            )
        except (CdcError, OSError) as also:
            # The error itself is what counts.
            self.log.info("The run's report could not be written: %s", also)
        else:
            self.log.info("How far the run came: %s", self.report_uri)

    def _raise_what_the_app_said(self, run: Storage, record: str) -> None:
        if not run.exists(record):
            return
        try:
            failure = records.read(records.Failure, run, record)
        except ManifestError as error:
            # Then it is not known whether a retry may help.
            self.log.warning("What the app said of its failure cannot be read: %s", error)
            return
        raise airflow_error(failure.type, failure.message, terminal=failure.terminal)

    def _raise_how_it_ended(self) -> None:
        process = submitted_process(self._hook)
        if process is not None and process.returncode:
            raise spark_failed(
                self.step, process.returncode, self._said, ended_by_airflow=self._ended_by_airflow
            ) from None

    def command_before_spark_submit(self) -> Sequence[str]:
        return guardian.command(self._scratch, _supervisor())

    def filter_spark_log(self, lines: Iterable[str]) -> Iterator[str]:
        return levelled(self._said.passing(lines), self.log)

    def on_kill(self) -> None:
        self._ended_by_airflow = True
        # Without a hook nothing was started, and the parent class would make one.
        guarding = submitted_process(self._hook)
        if guarding is not None:
            # SIGTERM, not SIGKILL: the guardian must survive long enough to kill its children and clean up.
            guarding.terminate()
        # Before any waiting: Airflow kills this process 5 s after it asked it to end, and the guardian does without it.
        self.release_when_killed()
        if self._hook is not None:
            if guarding is not None:
                with suppress(subprocess.TimeoutExpired):
                    guarding.wait(END_SECONDS)
            super().on_kill()


def dag_run_name(context: Context) -> DagRunName:
    """The DAG run of a task, as the run's report names it."""
    return DagRunName(context["ti"].dag_id, str(context["dag_run"].run_id))


def spark_app(name: str) -> Path:
    """The file of a Spark app: in the package if it came as a wheel, beside the package in a checkout.

    :raises ConfigurationError: it is in neither.
    """
    package = Path(airflow_provider_cdc.__file__).parent
    places = [folder / "spark_apps" / f"{name}.py" for folder in (package, package.parent)]
    for place in places:
        if place.is_file():
            return place
    raise ConfigurationError(
        f"the Spark app {name} is in none of {', '.join(map(str, places))}", hint="install the package anew"
    )


def _supervisor() -> int:
    """The process that Airflow has watch over this task, and whose death is the task's; 0: there is none, as in
    ``dags test``."""
    return 0 if supervisor_channel() is None else os.getppid()
