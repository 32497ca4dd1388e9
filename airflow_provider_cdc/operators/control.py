"""Pauses, resumes or stops a run in progress, or changes its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from airflow_provider_cdc.core.control.acts import LIMIT, act_on
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import SOURCE_PLACEHOLDER, LakeUri
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks.storage import accessing_storage
from airflow_provider_cdc.operators.arguments.templates import RendersClearly
from airflow_provider_cdc.operators.arguments.types import TaskArguments
from airflow_provider_cdc.operators.task_errors import failing

if TYPE_CHECKING:
    from airflow.sdk import Context


class ControlOperator(RendersClearly):
    """Record an act on a run in progress. The run follows it within seconds.

    XComs: ``act``, the act in words.

    :param act: ``pause``, ``resume``, ``stop`` or ``limit``.
    :param run_uri: the folder of the run: the XCom ``run_uri`` of its task ``lock_and_record``. Empty: the XCom of the
        task ``recording_task`` in the DAG run ``run_id`` of the DAG ``dag_to_control``.
    :param dag_to_control: the DAG of the run, if ``run_uri`` is empty.
    :param run_to_control: the id of the DAG run, if ``run_uri`` is empty.
    :param recording_task: the task that recorded the run's position, with the id of its group.
    :param reason: why, for the log and the report of the run.
    :param max_reads: with ``limit``, the new `max_reads` of the run. None: unchanged.
    :param max_rows_per_second: with ``limit``, the new `max_rows_per_second` of the run. None: unchanged.
    :param governor: with ``limit``, new thresholds of the signals that the run watches.
    :param storage_conn_id: connection to the object store. Empty: the settings in the environment.
    :param targets: the folders in which the run may be, as for `SnapshotTaskGroup`. None: any folder.
    """

    template_fields: Sequence[str] = (
        "act",
        "run_uri",
        "dag_to_control",
        "run_to_control",
        "recording_task",
        "reason",
        "max_reads",
        "max_rows_per_second",
        "governor",
        "storage_conn_id",
    )

    def __init__(
        self,
        *,
        act: str,
        run_uri: Any = "",
        dag_to_control: str = "",
        run_to_control: str = "",
        recording_task: str = "lock_and_record",
        reason: str = "",
        max_reads: int | str | None = None,
        max_rows_per_second: int | str | None = None,
        governor: Mapping[str, float] | str | None = None,
        storage_conn_id: str = "",
        targets: Sequence[str] | None = None,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(do_xcom_push=False, **kwargs)
        # Params must keep their types, even if the DAG renders templates to text.
        self.render_template_as_native_obj = True
        self.act = act
        self.run_uri = run_uri
        self.dag_to_control = dag_to_control
        self.run_to_control = run_to_control
        self.recording_task = recording_task
        self.reason = reason
        self.max_reads: Any = max_reads
        self.max_rows_per_second: Any = max_rows_per_second
        self.governor: Any = governor
        self.storage_conn_id = storage_conn_id
        self.targets = targets

    @failing
    @accessing_storage
    def execute(self, context: Context) -> None:
        uri = self.run_uri or self._found(context)
        self._check_allowed(uri)
        limits: dict[str, Any] = {
            "max_reads": self.max_reads,
            "max_rows_per_second": self.max_rows_per_second,
            "governor": self.governor or None,
        }
        if wrong := [name for name in ("max_reads", "max_rows_per_second") if not _is_count(limits[name])]:
            what = f"{limits[wrong[0]]!r} is not a whole number of at least 0"
            raise ConfigurationError(what, where=f"parameter {wrong[0]}", hint="give a number, or leave it empty")
        act = act_on(Storage(uri), self.act, _who(context), str(self.reason or ""), **limits)
        order = f"{act.verb} {act.limits}".strip() if act.verb == LIMIT else act.verb
        self.log.info("%s: %s, by %s. The run follows within seconds; its log and its report show it", uri, order, act)
        context["ti"].xcom_push(key="act", value=f"{order}, by {act}")

    def _found(self, context: Context) -> str:
        """Return the folder of the run of a DAG run."""
        if self.dag_to_control and self.run_to_control:
            instance: Any = context["ti"]
            found = instance.xcom_pull(
                dag_id=self.dag_to_control, run_id=self.run_to_control, task_ids=self.recording_task, key="run_uri"
            )
            if isinstance(found, str) and found:
                return found
        raise ConfigurationError(
            f"the DAG run {self.run_to_control!r} of the DAG {self.dag_to_control!r} has no XCom run_uri of a task "
            f"{self.recording_task!r}",
            where="parameter run_uri",
            hint="give the run's folder as run_uri, or the DAG, the DAG run and the task that recorded the position "
            "(with the id of its group: shop.lock_and_record)",
        )

    def _check_allowed(self, uri: str) -> None:
        if self.targets is None:
            return
        run, patterns = LakeUri.parse(uri), [one.replace(SOURCE_PLACEHOLDER, "*") for one in self.targets]
        if not any(run.matches(pattern) for pattern in patterns):
            raise ConfigurationError(
                f"the DAG's author does not allow {uri}",
                where="parameter run_uri",
                hint=f"the allowed folders are {', '.join(patterns) or 'none'} (Airflow's configuration, section cdc, "
                "AIRFLOW__CDC__TARGETS)",
            )


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _who(context: Context) -> str:
    """Return who acts: the user who triggered the DAG run, if Airflow tells, and the DAG run."""
    dag_run: Any = context["dag_run"]
    user = getattr(dag_run, "triggering_user_name", None)
    name = f"DAG run {dag_run.dag_id} {dag_run.run_id}"
    return f"{user} ({name})" if user else name
