"""Scrubbing: reads files of base copies again, and compares them with their checksums.

A copy takes over unchanged files from its base, night after night. Storage can damage such a file without changing its
size. Each file is due again within some days after it was last checked (the option ``scrub_days``). After a file was
written, its first check is due earlier, at a time that its name decides. So the files of a full copy, all written in
one night, are checked in different nights.

Files that earlier versions of this package wrote have no digest. The check computes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from airflow_provider_cdc.core.digest.digest import Digest, digest
from airflow_provider_cdc.core.digest.totals import CheckedFile
from airflow_provider_cdc.core.run.commit_record import Decision, read_bases
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, difference
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.jobs.apply.rolled_file import DAMAGED, RolledFile
from airflow_provider_cdc.jobs.roll_forward.plan import BaseFile, base_folders, note
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.sources.api.source import Source

TASK_BYTES = 64 * 2**20
"""Bytes of files per task. A smaller task would cost more than it saves."""
TASKS_PER_SLOT = 4


@dataclass(frozen=True)
class ScrubbedFiles:
    """A file that was checked, with its digest, and how it differs from its record; empty: it does not differ."""

    base: BaseFile
    difference: str = ""


@dataclass(frozen=True)
class Scrubbed:
    """The base copies after the check: their files (``bases``), and when each file was last known to be whole
    (``seen``), both by the table's index. ``refused`` has the reason by the table's name if its base is damaged, and
    the step leaves such tables out."""

    bases: dict[int, list[BaseFile]]
    seen: dict[int, dict[str, CheckedFile]] = field(default_factory=dict)
    checked: dict[int, list[StagedFile]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScrubFiles:
    """A task that checks files. Spark sends this object to executors."""

    source: Source
    folders: Mapping[int, Storage]
    tables: tuple[RunTable, ...]

    def __call__(self, files: tuple[BaseFile, ...]) -> list[ScrubbedFiles]:
        return [self._checked(base) for base in files]

    def _checked(self, base: BaseFile) -> ScrubbedFiles:
        folder = self.folders[base.table]
        for part in base.file.parts:
            if what := difference(folder, part.name, part):
                return ScrubbedFiles(base, what)
        deletes = base.file.deletes
        if base.file.digest and (deletes is None or deletes.digest):
            return ScrubbedFiles(base)
        return ScrubbedFiles(replace(base, file=self._with_digest(base, folder)))

    def _with_digest(self, base: BaseFile, folder: Storage) -> StagedFile:
        schema = self.source.arrow_schema(self.tables[base.table].table)
        file = RolledFile(folder, base.file, schema)
        whole, deleted = Digest(), Digest()
        for group in range(file.parquet.metadata.num_row_groups):
            rows, gone = file.parquet.read_row_group(group), file.gone(group)
            whole += digest(rows)
            deleted += digest(rows.filter(pa.array(gone))) if gone is not None else Digest()
        deletes = base.file.deletes
        return replace(
            base.file, digest=whole.hex, deletes=None if deletes is None else replace(deletes, digest=deleted.hex)
        )


def scrub(step: Step, bases: Mapping[int, Sequence[BaseFile]]) -> Scrubbed:
    """Check the files that are due.

    :raises FileDamaged: a file differs from its record, and the step does not leave out tables.
    """
    if not bases:
        return Scrubbed({})
    options = step.manifest.options.scrub
    now = now_utc()
    decisions = read_bases(Storage(step.manifest.scratch), step.manifest.bases)
    seen = {index: _seen(step.tables[index], decisions, files) for index, files in bases.items()}
    due: list[tuple[datetime, BaseFile]] = []
    for index, files in bases.items() if options.scrub_days else ():
        times = [(due_at(file.file, seen[index][file.file.name], options.scrub_days), file) for file in files]
        due += [(at, file) for at, file in times if at <= now]
    chosen = _within(due, options.scrub_gib)
    outcomes = _check(step, chosen)
    found = {(one.base.table, one.base.file.name): one for one in outcomes}
    at = now.isoformat(timespec="seconds")
    for one in outcomes:
        seen[one.base.table][one.base.file.name] = CheckedFile(at, checked=True)
    if outcomes:
        size = sum(part.bytes for one in outcomes for part in one.base.file.parts)
        log(
            f"consolidate: {format_count(len(outcomes), 'unchanged file')} of the last copies "
            f"({size / 2**20:,.1f} MiB) read again and compared with their checksums"
        )
    return Scrubbed(
        {
            index: [found[index, one.file.name].base if (index, one.file.name) in found else one for one in files]
            for index, files in bases.items()
        },
        seen,
        {index: [one.base.file for one in outcomes if one.base.table == index] for index in bases},
        _refused(step, [one for one in outcomes if one.difference]),
    )


def now_utc() -> datetime:
    """Return the present time. Tests replace this function."""
    return datetime.now(UTC)


def due_at(file: StagedFile, seen: CheckedFile, days: int) -> datetime:
    """Return the time at which a file is to be checked.

    The name of a file decides after which part of ``days`` its first check is due. Each later check is due after at
    least three quarters of ``days``. The name and the time of the last check decide after how much of the rest. Without
    this, files would wait for the same run again and again: files that were just not due in one run, because it began
    a little earlier, would be checked in the same later run from then on.
    """
    share = _drawn(f"{file.base_name} {seen.at}" if seen.checked else file.base_name)
    share = 1 - share / 4 if seen.checked else share
    return datetime.fromisoformat(seen.at) + timedelta(days=days) * share


def _drawn(text: str) -> float:
    """Return a number from 0 (included) to 1 (excluded) that depends on ``text`` only."""
    return (zlib.crc32(text.encode()) % 1000) / 1000


def _seen(entry: RunTable, decisions: Mapping[str, Decision], files: Sequence[BaseFile]) -> dict[str, CheckedFile]:
    decision = decisions[entry.base]
    proof = decision.proofs.get(str(entry.table.name))
    earlier = proof.seen if proof is not None else {}
    return {one.file.name: earlier.get(one.file.name, CheckedFile(decision.published_at)) for one in files}


def _within(due: Sequence[tuple[datetime, BaseFile]], most_gib: float) -> list[BaseFile]:
    """Return the files that one run checks: those that have been due the longest, up to a number of bytes."""
    chosen, size = [], 0
    for _, one in sorted(due, key=lambda pair: (pair[0], pair[1].file.name)):
        if most_gib and size >= most_gib * 2**30:
            break
        chosen.append(one)
        size += one.file.bytes
    return chosen


def _check(step: Step, files: Sequence[BaseFile]) -> list[ScrubbedFiles]:
    if not files:
        return []
    size = sum(one.file.bytes for one in files)
    tasks = min(len(files), step.slots * TASKS_PER_SLOT, 1 + size // TASK_BYTES)
    largest_first = sorted(files, key=lambda one: -one.file.bytes)
    orders = [tuple(largest_first[task::tasks]) for task in range(tasks)]
    work = ScrubFiles(step.source, base_folders(step), step.tables)
    scrubbed = run_tasks(step.spark, "check unchanged files", orders, work, size=size)
    return [one for checked in scrubbed for one in checked]


def _refused(step: Step, damaged: Sequence[ScrubbedFiles]) -> dict[str, str]:
    """Note the damaged base copies, so that no run rolls them forward again."""
    folders, refused = base_folders(step), {}
    for one in sorted(damaged, key=lambda one: one.base.file.name):
        entry, file = step.tables[one.base.table], one.base.file
        error = FileDamaged(
            f"a file of the copy that is rolled forward: {one.difference}",
            where=folders[one.base.table].uri_of(file.name),
            hint=DAMAGED,
        )
        note(step, entry, error)
        if not step.manifest.options.skips:
            raise error
        refused[str(entry.table.name)] = str(error.message)
    return refused
