"""Releases what a run holds on its source when the DAG run ends."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.compat import runs_dag_code
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.operators.release import ReleaseOfRun


def release_when_the_run_ends(dag: Any, lock_and_record: LockAndRecordOperator) -> None:
    """Add callbacks to ``dag`` that release the run of ``lock_and_record``.

    Both callbacks are needed, because a DAG run may succeed even if the group of the run did not succeed. For
    example, a user may set the states of the group's tasks, or a later task may run even after a failure of the
    group. Airflow calls a DAG's callbacks in its DAG processor. `dag.test` calls the callbacks in the process of the
    tasks, and raises an error if a param has no default. The callbacks are useless in `dag.test`, because they would
    be killed together with the tasks.
    """
    if not runs_dag_code():
        return
    for name in ("on_failure_callback", "on_success_callback"):
        callbacks = getattr(dag, name) or []
        earlier = callbacks if isinstance(callbacks, list) else [callbacks]
        setattr(dag, name, [*earlier, ReleaseOfRun(lock_and_record)])
        # The scheduler checks this attribute. Airflow sets the attribute only for callbacks that are passed to the
        # constructor.
        setattr(dag, f"has_{name}", True)
