"""Decides which steps may run in the Spark application of an earlier step.

A run over small tables spends most of its time on start-up, because starting an application takes seconds, and the work
takes less than a second. So if the application of a step has run only for a short time, it continues with the next
steps. The tasks of those steps then find that their work is done, and only pass on the results. A step is run early
only if its own task would run the step at once and in the same way. So anything that a DAG's author puts between or
around the tasks still takes effect.
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
        type(following).__module__.startswith(f"{airflow_provider_cdc.__name__}.")
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
