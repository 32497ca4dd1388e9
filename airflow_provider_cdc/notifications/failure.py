"""Reports why a task failed for good: the error with its hint, the position, and the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseNotifier

if TYPE_CHECKING:
    from airflow.sdk import Context

_NO_HINT = "  Hint: look at the task's log, and clear the task once the cause is fixed"


class FailureNotifier(BaseNotifier):
    """An ``on_failure_callback`` for tasks of runs::

        SnapshotTaskGroup(..., default_args={"on_failure_callback": FailureNotifier(send_to_the_pager)})

    :param send: a function that is called with the text. The text contains no secrets. None: the text is logged as an
        error.
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
    """Return a few lines that describe a failed task."""
    instance: Any = context["ti"]
    error = context.get("exception")
    text = str(error) if error is not None else "its process ended without an error: it was killed"
    # The name of the error's class comes first, because the runbook is sorted by these names.
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
    # These modules are imported only here, because they are slow to import and DAG files import this module.
    from airflow_provider_cdc.core.run.run import Run
    from airflow_provider_cdc.core.storage.folder import Storage
    from airflow_provider_cdc.hooks.storage import conn_id_of, storage_access

    try:
        with storage_access(conn_id_of(task)):
            run = Run.load(Storage(uri))
        position = f"{run.manifest.position_key} {run.manifest.initial_position}"
    except Exception as error:
        # Report the other facts even if the position cannot be read.
        position = f"it cannot be read ({error})"
    return [f"  Position: {position}", f"  Run: {uri}"]
