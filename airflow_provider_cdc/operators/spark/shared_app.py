"""Which steps may be done in the Spark application of an earlier one.

A run over small tables is nearly all start-ups: an application of its own takes a step seconds, and its work a fraction
of one. So the application of a step goes on with the steps after it as long as the run is young; the tasks of those
steps then find their work done, and hand on what was found. Only tasks that would do just that, at once and in the same
way, are anticipated: whatever an author put between or around them still decides when, where and whether they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import airflow_provider_cdc
from airflow_provider_cdc.compat import PRE_EXECUTE_HOOK

SAME = (
    # What the application would be given.
    "source_conn_id",
    "run_uri",
    "spark_conn_id",
    "conf",
    # Where and as whom it would run.
    "queue",
    "pool",
    "pool_slots",
    "executor",
    "executor_config",
    "run_as_user",
)
"""What must be equal for two tasks to share an application, templates unrendered."""

PLAIN = {
    # What may keep a task from running once the one before it has succeeded.
    "trigger_rule": "all_success",
    "depends_on_past": False,
    "wait_for_downstream": False,
    "max_active_tis_per_dag": None,
    "max_active_tis_per_dagrun": None,
    PRE_EXECUTE_HOOK: None,
    # A limit on one step is no limit on several.
    "execution_timeout": None,
}
"""What a task must have to be anticipated."""


def steps_after(task: Any, kind: type[Any]) -> Iterator[str]:
    """The steps that the application of ``task`` may go on with, in their order.

    :param task: as it stands in its DAG, not the copy whose templates are rendered.
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
        # An author's own class may do more than ours.
        type(following).__module__.startswith(f"{airflow_provider_cdc.__name__}.")
        # Whatever else it waits for is done: the task that runs has waited for it, too.
        and following.upstream_task_ids - {task.task_id} <= task.upstream_task_ids
        and not following.on_execute_callback
        and not following.is_setup
        and not following.is_teardown
        and all(getattr(following, name, None) == getattr(first, name, None) for name in SAME)
        and all(_plain(getattr(following, name, value)) == value for name, value in PLAIN.items())
    )


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
