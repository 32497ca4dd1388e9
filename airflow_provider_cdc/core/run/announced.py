"""The record of the asset events that a run's last task reports to Airflow. The task writes it to the run's folder when
the task ends.

Airflow records the events of a task when the task has succeeded, which is after the record was written. So the record
names the events to report; only Airflow knows whether it recorded them.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage

FILE = "told.json"


@dataclass(frozen=True)
class Announced:
    """The event of a copy. ``uri`` is the URI of the copy's asset. ``latest`` says whether the copy was reported as the
    latest copy."""

    uri: str
    latest: bool


@dataclass(frozen=True)
class Told:
    """The events of the copies, by the table's name. The events of one try are together, because Airflow records all of
    them or none. Empty: no copies, or the record is of a version that did not record events."""

    announced: tuple[dict[str, Announced], ...] = ()


def read_told(folder: Storage) -> Told | None:
    """Return the record in the folder of a run; None: the record does not exist yet.

    :raises ManifestError: the record is damaged.
    """
    return records.read(Told, folder, FILE) if folder.exists(FILE) else None
