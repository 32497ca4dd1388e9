"""When each part of a run was read, and by whom: for people. Nothing rests on it."""

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

    :param table: its name.
    :param lane: who read it: a Python worker of Spark's, as machine and process.
    :param began: when, in Unix seconds, by the clock of that machine.
    :param bytes: the size of its files.
    """

    table: str
    part: int
    lane: str
    began: float
    seconds: float
    rows: int
    bytes: int


def write_timeline(run: Storage, bars: Sequence[Bar]) -> None:
    """Leave it in the run's folder.

    :raises CdcError, OSError: the store did not take it.
    """
    records.write(run, FILE, list(bars))


def read_timeline(run: Storage) -> list[Bar]:
    """What `write_timeline` left; empty if there is nothing that can be read."""
    try:
        return records.read(list[Bar], run, FILE)
    except (CdcError, OSError):
        return []
