"""Decides whether a run that is not published has ended.

A run has ended if Airflow says that its DAG run is over. It has also ended if Airflow does not know the DAG run, and
the run has written nothing for `retention.LIFELESS`. In both cases, a process of the run may have been suspended, and
may resume later. So the clean-up fences a run before it removes the run's files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ManifestError

# The names by which Airflow identifies the DAG run of a run. The record is in the run's folder.
#
# The id of a run is a digest of these names. Airflow can be asked for the state of a DAG run only by its names.


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


@dataclass(frozen=True)
class DagRunState:
    """What Airflow says of the DAG run of a run.

    :param known: whether Airflow knows the DAG run, as far as it answers.
    :param over: whether no task of the run is executed again by itself.
    :param told: the state in words.
    """

    known: bool
    over: bool = False
    text: str = ""


NOT_KNOWN = DagRunState(False)

StateOf = Callable[[DagRunNames], DagRunState]
"""Asks Airflow for the state of a DAG run."""


@dataclass(frozen=True)
class Verdict:
    """Whether a run has ended, and the proof or the reason for the doubt."""

    ended: bool
    why: str


def no_airflow(names: DagRunNames) -> DagRunState:
    """Return that the state of a DAG run is unknown, because Airflow cannot be asked."""
    return NOT_KNOWN


def judge(names: DagRunNames | None, written: datetime, now: datetime, state_of: StateOf, wait: timedelta) -> Verdict:
    """Return whether a run has ended.

    :param names: the run's DAG run; None: unknown.
    :param written: when the run last wrote something, by the store's clock.
    :param now: the present time, by the store's clock.
    :param wait: how long the files of an ended DAG run stay, because its tasks may still be cleared.
    """
    # This module is slow to import, and Airflow parses DAGs often.
    from airflow_provider_cdc.core.copies.retention import LIFELESS

    state = state_of(names) if names is not None else NOT_KNOWN
    silent, last = now - written, f"{written:%Y-%m-%d %H:%M:%S} UTC"
    told = f"DAG run {names} {state.text}" if state.known else "Airflow does not know its DAG run"
    if state.known and not state.over:
        return Verdict(False, told)
    needed = wait if state.known else max(wait, LIFELESS)
    if silent >= needed:
        return Verdict(True, f"{told}, and nothing was written since {last}")
    if silent < timedelta(0):
        return Verdict(False, f"{told}, but it has written something since the check began")
    return Verdict(False, f"{told}, but the last write was at {last}, less than {_days(needed)} ago")


def _days(time: timedelta) -> str:
    return format_count(time.days, "day") if time.days else f"{time.total_seconds():.0f} s"
