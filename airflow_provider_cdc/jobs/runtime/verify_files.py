"""Files are checked before anything rests on them: size, checksum, footer and rows, each against its record.

What a try has just written itself needs no check. All else, by another step or an earlier try, may have been cut short,
altered or lost by whatever lies between: each file is read once, in Spark tasks, as fast as the storage gives it.
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
"""Bytes of files below which another task costs more than it saves."""
TASKS_PER_SLOT = 4

HINT = "the storage lost or altered it after it was written: trigger a new run"


@dataclass(frozen=True)
class Checked:
    """A file to check, what it is of (for people), and the table whose copy a concurrent attempt may make it part of
    meanwhile; None: it is of no copy."""

    file: StagedFile
    what: str
    table: TableName | None = None


@dataclass(frozen=True)
class CheckFiles:
    """What a task that checks files needs to know. It is sent to executors."""

    staging: Staging
    sink: Sink
    run_id: str

    def __call__(self, files: tuple[Checked, ...]) -> list[tuple[Checked, str]]:
        """The files that are not what their records say, and how each of them differs."""
        differing = []
        for checked in files:
            what = self.staging.difference(checked.file)
            if what and checked.table is not None:
                what = self.sink.difference(self.run_id, checked.table, checked.file)
            if what:
                differing.append((checked, what))
        return differing


def damaged(step: Step, files: Sequence[Checked]) -> list[tuple[Checked, str]]:
    """Those of the files that are not what their records say, and how each of them differs."""
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
    """Check files that nothing can replace.

    :raises FileDamaged: one is not what its record says.
    """
    for one, what in sorted(damaged(step, files), key=lambda found: found[0].file.name)[:1]:
        raise FileDamaged(f"{one.what}: {what}", where=step.folder.uri_of(one.file.name), hint=HINT)


def without_damaged(step: Step, files: Mapping[int, Sequence[StagedFile]], what: str) -> set[int]:
    """The numbers of orders whose files, left by earlier tries, are whole. The others are to be done again.

    :param files: by the number of the order.
    """
    order_of = {file.name: number for number, table_files in files.items() for file in table_files}
    differing = damaged(step, [Checked(file, what) for table_files in files.values() for file in table_files])
    for damaged_file, difference in differing:
        say(f"{what} {order_of[damaged_file.file.name]} is done again: {damaged_file.file.name}: {difference}")
    return files.keys() - {order_of[damaged_file.file.name] for damaged_file, _ in differing}
