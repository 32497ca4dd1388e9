"""Releases what the source keeps for a run (a replication slot and a publication), and records that it did.

A run whose slot is gone cannot read its log any more. Without the record, a task that is cleared would start Spark, and
end minutes later in an error that blames somebody for dropping the slot.
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
    """When the slot of a run was dropped, and for which manifest: a run that began anew has another one."""

    manifest: str
    at: str


def release(folder: Storage, drop: Callable[[str], bool]) -> None:
    """Release what the source keeps for the run in ``folder``, which need not have begun: the position may have been
    fixed by a task that was killed before it could say so.

    It stays where the run's options say so, once it is decided that the run is published.

    :param drop: has the source drop what it keeps for the run of an id, and returns whether such a source keeps
        anything.
    """
    run = Run.load(folder) if Run.exists(folder) else None
    if run is not None and run.committed and run.manifest.options.keep_slot:
        return
    if drop(run_id_in(folder)) and run is not None and not run.committed:
        records.write(folder, _name(run), Released(run.digest, datetime.now(UTC).isoformat(timespec="seconds")))


def check_not_released(folder: Storage, step: str) -> None:
    """Make sure, before Spark starts for ``step``, that the source has what it kept for the run in ``folder``.

    :raises LogGone: a task of the run failed for good, and the run's replication slot was dropped.
    """
    if not Run.exists(folder):
        return
    run = Run.load(folder)
    if run.committed or step in run.steps or not run.folder.exists(_name(run)):
        return
    released = records.read(Released, run.folder, _name(run))
    raise LogGone(
        f"this run's replication slot was released at {released.at}, when a task of the run failed for good",
        where=folder.uri,
        hint="clear lock_and_record and the tasks after it: the run begins anew, at a new position",
    )


def _name(run: Run) -> str:
    return f"released/{run.digest[:16]}.json"
