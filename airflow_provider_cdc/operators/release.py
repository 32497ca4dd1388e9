"""Drops the replication slot and the publication of a run that has failed for good. No other code drops the slot and
publication of such a run."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_provider_cdc.compat import is_over, supervisor_channel
from airflow_provider_cdc.core.options.run import LogOptions, StepOptions
from airflow_provider_cdc.core.run.release import release as release_what_is_kept
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import lake_of
from airflow_provider_cdc.hooks import settings_with_replicas
from airflow_provider_cdc.hooks.storage import conn_id_of, storage_access
from airflow_provider_cdc.operators.arguments.templates import RendersClearly
from airflow_provider_cdc.operators.base import (
    run_folder,
    run_id_for,
    run_id_of,
    scratch_for,
)
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)


class ReleasingOperator(RendersClearly):
    """A task that drops the run's replication slot and publication when the task fails for good. If Airflow will retry
    the task, a failed try does not drop the slot and the publication."""

    source_conn_id: str
    storage_conn_id: str = ""
    _releasing: tuple[Storage, ConnectionSettings, Context] | None = None
    _continues_in_another_try = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Keep the author's own callbacks, including those from default_args.
        callbacks: Sequence[Any] = getattr(self, "on_failure_callback", ())
        self.on_failure_callback = [*callbacks, release_of_task]

    def will_release(self, run: Storage, settings: ConnectionSettings, context: Context) -> None:
        """Keep the run and its connection settings in memory, because a task that is being killed cannot ask Airflow
        for a connection."""
        self._releasing = (run, settings, context)

    def give_up(self, run: Storage, settings: ConnectionSettings, *, killed: bool = False) -> None:
        """End the job of the run on its platform, and release the run. Errors are only logged, so that they do not hide
        the error of the task.

        :param killed: Airflow is killing this process, so the process cannot ask Airflow for a connection. The job is
            revoked, so that its driver ends.
        """
        # Imported late, because DAG files are parsed continually.
        from airflow_provider_cdc.operators.spark.launchers.remote import end_jobs, revoke_jobs

        try:
            revoke_jobs(run)
            if not killed:
                end_jobs(run)
        except Exception as error:
            _log.warning("Could not end the Spark job of %s: %s", run.uri, error)
        self.release(run, settings)

    def release(self, run: Storage, settings: ConnectionSettings) -> None:
        """Drop the run's slot and publication. Errors are only logged, so that they do not hide the error of the
        task."""
        try:
            source = open_source(settings)
            release_what_is_kept(run, source.release)
        except Exception as error:
            _log.warning("Could not drop the replication slot and publication of %s: %s", run.uri, error)

    def release_when_killed(self) -> None:
        """Release the run if Airflow will not run the killed task again. `on_kill` must call this method.

        After a timeout of the task, this method does nothing: either Airflow retries the task, or the task fails and
        its callback releases the run.

        Airflow also kills tasks that were cleared while running, and tasks that lost contact with Airflow's server for
        too long. The next try of such a task needs the slot and the publication.
        """
        if self._releasing is None or isinstance(sys.exc_info()[1], AirflowTaskTimeout):
            return
        run, settings, context = self._releasing
        if _is_over(context):
            self.give_up(run, settings, killed=True)
        else:
            self._continues_in_another_try = True
            _log.info("Kept the replication slot and publication (if any) of %s for the task's next try", run.uri)


class ReleaseOfRun:
    """Drops the slot and the publication that the run of one `SnapshotTaskGroup` created, when the DAG run ends.

    Instances of this class are both ``on_failure_callback`` and ``on_success_callback`` of the DAG. Airflow calls no
    callback of a task whose process dies at once (SIGKILL, out of memory, loss of its machine), or of a task that a
    user marked as failed or successful before it ran. But the DAG run still ends, and Airflow then calls the DAG's
    callback in another process. A mapped group has one run for each of its sources.

    :param recording: the task that records the initial position.
    """

    def __init__(self, recording: ReleasingOperator) -> None:
        self._recording = recording

    def __call__(self, context: Context) -> None:
        task: Any = self._recording
        try:
            if task.get_closest_mapped_task_group() is None:
                self._release(context, None)
                return
            instance: Any = context["ti"]
            dag_run = context["dag_run"]
            # Do not use get_ti_count, because the DAG processor of Airflow 3.3 cannot decode the answer.
            task_filter = {"dag_id": dag_run.dag_id, "task_ids": [task.task_id], "run_ids": [dag_run.run_id]}
            states = instance.get_task_states(**task_filter).get(dag_run.run_id, {})
        except Exception as error:
            _log.warning("Could not drop the replication slots and publications of this DAG run: %s", error)
            return
        named = (re.fullmatch(re.escape(task.task_id) + "_([0-9]+)", name) for name in states)
        for index in sorted(int(match[1]) for match in named if match):
            context_of_task: Any = {**context, "ti": _Instance(instance, index)}
            self._release(context_of_task, index)

    def _release(self, context: Context, map_index: int | None) -> None:
        task: Any = self._recording
        try:
            # The task runs in another process, so its templates are not rendered in this process yet.
            target, scratch, source_conn_id, storage_conn_id = task.render_template(
                [task.target, task.scratch, task.source_conn_id, task.storage_conn_id], context
            )
            # A rejected run created nothing, and its connection and folders must not be accessed.
            task.allowed.check(source_conn_id, target, scratch)
            lake = lake_of(target, source_conn_id)
            run_id = run_id_for(context["dag_run"], task.task_id, lake, map_index)
            with storage_access(storage_conn_id):
                run = run_folder(scratch_for(scratch, source_conn_id, lake), run_id)
                task.give_up(run, _settings(task, source_conn_id, run, context))
        except Exception as error:
            _log.warning("Could not drop the replication slot and publication of this run: %s", error)


def _settings(task: Any, source_conn_id: str, run: Storage, context: Context) -> ConnectionSettings:
    """Return the settings of the source of a run, with those of the server that may have its slot."""
    log_options = LogOptions()
    if Run.exists(run):
        log_options = Run.load(run).manifest.options.log
    elif getattr(task, "options", None):
        # The task was killed before it recorded the run. If the XCom cannot be read here, a slot on a standby stays.
        with suppress(Exception):
            rendered = task.render_template(task.options, context)
            log_options = records.decode(StepOptions, rendered, "XCom options of preflight").log
    return settings_with_replicas(source_conn_id, StepOptions(log=log_options))


class _Instance:
    """A task instance with another map index."""

    def __init__(self, instance: Any, map_index: int) -> None:
        self._instance = instance
        self.map_index = map_index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)


def _is_over(context: Context) -> bool:
    """Return whether Airflow will not run a killed task again by itself.

    If Airflow does not answer, return False, because Airflow may run the task again. If Airflow does not run the task
    again, the DAG run fails, and Airflow calls `ReleaseOfRun`.
    """
    if supervisor_channel() is None:
        return True
    task_instance: Any = context["ti"]
    try:
        answer = task_instance.get_task_states(
            dag_id=task_instance.dag_id, task_ids=[task_instance.task_id], run_ids=[context["dag_run"].run_id]
        )
        return is_over(answer.get(context["dag_run"].run_id, {}), task_instance.task_id, task_instance.map_index)
    except Exception as error:
        _log.warning("Could not read the state of this task from Airflow: %s", error)
        return False


def release_of_task(context: Context) -> None:
    """Release the run of a `ReleasingOperator`. This function is the operator's ``on_failure_callback``, which Airflow
    calls when no try is left."""
    task: Any = context["ti"].task
    if task._continues_in_another_try:
        # In the last try, this function is called even if the task was killed because a user cleared it.
        return
    try:
        with storage_access(conn_id_of(task)):
            _release(task, context)
    except Exception as error:
        _log.warning("Could not drop the replication slot and publication of this run: %s", error)


def _release(task: Any, context: Context) -> None:
    if isinstance(getattr(task, "run_uri", None), str):
        run = task.own_run(context)
    elif not hasattr(task, "target"):
        # The XCom ``run_uri`` is missing, because lock_and_record was skipped, a user set the state of
        # lock_and_record, or the XCom was removed.
        _log.info(
            "Cannot tell which run this task belongs to, because the XCom `run_uri` is missing. The run's slot and "
            "publication are released when the DAG run ends"
        )
        return
    else:
        lake = lake_of(task.target, task.source_conn_id)
        run = run_folder(scratch_for(task.scratch, task.source_conn_id, lake), run_id_of(context, lake))
    task.give_up(run, _settings(task, task.source_conn_id, run, context))
