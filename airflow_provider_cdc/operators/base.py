"""Helpers for all steps: the id and the folder of a run, XComs, and the rendering of ``target`` and ``scratch``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.run.run import scratch_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri, lake_of, redacted
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.arguments.templates import RendersClearly
from airflow_provider_cdc.report.facts import DagRunName

if TYPE_CHECKING:
    from airflow.sdk import Context


def run_id_of(context: Context, lake: str) -> str:
    """Return the run's id. All tries of one task of one DAG run get the same id. Any other task or DAG run gets a
    different id.

    Ids sort by time, and their characters are safe in every file system and in Hadoop paths. The time in an id is
    ``run_after``, because a manual DAG run may have no logical date, and because clearing a task does not change
    ``run_after``. Two deployments of Airflow may have the same DAG and DAG run, and may copy from the same server. So
    the id also depends on the target folder.

    :param lake: `lake_of` the task's target.
    """
    task_instance = context["ti"]
    return run_id_for(context["dag_run"], task_instance.task_id, lake, task_instance.map_index)


def run_id_for(dag_run: Any, task_id: str, lake: str, map_index: int | None = None) -> str:
    """Return the run id that `run_id_of` returns in the task ``task_id``. Any task may call this function."""
    digest = _digest(dag_run.dag_id, dag_run.run_id, task_id, lake, map_index)
    return f"{dag_run.run_after.astimezone(UTC):%Y%m%dT%H%M%SZ}-{digest}"


def same_run(run_id: str, dag_id: str, dag_run_id: str, task_id: str, lake: str, map_index: int | None = None) -> bool:
    """Return whether ``run_id`` belongs to the given DAG run and task. The function compares ``run_id`` with the id
    that `run_id_for` returns, but ignores ``run_after``."""
    return run_id.rpartition("-")[2] == _digest(dag_id, dag_run_id, task_id, lake, map_index)


def _digest(dag_id: str, dag_run_id: str, task_id: str, lake: str, map_index: int | None) -> str:
    names = [dag_id, dag_run_id, task_id, lake]
    if map_index not in (None, -1):
        names.append(str(map_index))
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]


def group_of(context: Context) -> str:
    """Return the name of a task's group, as it is written into the table ``cdc_cuts``. The name consists of the id of
    the DAG, the prefix of the group's task ids and, for a mapped group, its index."""
    task_instance = context["ti"]
    prefix, index = task_instance.task_id.rpartition(".")[0], task_instance.map_index
    name = f"{context['dag_run'].dag_id}.{prefix}" if prefix else str(context["dag_run"].dag_id)
    return name if index in (None, -1) else f"{name}[{index}]"


def scratch_for(scratch: str, source_conn_id: str, lake: str) -> str:
    """Return the URI of the folder that contains the folders of runs. The parameter ``scratch`` determines this folder.

    :param lake: `lake_of` the task's target.
    :raises ConfigurationError: ``scratch`` is not a valid folder, or readers of the lake would mistake the folders of
        runs for folders of tables.
    """
    if not scratch:
        return scratch_of(lake)
    lake_uri = LakeUri.parse(lake_of(scratch, source_conn_id, "scratch"))
    lake_depth = len(LakeUri.parse(lake).segments)
    if lake_uri.matches(lake) and not any(part.startswith(("_", ".")) for part in lake_uri.decoded[lake_depth:]):
        raise ConfigurationError(
            "the folder is inside the target, so readers of the target would mistake runs for tables",
            where="parameter scratch (Lake.scratch)",
            hint="use a folder outside the target, or a folder inside the target whose name begins with _",
        )
    return str(lake_uri)


def run_folder(scratch: str, run_id: str) -> Storage:
    """Return the folder of a run.

    :param scratch: the result of `scratch_for`.
    :raises StorageUnavailable: the store does not answer.
    """
    return Storage(scratch).folder(run_id)


def log_skipped(log: Any, skipped: Mapping[str, str]) -> None:
    """Log a warning with the tables that a run leaves out, and with the reasons. Otherwise users might mistake the
    copies for a complete set."""
    for table, reason in sorted(skipped.items()):
        log.warning("SKIPPED, not copied: %s (%s)", table, reason)


def push_xcoms(context: Context, outputs: Mapping[str, Any]) -> None:
    """Push each output as an XCom under its own key.

    Operators with ``do_xcom_push=False`` use this function. Airflow's own ``multiple_outputs`` would store all outputs
    a second time, as ``return_value``. The plan of a large run is too large to be stored twice.
    """
    for key, value in outputs.items():
        context["ti"].xcom_push(key=key, value=value)


class TargetOperator(RendersClearly):
    """A task with a ``target`` and a ``scratch``.

    Airflow stores the rendered arguments of a task, and shows them in the UI. So this class first removes the parts of
    a URI that may hold a secret. `execute` rejects the redacted URI, just as it would have rejected the original URI.
    """

    target: str
    scratch: str = ""

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        super().render_template_fields(context, jinja_env)
        if isinstance(self.target, str):
            self.target = redacted(self.target)
        if isinstance(self.scratch, str):
            self.scratch = redacted(self.scratch)


def dag_run_name(context: Context) -> DagRunName:
    """Return the names that identify a task's DAG run, for the run's report."""
    return DagRunName(context["ti"].dag_id, str(context["dag_run"].run_id))
