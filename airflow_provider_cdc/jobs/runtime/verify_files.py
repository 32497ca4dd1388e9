"""Checks files against their records before they are used: size, checksum, footer and row count.

Files that the same try has written need no check. Files of another step, or of an earlier try, may have been truncated,
altered or lost meanwhile. Spark tasks read each of these files once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.sinks.base import Sink

CHECK_BYTES = 64 * 2**20
"""Bytes of files per task: with fewer, another task costs more than it saves."""
TASKS_PER_SLOT = 4

HINT = "the storage lost or altered the file after it was written: trigger a new run"


@dataclass(frozen=True)
class Checked:
    """A file to check, and a description of it (``what``).

    ``table``: a concurrent attempt may move the file to the copy of this table meanwhile; None: the file does not
    become part of a copy."""

    file: StagedFile
    what: str
    table: TableName | None = None


@dataclass(frozen=True)
class CheckFiles:
    """A task that checks files. It is sent to executors."""

    staging: Staging
    sink: Sink
    run_id: str

    def __call__(self, files: tuple[Checked, ...]) -> list[tuple[Checked, str]]:
        """Return the files that differ from their records, and how each of them differs."""
        differing = []
        for checked in files:
            what = self.staging.difference(checked.file)
            if what and checked.table is not None:
                what = self.sink.difference(self.run_id, checked.table, checked.file)
            if what:
                differing.append((checked, what))
        return differing


def damaged(step: Step, files: Sequence[Checked]) -> list[tuple[Checked, str]]:
    """Return the files that differ from their records, and how each of them differs."""
    if not files:
        return []
    size = sum(one.file.bytes for one in files)
    tasks = min(len(files), step.slots * TASKS_PER_SLOT, 1 + size // CHECK_BYTES)
    largest_first = sorted(files, key=lambda one: -one.file.bytes)
    orders = [tuple(largest_first[task::tasks]) for task in range(tasks)]
    work = CheckFiles(step.staging, step.sink, step.run.run_id)
    outcomes = run_tasks(step.spark, "check files", orders, work)
    return [one for outcome in outcomes for one in outcome]


def require_whole(step: Step, files: Sequence[Checked]) -> None:
    """Check files that cannot be written again.

    :raises FileDamaged: a file differs from its record.
    """
    for one, what in sorted(damaged(step, files), key=lambda found: found[0].file.name)[:1]:
        raise FileDamaged(f"{one.what}: {what}", where=step.folder.uri_of(one.file.name), hint=HINT)


def without_damaged(step: Step, files: Mapping[int, Sequence[StagedFile]], what: str) -> set[int]:
    """Check files of earlier tries. Return the numbers of the orders whose files are whole. The other orders must be
    done again.

    :param files: the files by the number of the order.
    """
    order_of = {file.name: number for number, table_files in files.items() for file in table_files}
    differing = damaged(step, [Checked(file, what) for table_files in files.values() for file in table_files])
    for damaged_file, difference in differing:
        say(f"{what} {order_of[damaged_file.file.name]} is done again: {damaged_file.file.name}: {difference}")
    return files.keys() - {order_of[damaged_file.file.name] for damaged_file, _ in differing}
