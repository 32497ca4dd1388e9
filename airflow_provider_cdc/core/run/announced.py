"""What a run's last task has told Airflow: a record in the run's folder, written when the task comes to its end.

Airflow records the events of a task when it is told that the task has succeeded, which is after that. So the record
says what was to be told; whether it was is for Airflow to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage

FILE = "told.json"


@dataclass(frozen=True)
class Announced:
    """The event of a copy: ``uri`` is that of its asset, ``latest`` whether it was told as its table's latest copy."""

    uri: str
    latest: bool


@dataclass(frozen=True)
class Told:
    """The events of the copies, by the table's name: those of one try together, for Airflow records all of them or
    none. Empty: no copies, or a version wrote it that did not record them."""

    announced: tuple[dict[str, Announced], ...] = ()


def read_told(folder: Storage) -> Told | None:
    """The record in the folder of a run; None: there is none yet.

    :raises ManifestError: it is damaged.
    """
    return records.read(Told, folder, FILE) if folder.exists(FILE) else None
