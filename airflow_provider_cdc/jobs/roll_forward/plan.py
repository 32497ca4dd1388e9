"""Planning of the roll-forward in consolidate: checks the files of the base copies, and assigns files to tasks.

A new row goes into the file whose range of the first key column contains the row's key. A row above all ranges goes
into the last file if the last file is small, and into a new file otherwise. If a file has no statistics of the keys,
new rows go into the smallest file if this file is small, and into a new file otherwise. So small files do not
accumulate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.copies.removal import check_not_removed, note_damage
from airflow_provider_cdc.core.run.commit_record import published_run, read_bases, recorded_place
from airflow_provider_cdc.core.run.manifest import Place, RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, difference
from airflow_provider_cdc.core.storage.filesystems import convert_store_errors
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.published import published_schema
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, CopyMismatch, FileDamaged
from airflow_provider_cdc.jobs.apply.key_ranges import Bound, Range, after, divided, extent
from airflow_provider_cdc.jobs.apply.rewind import Rewind, RewindOutcome
from airflow_provider_cdc.jobs.apply.rolled_file import DAMAGED, FOREIGN
from airflow_provider_cdc.jobs.changes.net_change_files import NetChangeFiles
from airflow_provider_cdc.jobs.roll_forward.merge import SMALL_BYTES, Roll, Target, is_small_versions, merge_versions
from airflow_provider_cdc.jobs.roll_forward.task import RollTask
from airflow_provider_cdc.jobs.runtime.progress import Progress, ProgressFile, log
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.sources.api.source import Source

TASKS_PER_SLOT = 4
ROLL_BYTES = 64 * 2**20
"""Bytes of files, or of changes, per task. The overhead of smaller tasks would be larger than their benefit."""
LOOKED_AT = 64
"""Number of files that one task checks."""
FOOTER_BYTES = 64 * 2**10
"""About the size of a footer, in bytes."""

Extent = tuple[Bound, Bound] | None


@dataclass(frozen=True)
class BaseFile:
    """A file of a table's base copy, and the least and the greatest value of the first key column (None: unknown)."""

    table: int
    file: StagedFile
    extent: Extent = None


@dataclass(frozen=True)
class CheckBaseFiles:
    """A task that checks files of base copies. Spark sends this object to executors."""

    source: Source
    bases: Mapping[int, Storage]
    tables: tuple[RunTable, ...]
    places: Mapping[int, Place | None]

    def __call__(self, files: tuple[BaseFile, ...]) -> list[BaseFile]:
        """Check that the files exist, with the recorded sizes and row counts, and read the extents of their keys.

        :raises FileDamaged: a file differs from its record.
        """
        return [self._seen(base) for base in files]

    def _seen(self, one: BaseFile) -> BaseFile:
        entry, place = self.tables[one.table], self.places[one.table]
        base = entry.table.of_base
        published = published_schema(base, self.source.arrow_schema(base))
        schema = published if place is None else place.schema(published)
        folder = self.bases[one.table]
        what, part = "", None
        try:
            with convert_store_errors(folder.uri_of(one.file.name)):
                part, size = self._differing(folder, one.file)
                if part is not None:
                    what = "is gone" if size is None else f"has {format_count(size, 'byte')}, not {part.bytes:,}"
                else:
                    parquet = pq.ParquetFile(folder.path(one.file.name), filesystem=folder.filesystem)
                    if parquet.metadata.num_rows != one.file.rows:
                        what = f"has {format_count(parquet.metadata.num_rows, 'row')}, not {one.file.rows:,}"
                    elif not parquet.schema_arrow.equals(schema):
                        what = "has columns that differ from the table's current published columns"
        except FileNotFoundError:
            what = "is gone"
        except (CdcError, pa.ArrowException):
            # Arrow raises the same error for a damaged footer as for a store that does not answer.
            if not (differs := difference(folder, one.file.name, one.file)):
                raise
            what = f"is damaged: {differs}"
        if what:
            raise FileDamaged(
                f"a file of the copy that is rolled forward {what}",
                where=folder.uri_of((part or one.file).name),
                hint=DAMAGED,
            )
        if entry.table.keyless:
            return one
        column = published.get_field_index(entry.table.key[0])
        return BaseFile(one.table, one.file, extent(parquet.metadata, column, published.field(column).type))

    def _differing(self, folder: Storage, file: StagedFile) -> tuple[StagedFile | None, int | None]:
        """Return the first part of a file that does not have the recorded size, and the actual size of this part. The
        size is None if the part does not exist. If all sizes are correct, return None and None."""
        for part in file.parts:
            size = folder.filesystem.get_file_info(folder.path(part.name)).size
            if size != part.bytes:
                return part, size
        return None, None


