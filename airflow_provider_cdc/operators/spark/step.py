"""The base class of the operators that run a step on Spark."""

from __future__ import annotations

import logging
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
from airflow_provider_cdc.compat import PRE_EXECUTE_HOOK, GuardsSparkSubmit, submitted_process, supervisor_channel
from airflow_provider_cdc.core.control.acts import check_not_stopped
from airflow_provider_cdc.core.run.release import check_not_released
from airflow_provider_cdc.core.run.run import Run, run_id_in
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ManifestError, SparkFailed
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.catalog import lake_settings
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.jobs.runtime.driver import (
    PACKAGE_VARIABLE,
    TRY_VARIABLE,
    done_file,
    error_file,
    has_user_entry,
    to_argument,
)
from airflow_provider_cdc.links.report import ReportLink
from airflow_provider_cdc.operators.arguments.types import SparkArguments
from airflow_provider_cdc.operators.base import push_xcoms, same_run
from airflow_provider_cdc.operators.release import ReleasingOperator
from airflow_provider_cdc.operators.spark import guardian
from airflow_provider_cdc.operators.spark.client_mode import check_spark
from airflow_provider_cdc.operators.spark.launch import (
    LastLines,
    driver_environment,
    environment,
    scratch,
    scratch_environment,
    scratch_parent,
    spark_failed,
    text_environment,
)
from airflow_provider_cdc.operators.task_errors import airflow_error, failing
from airflow_provider_cdc.report.facts import DagRunName, Failed
from airflow_provider_cdc.report.page import write_failure

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg


# Passes a Spark driver's output to the task's log: drops Spark's start-up noise, and keeps the level of each line.
#
# Airflow's Spark hook logs every line at the same level, so warnings would not stand out.


LOG4J = Path(__file__).with_name("log4j2.properties")

_NOISE = re.compile(
    # The JVM and Spark's launcher print these lines, regardless of the log settings.
    r"WARNING: Using incubator modules: |"
    r"Using Spark's default log4j profile: |"
    r'Setting default log level to "|'
    r"To adjust logging level use sc\.setLogLevel"
)
_LEVELS = (
    (logging.ERROR, re.compile(r"(?:\d\S* )?\d\d:\d\d:\d\d (?:ERROR|FATAL) |\w+ failed: ")),
    (logging.WARNING, re.compile(r"(?:\d\S* )?\d\d:\d\d:\d\d WARN |(?:\w+: )?WARNING: ")),
)


