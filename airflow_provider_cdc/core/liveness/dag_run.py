"""The names by which Airflow identifies the DAG run of a run. The record is in the run's folder.

The id of a run is a digest of these names. Airflow can be asked for the state of a DAG run only by its names.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ManifestError

FILE = "dag_run.json"


@dataclass(frozen=True)
class DagRunNames:
    """The names of a DAG run.

    :param task_id: the run's task `lock_and_record`; empty: unknown.
    :param map_index: the index of the run in a mapped task group; -1: the group is not mapped.
    """

    dag_id: str
    dag_run_id: str
    task_id: str = ""
    map_index: int = -1

    def __str__(self) -> str:
        return f"{self.dag_run_id} of the DAG {self.dag_id}"


def note_dag_run(folder: Storage, names: DagRunNames) -> None:
    """Record the DAG run of the run in ``folder``."""
    records.write(folder, FILE, names)


def read_dag_run(folder: Storage) -> DagRunNames | None:
    """Return the DAG run of the run in ``folder``; None: an earlier version began the run, or the record is damaged."""
    try:
        return records.read(DagRunNames, folder, FILE) if folder.exists(FILE) else None
    except ManifestError:
        return None