@dataclass(frozen=True)
class CheckBaseFile:
    """A task that reads a whole file of a copy, and compares it with its record. Spark sends the task to executors."""

    folder: Storage

    def __call__(self, file: StagedFile) -> str:
        """Return how the file differs from its record; empty if it does not differ."""
        return difference(self.folder, file.name, file)


def check_bases(step: Step) -> dict[int, list[BaseFile]]:
    """Return the files of the base copies, by the table's index, after a check of their sizes and footers.

    :raises ManifestError: a base copy no longer exists, or differs from the one that the manifest names.
    :raises FileDamaged: a file is missing, or differs from its record.
    """
    manifest = step.manifest
    scratch = Storage(manifest.scratch)
    bases = read_bases(scratch, manifest.bases)
    for run_id in bases:
        # The manifest names these copies, so after this check no other run begins to remove them.
        tables = [base.table.copy_name for base in step.tables if base.base == run_id]
        check_not_removed(published_run(scratch, run_id), tables)
    files = [
        BaseFile(index, file)
        for index, entry in enumerate(step.tables)
        if entry.base
        for file in bases[entry.base].files_of(str(entry.table.name))
    ]
    if not files:
        return {}
    orders = [tuple(files[start : start + LOOKED_AT]) for start in range(0, len(files), LOOKED_AT)]
    # The base copy of an altered table has other columns, so its files have other field ids.
    places = {
        index: recorded_place(scratch, entry.base, entry.table.name) if entry.table.eras else entry.place
        for index, entry in enumerate(step.tables)
        if entry.base
    }
    work = CheckBaseFiles(step.source, base_folders(step), step.tables, places)
    files_by_table: dict[int, list[BaseFile]] = {}
    for base_file in run_tasks(step.spark, "check the base copies", orders, work, size=len(files) * FOOTER_BYTES):
        for base in base_file:
            files_by_table.setdefault(base.table, []).append(base)
    return files_by_table


@contextmanager
def record_damage_on_error(
    step: Step, bases: Mapping[int, Sequence[BaseFile]] = MappingProxyType({})
) -> Iterator[None]:
    """Write a note if a file of a base copy is found to be damaged, so that the next `preflight` does not use the copy.

    :param bases: the result of `check_bases`. If rows of a table contradict the log, a damaged file may be the cause,
        so all files of that table are read and checked.
    :raises FileDamaged: a file of a base copy is damaged.
    """
    try:
        yield
    except FileDamaged as error:
        for entry in _tables_with(step, error.where):
            note(step, entry, error)
        raise
    except CopyMismatch as mismatch:
        for index, files in bases.items():
            entry = step.tables[index]
            if f"{mismatch.where} at ".startswith(f"{entry.table.name} at ") and (
                damaged := _damaged(step, entry, [part for checked in files for part in checked.file.parts])
            ):
                note(step, entry, damaged)
                raise damaged from mismatch
        raise


def _tables_with(step: Step, uri: str) -> list[RunTable]:
    """Return the tables whose base copy has a file: one shard of a merged table, if the commit of the base names it."""
    entries = [entry for entry in step.tables if entry.base and uri.startswith(f"{_base_folder(step, entry).uri}/")]
    with suppress(CdcError, OSError):
        bases = read_bases(Storage(step.manifest.scratch), step.manifest.bases)
        name = uri.rpartition("/")[2]
        owners = [
            entry
            for entry in entries
            if any(
                part.base_name == name
                for file in bases[entry.base].files_of(str(entry.table.name))
                for part in file.parts
            )
        ]
        return owners or entries
    return entries


def _damaged(step: Step, entry: RunTable, files: Sequence[StagedFile]) -> FileDamaged | None:
    log(f"consolidate: the copy of {entry.table.name} contradicts the log: checking its files for damage")
    folder = _base_folder(step, entry)
    damages = run_tasks(step.spark, "read the base copy", files, CheckBaseFile(folder))
    for file, what in zip(files, damages, strict=True):
        if what:
            return FileDamaged(
                f"a file of the copy that is rolled forward: {what}", where=folder.uri_of(file.name), hint=DAMAGED
            )
    return None


def note(step: Step, entry: RunTable, error: FileDamaged) -> None:
    """Write the damage note of a table's base copy."""
    # A failure to write the note must not mask the original error.
    with suppress(CdcError, OSError):
        note_damage(Storage(step.manifest.scratch).folder(entry.base), entry.table.name, error.message, error.where)


def base_folders(step: Step) -> dict[int, Storage]:
    """Return the folders of the base copies of the tables that are rolled forward, by the table's index."""
    # Tasks get folders and not the sink: a sink may hold the secrets of a catalog.
    # The shards of a merged table share a folder, and a catalog may have to be asked for it.
    folders: dict[tuple[str, TableName], Storage] = {}
    found = {}
    for index, entry in enumerate(step.tables):
        if entry.base:
            copy = entry.base, entry.table.copy_name
            if copy not in folders:
                folders[copy] = _base_folder(step, entry)
            found[index] = folders[copy]
    return found


