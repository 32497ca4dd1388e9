"""The log of what the steps of a run did because of an act or of the governor. It is for the report and the metrics."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError

EVENTS = "control/events"
MOST = 500
"""The number of the latest events that are kept of each try of a step."""


@dataclass(frozen=True)
class Event:
    """Something that a step did, at a time (ISO 8601): ``what``, and the ``why``."""

    at: str
    step: str
    what: str
    why: str


@dataclass(frozen=True)
class Log:
    """The events of one try of a step. ``paused_seconds`` is the time for which it was paused by an operator,
    ``slowed_seconds`` the time for which the governor slowed or paused it."""

    events: tuple[Event, ...] = ()
    paused_seconds: float = 0.0
    slowed_seconds: float = 0.0


def write(folder: Storage, step: str, token: str, log: Log) -> None:
    """Write the log of one try of a step.

    :raises CdcError, OSError: the store failed.
    """
    folder.note_json(f"{EVENTS}/{step}-{token}.json", records.encode(log))


def read(folder: Storage) -> Log:
    """Return the logs of all tries as one log, with the events in the order of their times. Logs that cannot be read
    are left out, because they are only for display."""
    logs: list[Log] = []
    with suppress(CdcError, OSError):
        for name in folder.files(EVENTS):
            with suppress(CdcError, OSError):
                logs.append(records.read(Log, folder, name))
    events = sorted((event for log in logs for event in log.events), key=lambda event: event.at)
    return Log(
        tuple(events),
        round(sum(log.paused_seconds for log in logs), 3),
        round(sum(log.slowed_seconds for log in logs), 3),
    )
