"""Checks files against their records before they are used: size, checksum, footer and row count.

Files that the same try has written need no check. Files of another step, or of an earlier try, may have been truncated,
altered or lost meanwhile. Spark tasks read each of these files once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from airflow_provider_cdc.core.run.staging import StagedFile, difference
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks

CHECK_BYTES = 64 * 2**20
"""Bytes of files per task. A smaller task would cost more than it saves."""
TASKS_PER_SLOT = 4

HINT = "the storage lost or altered the file after it was written: trigger a new run"


@dataclass(frozen=True)
class Checked:
    """A file to check, and a description of it (``what``).

    ``folder`` is the folder to which the file's name is relative; None: the folder of the run. ``published`` are the
    folders to which a concurrent attempt may move the file meanwhile.
    """

    file: StagedFile
    what: str
    folder: Storage | None = None
    published: Sequence[Storage] = ()

    def difference(self, run: Storage) -> str:
        """Return how the file differs from its record; empty: it does not differ.

        :param run: the run's folder.
        """
        what = difference(self.folder or run, self.file.name, self.file)
        if not what or not self.published:
            return what
        name = self.file.base_name
        folder = next((folder for folder in self.published if folder.exists(name)), None)
        return what if folder is None else difference(folder, name, self.file)


@dataclass(frozen=True)
class CheckFiles:
    """A task that checks files. Spark sends this object to executors."""

    run: Storage

    def __call__(self, files: tuple[Checked, ...]) -> list[tuple[Checked, str]]:
        """Return the files that differ from their records, and how each of them differs."""
        differences = [(checked, checked.difference(self.run)) for checked in files]
        return [(checked, what) for checked, what in differences if what]


def damaged(step: Step, files: Sequence[Checked]) -> list[tuple[Checked, str]]:
    """Return the files that differ from their records, and how each of them differs."""
    if not files:
        return []
    size = sum(one.file.bytes for one in files)
    tasks = min(len(files), step.slots * TASKS_PER_SLOT, 1 + size // CHECK_BYTES)
    largest_first = sorted(files, key=lambda one: -one.file.bytes)
    orders = [tuple(largest_first[task::tasks]) for task in range(tasks)]
    work = CheckFiles(step.folder)
    outcomes = run_tasks(step.spark, "check files", orders, work, size=size)
    return [one for outcome in outcomes for one in outcome]


def require_whole(step: Step, files: Sequence[Checked]) -> None:
    """Check files that cannot be written again.

    :raises FileDamaged: a file differs from its record.
    """
    for one, what in sorted(damaged(step, files), key=lambda found: found[0].file.name)[:1]:
        where = (one.folder or step.folder).uri_of(one.file.name)
        raise FileDamaged(f"{one.what}: {what}", where=where, hint=HINT)


def without_damaged(
    step: Step,
    files: Mapping[int, Sequence[StagedFile]],
    what: str,
    folders: Mapping[int, Storage] = MappingProxyType({}),
) -> set[int]:
    """Check files of earlier tries. Return the numbers of the orders whose files are undamaged. The other orders must
    be done again.

    :param files: the files by the number of the order.
    :param folders: the folder of the files, by the number of the order; default: the folder of the run.
    """
    order_of = {file.name: number for number, table_files in files.items() for file in table_files}
    checked = [Checked(file, what, folders.get(number)) for number, some in files.items() for file in some]
    differing = damaged(step, checked)
    for damaged_file, differs in differing:
        log(
            f"{what} {order_of[damaged_file.file.name]} is done again, because the file {damaged_file.file.name} is "
            f"damaged: {differs}"
        )
    return files.keys() - {order_of[damaged_file.file.name] for damaged_file, _ in differing}
