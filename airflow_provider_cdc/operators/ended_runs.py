"""Drops the replication slots and publications of earlier runs whose DAG runs have ended without a callback.

If a user marks a DAG run as failed or successful while none of its tasks is running, Airflow does not call any
callback.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.run.release import release
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.operators.base import run_folder, same_run
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.sources.api.source import LeftByRun, Source

if TYPE_CHECKING:
    from airflow.sdk import Context

_OVER = {"failed", "success"}

_log = logging.getLogger(__name__)


def release_what_is_over(context: Context, task: Any, source: Source, scratch: str, lake: str) -> None:
    """Drop the slots and publications of earlier runs of the same task group whose DAG runs have failed or succeeded.

    Only runs that publish into the same lake are considered. An error is logged, and does not fail the task.

    If the DAG run does not exist in this deployment of Airflow, the slot is kept. Another deployment of the same DAG
    may still be executing the DAG run.

    :param task: the `PreflightOperator` of the group.
    :param scratch: URI of the folder that contains the folders of runs.
    :param lake: URI of the folder in which the run publishes.
    """
    instance: Any = context["ti"]
    try:
        (recording,) = (
            downstream_task.task_id
            for downstream_task in task.downstream_list
            if isinstance(downstream_task, LockAndRecordOperator)
        )
        for leftover in source.left_by_runs():
            names = leftover.dag_id, leftover.dag_run_id, recording, lake, instance.map_index
            if leftover.dag_id == instance.dag_id and same_run(leftover.run_id, *names):
                _release_if_over(instance, source, leftover, scratch)
    except Exception as error:
        _log.info("Could not look for replication slots and publications of earlier runs: %s", error)


def _release_if_over(instance: Any, source: Source, left: LeftByRun, scratch: str) -> None:
    try:
        state = instance.get_dagrun_state(dag_id=left.dag_id, run_id=left.dag_run_id)
    except Exception as error:
        # The DAG run may have been deleted. The slots of the other runs are still checked.
        _log.info(
            "Kept the replication slot of DAG run %s: could not read its state from Airflow (%s)",
            left.dag_run_id,
            error,
        )
        return
    folder = run_folder(scratch, left.run_id)
    # The manifest is needed because it says whether to keep the slot (`keep_slot`). If the run used another scratch
    # folder, its manifest is not in this folder.
    if str(getattr(state, "value", state)) not in _OVER or not Run.exists(folder):
        return
    try:
        release(folder, source.release)
    except CdcError as error:
        _log.warning("Could not drop the replication slot and publication of %s: %s", folder.uri, error)
    else:
        _log.info("DAG run %s has ended: released its replication slot and publication", left.dag_run_id)
