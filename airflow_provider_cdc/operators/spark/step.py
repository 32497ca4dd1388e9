"""The base class of the operators that run a step on Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow.configuration import conf as airflow_conf
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_cdc.compat import PRE_EXECUTE_HOOK
from airflow_provider_cdc.core.control.acts import check_not_stopped
from airflow_provider_cdc.core.run.release import check_not_released
from airflow_provider_cdc.core.run.run import Run, run_id_in
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ManifestError, SparkFailed
from airflow_provider_cdc.hooks import settings_with_replicas
from airflow_provider_cdc.hooks.catalog import lake_settings
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.jobs.runtime.driver import done_file
from airflow_provider_cdc.links.report import ReportLink
from airflow_provider_cdc.operators.arguments.types import TaskArguments
from airflow_provider_cdc.operators.base import dag_run_name, push_xcoms, same_run
from airflow_provider_cdc.operators.spark.app import SparkAppOperator
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.report.page import write_failure

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg


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
        type(following).__module__.partition(".")[0] == __name__.partition(".")[0]
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


_WORKER = ("queue", "executor", "executor_config", "run_as_user")
"""The attributes of a task that decide on which workers, and as which user, it runs."""


class SparkStepOperator(SparkAppOperator):
    """Run one Spark app on the run's folder. Then push the results that the app recorded in this folder as XComs.

    XComs: ``counts``, and each of ``outputs`` under its own name.

    A launcher starts the application (`operators.spark.launchers`). It runs ``spark-submit`` in client mode, and passes
    the source's credentials to the driver only in environment variables.

    The arguments from ``archives`` to ``yarn_queue`` are those of Airflow's `SparkSubmitOperator`.

    :param source_conn_id: connection to the source.
    :param run_uri: XCom ``run_uri`` of lock_and_record.
    :param spark_conn_id: connection to Spark.
    :param conf: Spark properties. They are visible in the process list, so they must not hold secrets.
    :param storage_conn_id: connection to the object store. Empty: the settings in the environment.
    :param shared_app_seconds: if the app has run for fewer seconds than this, it also runs the step of the next task
        (`shared_app`).
    :param deferrable: wait for a job on a platform (a connection of type ``cdc_spark``) in the triggerer, without a
        worker. The default is Airflow's setting ``operators.default_deferrable``.
    :param name: has no effect: the application is named after the DAG, the step and the run.
    """

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

    def __init__(
        self,
        *,
        source_conn_id: str,
        run_uri: XComArg | str,
        spark_conn_id: str = "spark_default",
        conf: Mapping[str, object] | str | None = None,
        shared_app_seconds: float | str = 0.0,
        storage_conn_id: str = "",
        deferrable: bool | None = None,
        archives: str | None = None,
        driver_class_path: str | None = None,
        driver_memory: str | None = None,
        exclude_packages: str | None = None,
        executor_cores: int | None = None,
        executor_memory: str | None = None,
        files: str | None = None,
        jars: str | None = None,
        keytab: str | None = None,
        name: str = "",
        num_executors: int | None = None,
        packages: str | None = None,
        principal: str | None = None,
        properties_file: str | None = None,
        proxy_user: str | None = None,
        repositories: str | None = None,
        spark_binary: str | None = None,
        status_poll_interval: int = 1,
        total_executor_cores: int | None = None,
        use_krb5ccache: bool = False,
        verbose: bool = False,
        yarn_queue: str | None = None,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(do_xcom_push=False, **kwargs)
        # Params must keep their types, even if the DAG renders templates to text.
        self.render_template_as_native_obj = True
        self.source_conn_id = source_conn_id
        # Read this task id before Airflow renders ``run_uri``, because the rendered value does not show which task
        # pushed the XCom.
        self._recorded_by: str = getattr(getattr(run_uri, "operator", None), "task_id", "")
        self.run_uri: Any = run_uri
        self.spark_conn_id = spark_conn_id
        self.conf: Any = conf
        self.shared_app_seconds = shared_app_seconds
        self.storage_conn_id = storage_conn_id
        if deferrable is None:
            deferrable = airflow_conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = deferrable
        self._submit_arguments = {
            "archives": archives,
            "driver_class_path": driver_class_path,
            "driver_memory": driver_memory,
            "exclude_packages": exclude_packages,
            "executor_cores": executor_cores,
            "executor_memory": executor_memory,
            "files": files,
            "jars": jars,
            "keytab": keytab,
            "num_executors": num_executors,
            "packages": packages,
            "principal": principal,
            "properties_file": properties_file,
            "proxy_user": proxy_user,
            "repositories": repositories,
            "spark_binary": spark_binary,
            "status_poll_interval": status_poll_interval,
            "total_executor_cores": total_executor_cores,
            "use_krb5ccache": use_krb5ccache,
            "verbose": verbose,
            "yarn_queue": yarn_queue,
        }

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
        if self._resumed is None:
            check_not_stopped(run)
            check_not_released(run, self.step)
        if self._resumed is None and self._is_done(context, run):
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
        launcher = self.open_launcher(context)
        options = Run.load(run).manifest.options
        read_settings = partial(settings_with_replicas, self.source_conn_id, options)
        then = self._then(context)
        try:
            catalog = lake_settings(options.lake, self.source_conn_id).catalog
            self.run_app(launcher, context, run, read_settings, catalog, then)
        except (AirflowException, SparkFailed) as error:
            # If the step of this task is done, the application failed in a later step. The failed step is repeated by
            # its own task.
            if not then or Run.load(run).steps.get(self.step) is None:
                raise
            self.log.warning("%s is done, but its Spark application failed in a later step: %s", self.step, error)

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
            self.report_uri = write_failure(run, dag_run_name(context), self.step, error)
        except (CdcError, OSError) as also:
            # If the report cannot be written, this must not hide the error of the step.
            self.log.info("Could not write the run's report: %s", also)
        else:
            self.log.info("Report of the failed run: %s", self.report_uri)


def runs_where_spark_steps_run(task: Any, context: Context) -> bool:
    """Return whether Airflow may run ``task`` and all Spark steps after it on the same workers."""
    after = context["dag"].get_task(task.task_id).get_flat_relatives(upstream=False)
    steps = [step for step in after if issubclass(getattr(step, "operator_class", type(step)), SparkStepOperator)]
    return all(getattr(step, name, None) == getattr(task, name, None) for step in steps for name in _WORKER)
