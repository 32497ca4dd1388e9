"""The second step: fixes the initial position and writes the run's manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException

from airflow_provider_cdc.core.liveness import note_dag_run
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.manifest import MissedPast, TablePlan
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import lake_of
from airflow_provider_cdc.hooks import open_source_with_replicas
from airflow_provider_cdc.hooks.catalog import lake_settings
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.operators.arguments.options import Allowed
from airflow_provider_cdc.operators.arguments.types import TaskArguments, Xcom
from airflow_provider_cdc.operators.base import (
    TargetOperator,
    group_of,
    push_xcoms,
    run_folder,
    run_id_of,
    scratch_for,
)
from airflow_provider_cdc.operators.planning.dag_run_state import dag_run_of
from airflow_provider_cdc.operators.planning.planner import PlanRequest, wait_until_started
from airflow_provider_cdc.operators.planning.record_run import RunRecorder
from airflow_provider_cdc.operators.release import ReleasingOperator
from airflow_provider_cdc.operators.task_errors import failing
from airflow_provider_cdc.sinks.registry import open_sink

if TYPE_CHECKING:
    from airflow.sdk import Context


class LockAndRecordOperator(TargetOperator, ReleasingOperator):
    """Fix the initial position and write the manifest. If the consistency of a table requires a lock, the position is
    fixed under a short lock.

    If a table no longer fits the plan of ``preflight``, because it was altered since, this task plans the run again.
    The plan that counts is in the log of this task and in the manifest.

    An existing manifest is kept, because the rows that were already read belong to the initial position in this
    manifest. If the source no longer has the log from the initial position on, no more rows can be read for this
    position. In that case, the run begins again with a new manifest.

    XComs: ``run_uri`` is the run's folder. The initial position is in ``initial_gtid_set`` (MySQL) or ``initial_lsn``
    (PostgreSQL).

    :param source_conn_id: connection to the source.
    :param target: URI of the folder in which the run publishes. ``{source}`` in the URI stands for ``source_conn_id``.
    :param scratch: URI of the folder for runs in progress, in the same form as ``target``. Empty: ``_runs`` in the
        target.
    :param plan: XCom ``plan`` of preflight.
    :param options: XCom ``options`` of preflight.
    :param skipped: XCom ``skipped`` of preflight.
    :param missed_past: XCom ``missed_past`` of preflight.
    :param may_miss_past: XCom ``may_miss_past`` of preflight.
    :param request: XCom ``request`` of preflight. Without it, a run cannot be planned again, and ends if a table was
        altered since preflight.
    :param plan_only: the same value as for preflight. If true, this task and the tasks after it are skipped.
    :param storage_conn_id: connection to the object store, as for preflight.
    :param source_conn_ids: the allowed connections, as for preflight.
    :param targets: the allowed targets, as for preflight.
    """

    template_fields: Sequence[str] = (
        "source_conn_id",
        "target",
        "scratch",
        "plan",
        "options",
        "skipped",
        "missed_past",
        "may_miss_past",
        "request",
        "plan_only",
        "storage_conn_id",
    )

    def __init__(
        self,
        *,
        source_conn_id: str,
        target: str,
        plan: Xcom,
        options: Xcom,
        skipped: Xcom = None,
        missed_past: Xcom = None,
        may_miss_past: Xcom = None,
        request: Xcom = None,
        plan_only: bool | str = False,
        scratch: str = "",
        storage_conn_id: str = "",
        source_conn_ids: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(do_xcom_push=False, **kwargs)
        self.source_conn_id = source_conn_id
        self.target = target
        self.scratch = scratch
        self.storage_conn_id = storage_conn_id
        # The attributes are declared with the types that their values have after rendering.
        self.plan: Any = plan
        self.options: Any = options
        self.skipped: Any = skipped
        self.missed_past: Any = missed_past
        self.may_miss_past: Any = may_miss_past
        self.request: Any = request
        self.plan_only = plan_only
        self.allowed = Allowed(source_conn_ids, targets)
        self._recording = False

    @failing
    @accessing_storage
    def execute(self, context: Context) -> dict[str, Any]:
        # This module is imported only here, because it is slow to import and Airflow parses DAGs often.
        from airflow_provider_cdc.operators.planning.lake_checks import (
            check_not_made_before,
            check_not_of_a_deleted_dag_run,
        )

        # Preflight has checked that ``plan_only`` is a boolean, but a template may have rendered the boolean to text.
        if str(self.plan_only).lower() == "true":
            raise AirflowSkipException(
                "nothing is copied, because the option `plan_only` is set. The plan is in the "
                "log of the task `preflight`"
            )
        options = records.decode(StepOptions, self.options, "XCom options of preflight")
        self.allowed.check(
            self.source_conn_id, self.target, self.scratch, options.read_conn_ids or (), options.log.conn_id
        )
        lake = lake_of(self.target, self.source_conn_id)
        source = open_source_with_replicas(self.source_conn_id, options)
        wait_until_started(source)
        plans = records.decode(list[TablePlan], self.plan, "XCom plan of preflight")
        missed = (
            records.decode(MissedPast, self.missed_past, "XCom missed_past of preflight") if self.missed_past else None
        )
        run_id = run_id_of(context, lake)
        sink = open_sink(lake_settings(options.lake, self.source_conn_id), Storage(lake))
        scratch = scratch_for(self.scratch, self.source_conn_id, lake)
        folder = run_folder(scratch, run_id)
        if not Run.exists(folder):
            check_not_made_before(folder, sink, list(dict.fromkeys(plan.copy_name for plan in plans)))
        elif context["ti"].try_number == 1:
            check_not_of_a_deleted_dag_run(Run.load(folder), options)

        request = records.decode(PlanRequest, self.request, "XCom request of preflight") if self.request else None
        recorder = RunRecorder(
            source,
            self.source_conn_id,
            Storage(lake),
            scratch,
            sink,
            run_id,
            group_of(context),
            request,
            # Accept only the boolean that preflight returned. If the value is a text, a template has replaced the value
            # that preflight returned.
            self.may_miss_past is True,
            self.log,
        )
        self._recording = True
        run = recorder.record(plans, self.skipped or {}, options, missed)
        self._recording = False
        note_dag_run(run.folder, dag_run_of(context, self.task_id))
        outputs = {"run_uri": run.folder.uri, run.manifest.position_key: run.manifest.initial_position}
        push_xcoms(context, outputs)
        return outputs

    def on_kill(self) -> None:
        # Raise an error, so that the cleanup handlers drop the objects that were already created on the source.
        if self._recording:
            raise AirflowException("killed while the initial position was being recorded")
