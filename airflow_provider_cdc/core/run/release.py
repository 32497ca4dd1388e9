"""Drops the replication slot and the publication of a run, and records that they were dropped.

A run without its slot cannot read the log. With the record, a task that is cleared in Airflow fails with the right hint
before Spark starts. Without the record, such a task would fail minutes later, and its error would suggest that another
user dropped the slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_cdc.core.run.run import Run, run_id_in
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import LogGone


@dataclass(frozen=True)
class Released:
    """The time at which the slot of a run was dropped, and the manifest to which the slot belonged. A run that began
    anew has another manifest and another slot."""

    manifest: str
    at: str


def release(folder: Storage, drop: Callable[[str], bool]) -> None:
    """Drop the slot and the publication of the run in ``folder``.

    The run may have no manifest: a task may be killed after it created the slot and before it wrote the manifest. With
    the option ``keep_slot``, the slot and the publication of a run that has its commit are not dropped.

    :param drop: a function that drops the slot and the publication of the run with the given id. The function returns
        whether sources of this kind have slots.
    """
    run = Run.load(folder) if Run.exists(folder) else None
    if run is not None and run.committed and run.manifest.options.keep_slot:
        return
    if drop(run_id_in(folder)) and run is not None and not run.committed:
        records.write(folder, _name(run), Released(run.digest, datetime.now(UTC).isoformat(timespec="seconds")))


def check_not_released(folder: Storage, step: str) -> None:
    """Check, before Spark starts for ``step``, that the slot of the run in ``folder`` was not dropped.

    :raises LogGone: a task of the run failed for good, and the run's replication slot was dropped.
    """
    if not Run.exists(folder):
        return
    run = Run.load(folder)
    if run.committed or step in run.steps or not run.folder.exists(_name(run)):
        return
    released = records.read(Released, run.folder, _name(run))
    raise LogGone(
        f"this run's replication slot was released at {released.at}, because a task of the run had failed permanently",
        where=folder.uri,
        hint="clear the task `lock_and_record` and all tasks after it: the run then starts again, at a new position",
    )


def _name(run: Run) -> str:
    return f"released/{run.digest[:16]}.json"
