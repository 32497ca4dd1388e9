"""The record of the asset events that a run's last task reports to Airflow. The task writes the record to the run's
folder when the task ends.

The task writes this record before it succeeds, but Airflow records the events of a task only after the task has
succeeded. So this record names the events to report, and only Airflow knows whether it has recorded these events.
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
    """The events of the copies, by the table's name. Each try has its own mapping, because Airflow records all events
    of a try or none of them. The mapping is empty if there are no copies, or if an earlier version, which did not
    record events, wrote the record."""

    announced: tuple[dict[str, Announced], ...] = ()


def read_told(folder: Storage) -> Told | None:
    """Return the record in the folder of a run, or None if the record does not exist yet.

    :raises ManifestError: the record is damaged.
    """
    return records.read(Told, folder, FILE) if folder.exists(FILE) else None