def log4j_option(properties: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    """Return the JVM option with which the driver uses the log settings of this package.

    The result is empty if the user has configured Spark's logging.
    """
    folder = environment.get("SPARK_CONF_DIR")
    has_user_config = folder and any((Path(folder) / name).is_file() for name in ("log4j2.properties", "log4j2.xml"))
    if has_user_config or "log4j" in str(properties.get("spark.driver.extraJavaOptions", "")):
        return ""
    return f'"-Dlog4j2.configurationFile={LOG4J.as_uri()}"'


def levelled(lines: Iterable[str], log: Any) -> Iterator[str]:
    """Yield the lines that Airflow's hook should log.

    This function logs errors and warnings itself, each with its own level. Start-up noise is dropped.
    """
    for line in lines:
        text = line.rstrip()
        if _NOISE.match(text):
            continue
        for level, pattern in _LEVELS:
            if pattern.match(text):
                log.log(level, "%s", text)
                break
        else:
            yield line


# Decides which steps may run in the Spark application of an earlier step.
#
# A run over small tables spends most of its time on start-up, because starting an application takes seconds, and the
# work takes less than a second. So if the application of a step has run only for a short time, it continues with the
# next steps. The tasks of those steps then find that their work is done, and only pass on the results. A step is run
# early only if its own task would run the step at once and in the same way. So anything that a DAG's author puts
# between or around the tasks still takes effect.


SAME = (
    # The arguments of the application.
    "source_conn_id",
    "run_uri",
    "spark_conn_id",
    "conf",
    # Attributes that decide where, and as which user, the task would run.
    "queue",
    "pool",
    "pool_slots",
    "executor",
    "executor_config",
    "run_as_user",
)
"""Two tasks can share an application only if these attributes of the tasks are equal. Templates are compared before
rendering."""

PLAIN = {
    # Settings that may prevent a task from running directly after the previous task has succeeded.
    "trigger_rule": "all_success",
    "depends_on_past": False,
    "wait_for_downstream": False,
    "max_active_tis_per_dag": None,
    "max_active_tis_per_dagrun": None,
    PRE_EXECUTE_HOOK: None,
    # A time limit is meant for the one step of its task, so it must not apply to several steps together.
    "execution_timeout": None,
}
"""The step of a task can be run early only if the task's attributes have these values."""


def steps_after(task: Any, kind: type[Any]) -> Iterator[str]:
    """Yield the steps that the application of ``task`` may run after its own step, in order.

    :param task: the task of the DAG itself, not the copy with rendered templates.
    :param kind: the base class of the operators that have a ``step``.
    """
    first = task
    while task.execution_timeout is None:
        following = [downstream_task for downstream_task in task.downstream_list if isinstance(downstream_task, kind)]
        if len(following) != 1 or not _is_anticipated(following[0], task, first):
            return
        task = following[0]
        yield task.step


def _is_anticipated(following: Any, task: Any, first: Any) -> bool:
    return (
        # Exclude subclasses that a DAG's author wrote, because they may do additional work.
        type(following).__module__.startswith(f"{airflow_provider_cdc.__name__}.")
        # The running task has already waited for all other upstream tasks of the following task.
        and following.upstream_task_ids - {task.task_id} <= task.upstream_task_ids
        and not following.on_execute_callback
        and not following.is_setup
        and not following.is_teardown
        and all(getattr(following, name, None) == getattr(first, name, None) for name in SAME)
        and all(_plain(getattr(following, name, value)) == value for name, value in PLAIN.items())
    )


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


QUIET = {
    # By default, spark-submit logs at the level INFO and draws a progress bar. The task log should show only the app's
    # own output.
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
}


_WORKER = ("queue", "executor", "executor_config", "run_as_user")
"""The attributes of a task that decide on which workers, and as which user, it runs."""

END_SECONDS = 15
"""The maximum number of seconds to wait until Spark's processes have ended after they were killed."""


class SparkStepOperator(ReleasingOperator, GuardsSparkSubmit, SparkSubmitOperator):
    """Run one Spark app on the run's folder. Then push the results that the app recorded in this folder as XComs.

    XComs: ``counts``, and each of ``outputs`` under its own name.

    The source's credentials are passed to the driver only in environment variables, so Spark must run in client mode.

    :param source_conn_id: connection to the source.
    :param run_uri: XCom ``run_uri`` of lock_and_record.
    :param spark_conn_id: connection to Spark.
    :param conf: Spark properties. They are visible in the process list, so they must not hold secrets.
    :param storage_conn_id: connection to the object store. Empty: the settings in the environment.
    :param shared_app_seconds: if the app has run for fewer seconds than this, it also runs the step of the next task
        (`shared_app`).
    """

    step: ClassVar[str]
    """The name of the Spark app, and of the step's record."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """The names of the results of the step that are pushed as separate XComs."""

    template_fields: Sequence[str] = (
        "source_conn_id",
        "run_uri",
        "spark_conn_id",
        "conf",
        "shared_app_seconds",
        "storage_conn_id",
    )
    ui_color = "#f9d8b5"
    operator_extra_links = (ReportLink(),)
    report_uri = ""
    """The URI of the report. It is set when the run is published, or when the step has failed."""
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
        storage_conn_id: str = "",
        **kwargs: Unpack[SparkArguments],
    ) -> None:
        # The deploy mode in this argument takes precedence over all other settings.
        super().__init__(conf=conf, deploy_mode="client", do_xcom_push=False, **kwargs)
        # Params must keep their types, even if the DAG renders templates to text.
        self.render_template_as_native_obj = True
        self.source_conn_id = source_conn_id
        # Read this task id before Airflow renders ``run_uri``, because the rendered value does not show which task
        # pushed the XCom.
        self._recorded_by: str = getattr(getattr(run_uri, "operator", None), "task_id", "")
        self.run_uri: Any = run_uri
        self.spark_conn_id = spark_conn_id
        self.shared_app_seconds = shared_app_seconds
        self.storage_conn_id = storage_conn_id

    @failing
    @accessing_storage
    def execute(self, context: Context) -> dict[str, Any]:
        try:
            return self._execute(context)
        except (CdcError, AirflowException) as error:
            self._report_failure(context, error)
            raise

    def _execute(self, context: Context) -> dict[str, Any]:
        run = self.own_run(context)
        check_not_stopped(run)
        check_not_released(run, self.step)
        if self._is_done(context, run):
            self.log.info(
                "%s: already done in the Spark application of an earlier task; see that task's log", self.step
            )
        else:
            self._do(context, run)
        result = Run.load(run).steps.get(self.step)
        if result is None:
            raise ManifestError(
                f"the Spark app ended without an error, but {self.step} is not recorded as done",
                where=run.uri,
                hint="check the application's output above, and check that the Spark driver and this task use the "
                "same storage",
            )
        shown = records.encode(result)
        outputs = {name: shown.pop(name) for name in self.outputs}
        # Leave out the values that are text (names of records, a place in the log), because only the next step needs
        # these values.
        outputs["counts"] = {name: value for name, value in shown.items() if not isinstance(value, str)}
        push_xcoms(context, outputs)
        return outputs

    def own_run(self, context: Context) -> Storage:
        """Return the run folder of this DAG run.

        :raises ConfigurationError: ``run_uri`` is not a folder, or is the folder of another run. If the other run is
            finished, this task would do nothing and would not copy any table. If the other run is in progress, a
            failure of this task must not release that run.
        """
        if not isinstance(self.run_uri, str):
            raise ConfigurationError(
                f"run_uri is {self.run_uri!r}, which is not the folder of a run",
                where=f"task {self.task_id}",
                hint="pass the XCom `run_uri` of the task `lock_and_record`; if this XCom is missing or was changed, "
                "clear the task `lock_and_record`",
            )
        folder = Storage(self.run_uri)
        if not self._recorded_by or not Run.exists(folder):
            return folder
        lake, dag_run = Run.load(folder).manifest.lake, context["dag_run"]
        names = dag_run.dag_id, dag_run.run_id, self._recorded_by, lake, context["ti"].map_index
        if not same_run(run_id_in(folder), *names):
            raise ConfigurationError(
                f"{folder.uri} is not the folder of the run that the task {self._recorded_by} of this DAG run began",
                where=f"task {self.task_id}, run_uri",
                hint="the XCom `run_uri` was changed: clear the task `lock_and_record` and all tasks after it",
            )
        return folder

    def _is_done(self, context: Context, run: Storage) -> bool:
        """Return whether the application of an earlier task has done this task's step."""
        # A task that was cleared starts its own application, even if only checks remain to be done.
        if context["ti"].try_number != 1 or not run.exists(done_file(self.step)):
            return False
        # Use the file only once, because the DAG run may be deleted and created again under the same name. If the run
        # began again before this task started, the file may also belong to an earlier manifest.
        run.delete_file(done_file(self.step))
        return Run.load(run).steps.get(self.step) is not None

    def _do(self, context: Context, run: Storage) -> None:
        properties = {**QUIET, **(self.conf or {})}
        master = check_spark(self.spark_conn_id, properties)
        settings = open_hook(self.source_conn_id).settings()
        self.will_release(run, settings, context)
        then = self._then(context)
        try:
            catalog = lake_settings(Run.load(run).manifest.options.lake, self.source_conn_id).catalog
            self._submit(context, run, properties, driver_environment(settings, master, catalog), then)
        except (AirflowException, SparkFailed) as error:
            # If the step of this task is done, the application failed in a later step. The failed step is repeated by
            # its own task.
            if not then or Run.load(run).steps.get(self.step) is None:
                raise
            self.log.warning("%s is done, but its Spark application failed in a later step: %s", self.step, error)

    def _submit(
        self,
        context: Context,
        run: Storage,
        properties: Mapping[str, Any],
        variables: Mapping[str, str],
        then: Sequence[str],
    ) -> None:
        from airflow_provider_cdc.jobs.runtime.driver import package_zip

        token = uuid.uuid4().hex
        variables = {**variables, TRY_VARIABLE: token}
        with scratch(scratch_parent(properties)) as folder:
            self._scratch = folder
            self._conn_id = self.spark_conn_id
            self.conf = dict(properties)
            self.application = str(spark_app(self.step))
            self.application_args = ["--run-uri", to_argument(run.uri), *then]
            package = str(package_zip(folder))
            if has_user_entry():
                self.py_files = package
            else:
                # Before spark-submit handles files, it asks for the name of the user, and fails.
                path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
                variables = {**variables, PACKAGE_VARIABLE: package, "PYTHONPATH": path}
            name = f"{context['ti'].dag_id}.{self.step}.{run.uri.rsplit('/', 1)[-1]}"
            self.name = re.sub(r"[^\w.:+-]", "_", name, flags=re.ASCII)
            self._hook, self._said = None, LastLines()
            try:
                own = scratch_environment(folder, variables, log4j_option(properties))
                with environment({**variables, **own, **text_environment()}):
                    super().execute(context)
            except Exception:
                self._raise_what_the_app_said(run, error_file(self.step, token))
                self._raise_how_it_ended()
                raise

    def _then(self, context: Context) -> list[str]:
        if not self.shared_app_seconds:
            return []
        # Use the task of the DAG itself, because the templates in this copy of the task are already rendered.
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
            # If the report cannot be written, this must not hide the error of the step.
            self.log.info("Could not write the run's report: %s", also)
        else:
            self.log.info("Report of the failed run: %s", self.report_uri)

    def _raise_what_the_app_said(self, run: Storage, record: str) -> None:
        if not run.exists(record):
            return
        try:
            failure = records.read(records.Failure, run, record)
        except ManifestError as error:
            # Without the app's error record, it is unknown whether a retry may help.
            self.log.warning("Could not read the app's error record: %s", error)
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
        # Without a hook, this task has not started a process yet.
        guarding = submitted_process(self._hook)
        if guarding is not None:
            # Send SIGTERM and not SIGKILL, because the guardian must survive long enough to kill its children and clean
            # up.
            guarding.terminate()
        # Release the run before any wait, because Airflow kills this process 5 s after SIGTERM. The guardian finishes
        # its work without this process.
        self.release_when_killed()
        if self._hook is not None:
            if guarding is not None:
                with suppress(subprocess.TimeoutExpired):
                    guarding.wait(END_SECONDS)
            super().on_kill()


def runs_where_spark_steps_run(task: Any, context: Context) -> bool:
    """Return whether Airflow may run ``task`` and all Spark steps after it on the same workers."""
    after = context["dag"].get_task(task.task_id).get_flat_relatives(upstream=False)
    steps = [step for step in after if issubclass(getattr(step, "operator_class", type(step)), SparkStepOperator)]
    return all(getattr(step, name, None) == getattr(task, name, None) for step in steps for name in _WORKER)


def dag_run_name(context: Context) -> DagRunName:
    """Return the names that identify a task's DAG run, for the run's report."""
    return DagRunName(context["ti"].dag_id, str(context["dag_run"].run_id))


def spark_app(name: str) -> Path:
    """Return the file of a Spark app. If the package was installed from a wheel, the file is inside the package. In a
    checkout, the file is beside the package.

    :raises ConfigurationError: the file is in neither of these places.
    """
    package = Path(airflow_provider_cdc.__file__).parent
    places = [folder / "spark_apps" / f"{name}.py" for folder in (package, package.parent)]
    for place in places:
        if place.is_file():
            return place
    raise ConfigurationError(
        f"the Spark app {name} was not found in any of {', '.join(map(str, places))}", hint="reinstall the package"
    )


def _supervisor() -> int:
    """Return the id of the Airflow process that supervises this task. 0: the task has no supervisor, as in ``dags
    test``.

    If the supervisor dies, the task counts as dead.
    """
    return 0 if supervisor_channel() is None else os.getppid()
