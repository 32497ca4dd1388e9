"""The timeline of a run. It shows when each part was read, and which process read the part. It is only for display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError

FILE = "timeline.json"


@dataclass(frozen=True)
class Bar:
    """One part that was read.

    :param table: the table's name.
    :param lane: the Python worker of Spark that read the part, as machine and process.
    :param began: the start, in Unix seconds, by the clock of that machine.
    :param bytes: the size of the part's files.
    """

    table: str
    part: int
    lane: str
    began: float
    seconds: float
    rows: int
    bytes: int


def write_timeline(run: Storage, bars: Sequence[Bar]) -> None:
    """Write the timeline to the run's folder.

    :raises CdcError, OSError: the store failed.
    """
    records.write(run, FILE, list(bars))


def read_timeline(run: Storage) -> list[Bar]:
    """Return the timeline of a run; empty if there is none, or if it is unreadable."""
    try:
        return records.read(list[Bar], run, FILE)
    except (CdcError, OSError):
        return []
