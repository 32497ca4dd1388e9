"""Releases what the source keeps for earlier runs of a group whose DAG runs are over, though nobody was told.

Where a person marks a DAG run as failed or successful while none of its tasks runs, Airflow calls nobody.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.run.release import release
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.operators.base import run_folder, same_run
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.sources.api.calls import release_run
from airflow_provider_cdc.sources.api.leftovers import LeftByRun, TellsLeft
from airflow_provider_cdc.sources.api.source import Source

if TYPE_CHECKING:
    from airflow.sdk import Context

_OVER = {"failed", "success"}

_log = logging.getLogger(__name__)


def release_what_is_over(context: Context, task: Any, source: Source, scratch: str, lake: str) -> None:
    """Release what ``source`` keeps for runs of the group of ``task``, a `PreflightOperator`, into the same lake, whose
    DAG runs have failed or succeeded. Not being able to is no failure.

    A DAG run that is deleted stays: another deployment of the same DAG may have it, and go on with it.

    :param scratch: URI of the folder in which the folders of runs lie.
    :param lake: URI of the folder that is published in.
    """
    if not isinstance(source, TellsLeft):
        return
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
        _log.info("What the source may still keep for earlier runs could not be looked for: %s", error)


def _release_if_over(instance: Any, source: Source, left: LeftByRun, scratch: str) -> None:
    try:
        state = instance.get_dagrun_state(dag_id=left.dag_id, run_id=left.dag_run_id)
    except Exception as error:
        # It was deleted, perhaps. The others may be over all the same.
        _log.info(
            "What is kept for DAG run %s stays, for Airflow does not say if it is over: %s", left.dag_run_id, error
        )
        return
    folder = run_folder(scratch, left.run_id)
    # Its manifest says whether the slot is to stay (`keep_slot`), and lies elsewhere if it had another scratch.
    if str(getattr(state, "value", state)) not in _OVER or not Run.exists(folder):
        return
    try:
        release(folder, lambda run_id: release_run(source, run_id))
    except CdcError as error:
        _log.warning("The source may still keep what it kept for %s: %s", folder.uri, error)
    else:
        _log.info("DAG run %s is over: the source need not keep anything for it any more", left.dag_run_id)
