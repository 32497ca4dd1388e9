"""Merges the small files with new versions of rows, once a table has many of them.

Each run may add such files, and each reader must open all of them. A file that has become large is not merged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_provider_cdc.core.parquet.writer import FILE_BYTES
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.run.table_files import table_files
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.consolidate.rewind import Outcome
from airflow_provider_cdc.jobs.consolidate.touched_rows import has_one_pattern
from airflow_provider_cdc.jobs.roll_forward.image_buffer import HELD_BYTES
from airflow_provider_cdc.jobs.roll_forward.rolled_file import RolledFile
from airflow_provider_cdc.jobs.roll_forward.row_group_merge import sorted_rows
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.sources.api.source import Source

NEW_VERSIONS = "part-versions"
"""The prefix of the names of files with new versions of rows. The old versions of these rows have position deletes."""
MERGED_AT = 8
"""The small files with new versions of rows are merged when a table has this number of them."""
SMALL_BYTES = FILE_BYTES // 8
MERGED_BYTES = FILE_BYTES // 2
"""The size of the files that one task merges, in bytes."""


@dataclass(frozen=True)
class Merge:
    """An order: write the rows of these files of one table's copy into one file."""

    table: int
    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class MergeTask:
    """A task that merges files. Spark sends this object to executors."""

    staging: Staging
    source: Source
    tables: tuple[RunTable, ...]

    def __call__(self, order: Merge) -> tuple[StagedFile, ...]:
        """Return the new files.

        :raises FileDamaged: a file differs from its record.
        """
        entry = self.tables[order.table]
        writer = table_files(self.staging, entry, self.source.arrow_schema(entry.table))
        key = "" if entry.table.keyless else entry.table.key[0]
        with writer.writer("staged", NEW_VERSIONS) as merged:
            for rows in _held(self._rows(writer.folder, order.files, writer.published)):
                has_order = key and has_one_pattern(rows.schema.field(key).type)
                merged.write(sorted_rows(rows, key) if has_order else rows)
        return tuple(merged.files)

    def _rows(self, folder: Storage, files: Sequence[StagedFile], published: pa.Schema) -> Iterator[pa.Table]:
        for staged in files:
            file = RolledFile(folder, staged, published)
            file.check_whole()
            for group in range(file.parquet.metadata.num_row_groups):
                yield file.live(group)


def is_small_versions(file: StagedFile) -> bool:
    """Return whether a file has new versions of rows, and is small enough to be merged."""
    return file.base_name.startswith(f"{NEW_VERSIONS}-") and file.bytes < SMALL_BYTES


def merge_versions(step: Step, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Merge the small files with new versions of rows, for each table that has at least `MERGED_AT` such files. Return
    the outcomes, with the merged files instead of the small files."""
    small: dict[int, list[StagedFile]] = {}
    kept: set[str] = set()
    for outcome in outcomes:
        small.setdefault(outcome.table, []).extend(filter(is_small_versions, (*outcome.kept, *outcome.written)))
        kept |= {file.name for file in outcome.kept}
    refused = {outcome.table for outcome in outcomes if outcome.refused}
    orders = [
        order
        for table, files in small.items()
        if len(files) >= MERGED_AT and table not in refused
        for order in _orders(table, files)
    ]
    if not orders:
        return list(outcomes)
    done = run_tasks(
        step.spark, "merge new versions of rows", orders, MergeTask(step.staging, step.source, step.tables)
    )
    gone = {file.name for order in orders for file in order.files}
    remaining = [
        replace(
            outcome,
            kept=tuple(file for file in outcome.kept if file.name not in gone),
            written=tuple(file for file in outcome.written if file.name not in gone),
        )
        for outcome in outcomes
    ]
    merged = [
        Outcome(order.table, written=files, replaced=sum(file.name in kept for file in order.files))
        for order, files in zip(orders, done, strict=True)
    ]
    return [*remaining, *merged]


def _orders(table: int, files: Sequence[StagedFile]) -> Iterator[Merge]:
    together: list[StagedFile] = []
    for file in sorted(files, key=lambda file: file.bytes):
        together.append(file)
        if sum(one.bytes for one in together) >= MERGED_BYTES:
            yield Merge(table, tuple(together))
            together = []
    if len(together) > 1:
        yield Merge(table, tuple(together))


def _held(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Combine the pieces into larger tables that still fit into memory and can be sorted."""
    together: list[pa.Table] = []
    for piece in pieces:
        together.append(piece)
        if sum(one.nbytes for one in together) > HELD_BYTES:
            yield pa.concat_tables(together)
            together = []
    if together:
        yield pa.concat_tables(together)
