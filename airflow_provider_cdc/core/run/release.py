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


def released_at(run: Run) -> str:
    """When the slot of a run was dropped that is not published; empty: it was not, as far as this package knows."""
    if run.committed or not run.folder.exists(_name(run)):
        return ""
    return records.read(Released, run.folder, _name(run)).at


def _name(run: Run) -> str:
    return f"released/{run.digest[:16]}.json"
