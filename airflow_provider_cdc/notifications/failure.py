"""Tells why a task of a run failed for good: the error with its hint, the position, and where the run's folder is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context

_NO_HINT = "  Hint: look at the task's log, and clear the task when the reason is gone"


class FailureNotifier(BaseNotifier):
    """An ``on_failure_callback`` for tasks of runs::

        SnapshotTaskGroup(..., default_args={"on_failure_callback": FailureNotifier(send_to_the_pager)})

    :param send: takes the text, which holds no secret; None: it goes to the log, as an error.
    """

    def __init__(self, send: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._send = send

    def notify(self, context: Context) -> None:
        text = failure_text(context)
        if self._send is None:
            self.log.error("%s", text)
        else:
            self._send(text)


def failure_text(context: Context) -> str:
    """What is known of a failed task, in a few lines."""
    instance: Any = context["ti"]
    error = context.get("exception")
    text = str(error) if error is not None else "its process ended without an error: it was killed"
    # The name by which the runbook is sorted.
    name = f"{type(error).__name__}: " if isinstance(error, BaseException) else ""
    lines = [
        f"{instance.dag_id}, run {context['dag_run'].run_id}: the task {instance.task_id} failed",
        f"  {name}{text}",
        *([] if "Hint:" in text else [_NO_HINT]),
        *_of_the_run(instance.task),
        f"  Log: {instance.log_url}",
    ]
    return "\n".join(lines)


def _of_the_run(task: Any) -> list[str]:
    uri = getattr(task, "run_uri", None)
    if not isinstance(uri, str):
        return ["  Position: none; the run has not begun to read"]
    # What reads stores takes a while to import, and the file of a DAG imports this module.
    from airflow_provider_cdc.core.run.run import Run
    from airflow_provider_cdc.core.storage.folder import Storage

    try:
        run = Run.load(Storage(uri))
        position = f"{run.manifest.position_key} {run.manifest.initial_position}"
    except Exception as error:
        # Nothing must keep the rest from being told.
        position = f"it cannot be read ({error})"
    return [f"  Position: {position}", f"  Run: {uri}"]
