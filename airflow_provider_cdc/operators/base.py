"""What all steps share: the id of a run, and our errors as Airflow's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import CdcError, TerminalError

if TYPE_CHECKING:
    from airflow.sdk import Context


def run_id_of(context: Context) -> str:
    """The run's id: the same for every try of one task of one DAG run, and another for every other.

    It sorts by time, and its characters are safe in every file system and in Hadoop paths. A manual DAG run may have no
    logical date, so the time is ``run_after``, which clearing leaves as it is.
    """
    task_instance = context["ti"]
    return run_id_for(context["dag_run"], task_instance.task_id, task_instance.map_index)


def run_id_for(dag_run: Any, task_id: str, map_index: int | None = None) -> str:
    """`run_id_of` of the task ``task_id``, whichever task asks."""
    names = [dag_run.dag_id, dag_run.run_id, task_id]
    if map_index not in (None, -1):
        names.append(str(map_index))
    digest = hashlib.sha256("/".join(names).encode()).hexdigest()[:8]
    return f"{dag_run.run_after.astimezone(UTC):%Y%m%dT%H%M%SZ}-{digest}"


def run_folder(target: str, run_id: str) -> Storage:
    """Where the run's work lies.

    :raises ConfigurationError: ``target`` is no place to write to.
    """
    return Storage(target).folder("_runs", run_id)


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Raise our errors as Airflow's: a terminal one fails the task at once, a transient one lets Airflow retry it.

    The message is kept whole, and the chain of causes is cut, so that it is what the log ends with.

    :raises AirflowFailException: a retry cannot help.
    :raises AirflowException: a retry may help.
    """
    try:
        yield
    except TerminalError as error:
        raise AirflowFailException(str(error)) from None
    except CdcError as error:
        raise AirflowException(str(error)) from None
