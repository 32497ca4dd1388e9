"""Copies that a committed run did not place completely.

No table of a run is announced before all files of all tables are in place. So if a file is missing, readers were never
led to one of the copies. Usually the run can still be completed: clear its task `consolidate`. The copies are garbage
only if they can never be the latest ones, because newer copies of all tables exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.copies.head import is_newer
from airflow_provider_cdc.core.copies.removal_marks import mark
from airflow_provider_cdc.core.copies.retention import copy_of, is_stuck, made_by, tables_of
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.listing import entries, total
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.sinks.base import Sink

_COMPLETE = "clear the task `consolidate`, which completes the publication"


@dataclass(frozen=True)
class Placed:
    """The copies of a committed run: whether they can be removed, why, and the size of the files in place."""

    removable: bool
    why: str
    bytes: int = 0


def half_placed(run: Run, sink: Sink) -> Placed:
    """Return whether the copies of a committed, unpublished run can be removed."""
    try:
        size = sum(total(entries(folder)) for table in tables_of(run) for folder in sink.folders(run.run_id, table))
        if is_stuck(run, sink):
            return Placed(True, "a file of the previous copy, which the run needs, is gone", size)
        if run.manifest.lake_format != LAKE_FORMAT:
            return Placed(False, f"the run has its commit, so a task may still publish its copies: {_COMPLETE}")
        newest = [(table, sink.head(table)) for table in tables_of(run)]
        behind = [
            table
            for table, head in newest
            if head is None or head.run_id == run.run_id or not is_newer(head, copy_of(run, table))
        ]
    except ManifestError as error:
        return Placed(False, f"a record cannot be read: {error.message}")
    if behind:
        return Placed(False, f"the run has its commit, and {behind[0]} has no newer copy: {_COMPLETE}")
    if not _missing(run, sink):
        return Placed(False, f"the run has its commit, and all files of its copies are in place: {_COMPLETE}")
    return Placed(True, "its copies are not complete, and newer copies of all tables exist", size)


def remove_half_placed(run: Run, sink: Sink, by: str) -> str:
    """Remove the copies of a run that `half_placed` calls removable. Return why they stay; empty: they were removed."""
    for table in tables_of(run):
        mark(run, table, by)
    # A task that resumes now can place no file any more. So if a file is missing, it stays missing.
    run.clean()
    placed = half_placed(run, sink)
    if not placed.removable:
        return placed.why
    for one in (made_by(run, table) for table in tables_of(run)):
        sink.remove(run.run_id, one.table, one.files, one.feed)
    return ""


def _missing(run: Run, sink: Sink) -> list[str]:
    """Return the files that a run wrote for its copies, and that are not in place."""
    decision = decision_of(run)
    names = {str(entry.table.name): entry.table.copy_name for entry in run.manifest.tables}
    return [
        file.base_name
        for name, files in decision.files.items()
        for present in [{*sink.copy_folder(run.run_id, names[name]).files()}]
        for file in files
        if file.base_name not in present
    ]