def _base_folder(step: Step, entry: RunTable) -> Storage:
    return step.sink.copy_folder(entry.base, entry.table.copy_name)


def roll_forward(
    step: Step,
    change: NetChangeFiles,
    bases: Mapping[int, Sequence[BaseFile]],
    layers: Mapping[int, Sequence[Rewind]],
) -> list[RewindOutcome]:
    """Roll forward the copies of the tables that the window touched.

    :param layers: the files of rows that were read again, by the table's index, the lowest layer first.
    :raises CopyMismatch: rows of a copy contradict the log.
    """
    orders = [
        order
        for index, files in bases.items()
        if change.keys(index) or step.tables[index].table.eras
        for order in _orders(step, change, index, files, layers.get(index))
    ]
    if not orders:
        return []
    searched = sum(target.file is not None for order in orders for target in order.targets)
    log(f"consolidate: searching {format_count(searched, 'file')} of the last copies for touched keys")
    progress = Progress("consolidate", "task", len(orders), len(orders), note=ProgressFile(step.folder).note)
    outcomes = run_tasks(
        step.spark,
        "roll forward",
        sorted(orders, key=lambda order: order.bytes, reverse=True),
        RollTask(step.staging, step.source, base_folders(step), step.tables, change, step.manifest.options.skips),
        lambda outcome: progress.add(1, sum(file.rows for file in outcome.written), 1),
        meanwhile=progress.tick,
        size=sum(order.bytes for order in orders) + change.size(),
    )
    refused = {outcome.table for outcome in outcomes if outcome.refused}
    for index in sorted({outcome.table for outcome in outcomes} - refused):
        table = step.tables[index].table
        rows_found = sum(outcome.found for outcome in outcomes if outcome.table == index)
        was = change.was(index)
        # If the log names only keys, it does not show whether a row existed before.
        if not table.keyless and index not in layers and rows_found != was:
            raise CopyMismatch(
                f"the log changes {format_count(was, 'row')} of the last copy, which has {rows_found:,} of them",
                where=str(table.name),
                hint=FOREIGN,
            )
    return merge_versions(step, outcomes)


def _orders(
    step: Step, change: NetChangeFiles, index: int, files: Sequence[BaseFile], layers: Sequence[Rewind] | None
) -> list[Roll]:
    coming = change.size() if layers is None else sum(file.bytes for layer in layers for file in layer.files)
    again = None if layers is None else tuple(layers)
    targets = _targets(files, coming)
    if step.tables[index].table.keyless:
        return [Roll(index, tuple(targets))]
    # Touched keys often lie close together, so neighbouring files go to different tasks.
    size = sum(base.file.bytes for base in files)
    tasks = max(min(step.slots * TASKS_PER_SLOT, 1 + size // ROLL_BYTES), 1 + coming // ROLL_BYTES)
    tasks = min(len(targets), tasks)
    return [Roll(index, tuple(targets[task::tasks]), again) for task in range(tasks)]


def _targets(files: Sequence[BaseFile], change_bytes: int) -> list[Target]:
    """Return the targets of one table. The key ranges of the targets do not overlap, so each added row goes into one
    file.

    Small files with new versions contain rows from all parts of the table. Rows are added to these files only if the
    table has no other files."""
    filled = [one for one in files if one.file.rows and not is_small_versions(one.file)]
    if filled:
        versions = [Target(one.file, None) for one in files if is_small_versions(one.file)]
        return [*_targets_of(filled, files, change_bytes), *versions]
    return _targets_of([one for one in files if one.file.rows], files, change_bytes)


def _targets_of(filled: Sequence[BaseFile], files: Sequence[BaseFile], change_bytes: int) -> list[Target]:
    empty = [Target(one.file, None) for one in files if not one.file.rows]
    extents = [one.extent for one in filled if one.extent is not None]
    if not filled or len(extents) < len(filled):
        smallest = min(filled, key=lambda one: one.file.bytes, default=None)
        into = smallest if smallest is not None and smallest.file.bytes + change_bytes < SMALL_BYTES else None
        targets = [Target(one.file, Range() if one is into else None) for one in filled]
        return [*targets, *empty, *([] if into else [Target(None, Range())])]
    ordered = sorted(filled, key=lambda one: one.extent or ())
    ranges = divided(sorted(low for low, _ in extents))
    targets = [Target(one.file, range) for one, range in zip(ordered, ranges, strict=True)]
    last = ordered[-1]
    if last.file.bytes >= SMALL_BYTES:
        beyond = after(max(high for _, high in extents))
        targets[-1] = Target(last.file, Range(ranges[-1].low, beyond))
        targets.append(Target(None, Range(beyond, None)))
    return [*targets, *empty]
