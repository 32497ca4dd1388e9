"""Decides which steps may run in the Spark application of an earlier step.

In a run over small tables, most of the time is start-up: starting an application takes seconds, and the work itself a
fraction of one. So the application of a step goes on with the next steps while it is young. The tasks of those steps
then find their work done, and only pass on the results. A step is run early only if its own task would run it at once
and in the same way. So anything that a DAG's author puts between or around the tasks still takes effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import airflow_provider_cdc
from airflow_provider_cdc.compat import PRE_EXECUTE_HOOK

SAME = (
    # The arguments of the application.
    "source_conn_id",
    "run_uri",
    "spark_conn_id",
    "conf",
    # The place where the task would run, and its user.
    "queue",
    "pool",
    "pool_slots",
    "executor",
    "executor_config",
    "run_as_user",
)
"""The attributes that must be equal for two tasks to share an application; templates are compared unrendered."""

PLAIN = {
    # Settings that may keep a task from running once the task before it has succeeded.
    "trigger_rule": "all_success",
    "depends_on_past": False,
    "wait_for_downstream": False,
    "max_active_tis_per_dag": None,
    "max_active_tis_per_dagrun": None,
    PRE_EXECUTE_HOOK: None,
    # A time limit of one step must not apply to several.
    "execution_timeout": None,
}
"""The values that a task's attributes must have for its step to be run early."""


def steps_after(task: Any, kind: type[Any]) -> Iterator[str]:
    """Yield the steps with which the application of ``task`` may go on, in order.

    :param task: the task of the DAG itself, not the copy with rendered templates.
    :param kind: the class of operators with a ``step``.
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
        # A subclass that a DAG's author wrote may do additional work.
        type(following).__module__.startswith(f"{airflow_provider_cdc.__name__}.")
        # Its other upstream tasks are done, because the running task has waited for them, too.
        and following.upstream_task_ids - {task.task_id} <= task.upstream_task_ids
        and not following.on_execute_callback
        and not following.is_setup
        and not following.is_teardown
        and all(getattr(following, name, None) == getattr(first, name, None) for name in SAME)
        and all(_plain(getattr(following, name, value)) == value for name, value in PLAIN.items())
    )


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
