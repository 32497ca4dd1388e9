"""What a run may do now: a record that the driver of a step writes, and that its tasks read every few seconds."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage

FILE = "control/effective.json"
READERS = "control/readers"
"""The folder in which tasks note that they read or want to read, if a limit applies to the number of readers."""
GO, HOLD, PAUSE, STOP = "go", "hold", "pause", "stop"


@dataclass(frozen=True)
class Effective:
    """What the tasks may do.

    ``state``: ``go``; ``hold`` (the governor pauses the run); ``pause`` (an operator paused the run); ``stop``.
    ``share`` is the part of the time in which a task may read; it pauses for the rest. If ``limited``, readers note
    that they read, and each may read ``rows_per_second`` rows per second (0: no limit). If ``chosen``, only the
    ``readers`` may read.
    """

    state: str = GO
    share: float = 1.0
    limited: bool = False
    chosen: bool = False
    rows_per_second: float = 0.0
    readers: tuple[str, ...] = ()


UNLIMITED = Effective()


def publish(folder: Storage, effective: Effective) -> None:
    """Write the record.

    :raises CdcError, OSError: the store failed.
    """
    folder.note_json(FILE, records.encode(effective))


def read(folder: Storage) -> Effective:
    """Return the record; unlimited if there is none.

    :raises CdcError, OSError: the store failed, or the record is damaged.
    """
    try:
        return records.decode(Effective, folder.read_json(FILE), folder.uri_of(FILE))
    except FileNotFoundError:
        return UNLIMITED
