"""What all steps share: the id of a run, its folder, and what they leave for each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.run.run import scratch_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.target import lake_of
from airflow_provider_cdc.core.storage.uri import LakeUri, redacted
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.templates import RendersClearly

if TYPE_CHECKING:
    from airflow.sdk import Context


def run_id_of(context: Context, lake: str) -> str:
    """The run's id: the same for every try of one task of one DAG run, and another for every other.

    It sorts by time, and its characters are safe in every file system and in Hadoop paths. A manual DAG run may have no
    logical date, so the time is ``run_after``, which clearing leaves as it is. Two deployments of Airflow may have the
    same DAG and the same run of it, and copy from one server: so the lake's folder is part of it.

    :param lake: `lake_of` the task's target.
    """
    task_instance = context["ti"]
    return run_id_for(context["dag_run"], task_instance.task_id, lake, task_instance.map_index)


def run_id_for(dag_run: Any, task_id: str, lake: str, map_index: int | None = None) -> str:
    """`run_id_of` of the task ``task_id``, whichever task asks."""
    digest = _digest(dag_run.dag_id, dag_run.run_id, task_id, lake, map_index)
    return f"{dag_run.run_after.astimezone(UTC):%Y%m%dT%H%M%SZ}-{digest}"


def same_run(run_id: str, dag_id: str, dag_run_id: str, task_id: str, lake: str, map_index: int | None = None) -> bool:
    """Whether ``run_id`` is the `run_id_for` such a DAG run, whenever that was due."""
    return run_id.rpartition("-")[2] == _digest(dag_id, dag_run_id, task_id, lake, map_index)


def _digest(dag_id: str, dag_run_id: str, task_id: str, lake: str, map_index: int | None) -> str:
    names = [dag_id, dag_run_id, task_id, lake]
    if map_index not in (None, -1):
        names.append(str(map_index))
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]


def scratch_for(scratch: str, source_conn_id: str, lake: str) -> str:
    """The URI of the folder in which the folders of runs lie, of the parameter ``scratch``.

    :param lake: `lake_of` the task's target.
    :raises ConfigurationError: it is no place to write to, or readers of the lake would take runs for tables.
    """
    if not scratch:
        return scratch_of(lake)
    lake_uri = LakeUri.parse(lake_of(scratch, source_conn_id, "scratch"))
    lake_depth = len(LakeUri.parse(lake).segments)
    if lake_uri.matches(lake) and not any(part.startswith(("_", ".")) for part in lake_uri.decoded[lake_depth:]):
        raise ConfigurationError(
            "it lies in the target, where readers would take runs for tables",
            where="parameter scratch",
            hint="name a folder of its own, or one in the target whose name begins with _",
        )
    return str(lake_uri)


def run_folder(scratch: str, run_id: str) -> Storage:
    """Where the run's work lies.

    :param scratch: `scratch_for` it.
    :raises StorageUnavailable: the store does not answer.
    """
    return Storage(scratch).folder(run_id)


def say_skipped(log: Any, skipped: Mapping[str, str]) -> None:
    """Warn which tables a run leaves out, and why: nobody should take its copy for complete."""
    for table, reason in sorted(skipped.items()):
        log.warning("SKIPPED, not copied: %s (%s)", table, reason)


def hand_on(context: Context, outputs: Mapping[str, Any]) -> None:
    """Leave each output for later tasks, under its own key.

    For operators with ``do_xcom_push=False``: Airflow's own ``multiple_outputs`` stores all of it a second time, as
    ``return_value``, and the plan of a large run is large.
    """
    for key, value in outputs.items():
        context["ti"].xcom_push(key=key, value=value)


class TargetOperator(RendersClearly):
    """A task with a ``target`` and a ``scratch``. Airflow keeps what a task's arguments were rendered to, and shows it:
    what could be a secret in these is removed first. What remains is refused by `execute`, as the whole would have
    been."""

    target: str
    scratch: str = ""

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        super().render_template_fields(context, jinja_env)
        if isinstance(self.target, str):
            self.target = redacted(self.target)
        if isinstance(self.scratch, str):
            self.scratch = redacted(self.scratch)
