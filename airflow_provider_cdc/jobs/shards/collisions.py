"""Finds keys that several shards of a merged table have at the run's position.

The check compares the key columns of all rows of the new copy, so also rows that no change has touched. Two keys are
equal if their values are equal in the published columns (`core.tables.row_bytes`). The keys of small tables are
compared in one task. The keys of large tables are divided into portions: by ranges of the first key column, if the
footers of the files tell its extents, and by a hash of the whole key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.copy_tables import CopyTables, copies_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.published import plain_value
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import KeysCollide
from airflow_provider_cdc.jobs.apply.key_ranges import Bound, Range, group_extent
from airflow_provider_cdc.jobs.apply.rolled_file import RolledFile
from airflow_provider_cdc.jobs.apply.touched_rows import has_one_pattern
from airflow_provider_cdc.jobs.roll_forward.plan import base_folders
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks

PORTION_ROWS = 2_000_000
"""Number of keys that a task compares at a time. It holds all of them in memory."""
_ENCODED_ROWS = 65_536
_LOOKED_AT = 64
"""Number of files whose footers one task reads."""
_BUCKETS = 256
_READERS = 4
_SHOWN = 10

Extent = tuple[Bound, Bound]
GroupExtents = list[tuple[Extent | None, int]]
"""The extent of the first key column, and the number of rows, of each row group of a file. None: it is not known."""


@dataclass(frozen=True)
class ShardFile:
    """A file of a shard, in ``folder``. ``table`` is the index of the shard in the run's tables."""

    table: int
    folder: Storage
    file: StagedFile


@dataclass(frozen=True)
class FileGroups:
    """Some row groups of a file of a shard; None: all of them."""

    file: ShardFile
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Portion:
    """A part of the keys of a merged table: those in a range of the first key column, and with this ``bucket`` of
    ``buckets`` (a hash of the key)."""

    files: tuple[FileGroups, ...]
    range: Range = field(default_factory=Range)
    bucket: int = 0
    buckets: int = 1


@dataclass(frozen=True)
class Collision:
    """A key that is in several shards. ``tables`` has the indices of the shards."""

    key: tuple[str, ...]
    tables: tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """The number of colliding keys of a portion, and the first of them."""

    count: int = 0
    first: tuple[Collision, ...] = ()


@dataclass(frozen=True)
class Shards:
    """What tasks need to read the keys of a merged table."""

    key: tuple[str, ...]
    schema: pa.Schema

    def file(self, one: ShardFile) -> RolledFile:
        return RolledFile(one.folder, one.file, self.schema)

    @property
    def first(self) -> pa.DataType:
        return self.schema.field(self.key[0]).type


@dataclass(frozen=True)
class ReadExtents:
    """A task that reads the extents of the first key column, and the rows, of each row group of files."""

    shards: Shards

    def __call__(self, files: Sequence[ShardFile]) -> list[GroupExtents]:
        return [self._of(file) for file in files]

    def _of(self, file: ShardFile) -> GroupExtents:
        parquet = self.shards.file(file).parquet
        column = parquet.schema_arrow.get_field_index(self.shards.key[0])
        return [
            (
                group_extent(parquet.metadata, group, column, self.shards.first),
                parquet.metadata.row_group(group).num_rows,
            )
            for group in range(parquet.metadata.num_row_groups)
        ]


@dataclass(frozen=True)
class CompareKeys:
    """A task that finds the colliding keys of a portion. Spark sends this object to executors."""

    shards: Shards

    def __call__(self, portion: Portion) -> Found:
        keys: list[pa.BinaryArray] = []
        values: list[pa.RecordBatch] = []
        tables: list[int] = []
        # Use threads, because reading many small files waits for the store.
        with ThreadPoolExecutor(_READERS) as readers:
            batches_by_part = readers.map(lambda part: list(self._keys(part, portion.range)), portion.files)
            for part, batches in zip(portion.files, batches_by_part, strict=True):
                for batch in batches:
                    encoded = row_bytes.encode(batch, self.shards.key)
                    if portion.buckets > 1:
                        chosen = pa.array(row_bytes.buckets(encoded, portion.buckets) == portion.bucket)
                        encoded, batch = encoded.filter(chosen), batch.filter(chosen)
                    if len(encoded):
                        keys.append(encoded)
                        values.append(batch)
                        tables.append(part.file.table)
        return self._collisions(keys, values, tables)

    def _keys(self, part: FileGroups, range_of_first: Range) -> Iterator[pa.RecordBatch]:
        file = self.shards.file(part.file)
        groups = range(file.parquet.metadata.num_row_groups) if part.groups is None else part.groups
        for group in groups:
            rows, gone = file.read(group, list(self.shards.key)), file.gone(group)
            if gone is not None:
                rows = rows.filter(pa.array(~gone))
            for batch in rows.to_batches(max_chunksize=_ENCODED_ROWS):
                if not range_of_first.whole:
                    batch = batch.filter(pa.array(range_of_first.holds(batch.column(self.shards.key[0]))))
                if batch.num_rows:
                    yield batch

    def _collisions(
        self, keys: Sequence[pa.BinaryArray], values: Sequence[pa.RecordBatch], tables: Sequence[int]
    ) -> Found:
        all_keys = pa.chunked_array(keys, pa.binary())
        counts = pc.value_counts(all_keys)
        repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
        if not len(repeated):
            return Found()
        first = repeated.take(pc.array_sort_indices(repeated))[:_SHOWN]
        owners: list[list[int]] = [[] for _ in first]
        shown: dict[int, tuple[str, ...]] = {}
        for encoded, batch, table in zip(keys, values, tables, strict=True):
            places = pc.index_in(encoded, value_set=first)
            for row in np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False)).tolist():
                place = places[row].as_py()
                owners[place].append(table)
                if place not in shown:
                    shown[place] = tuple(_shown(plain_value(batch.column(name)[row])) for name in self.shards.key)
        return Found(
            len(repeated),
            tuple(Collision(shown[place], tuple(sorted(of_key))) for place, of_key in enumerate(owners)),
        )


def check_collisions(
    step: Step, written: Mapping[int, Sequence[StagedFile]], kept: Mapping[int, Sequence[StagedFile]]
) -> dict[str, str]:
    """Check that no key is in several shards of a merged table, unless the origin is part of its key.

    Return, by the shard's name, why the run leaves the shards of a merged table out.

    :param written: the files that the run wrote, by the table's index.
    :param kept: the files that the copies take over from their bases, by the table's index.
    :raises KeysCollide: a key is in several shards, and the run does not leave out tables.
    """
    refused: dict[str, str] = {}
    indices = {entry.table.name: index for index, entry in enumerate(step.tables)}
    bases = base_folders(step)
    for copy in copies_of(step.tables[index] for index in written):
        shard = copy.first.table.shard
        if shard is None or shard.origin_in_key or len(copy.tables) == 1:
            continue
        files = [
            file
            for index in (indices[entry.table.name] for entry in copy.tables)
            for file in (
                *(ShardFile(index, step.files_of(index).folder, file) for file in written[index]),
                *(ShardFile(index, bases[index], file) for file in kept.get(index, ())),
            )
            if file.file.live_rows
        ]
        found = _compared(step, copy, files)
        if not found.count:
            continue
        error = _error(step, copy, found)
        if not step.manifest.options.skips:
            raise error
        refused |= {str(entry.table.name): f"{copy.name}: {error.message}" for entry in copy.tables}
    return refused


def _compared(step: Step, copy: CopyTables, files: Sequence[ShardFile]) -> Found:
    index = step.tables.index(copy.first)
    shards = Shards(tuple(copy.first.table.key), step.files_of(index).published)
    rows = sum(file.file.live_rows for file in files)
    log(f"consolidate: {copy.name}: comparing {format_count(rows, 'key')} of {format_count(len(copy.tables), 'shard')}")
    return compared(step.spark, shards, files)


def compared(spark: SparkSession, shards: Shards, files: Sequence[ShardFile]) -> Found:
    """Compare the keys of all rows of files, and return the keys that are in several shards."""
    total = Found()
    for found in run_tasks(
        spark, "compare keys of shards", portions(files, _extents(spark, shards, files)), CompareKeys(shards)
    ):
        total = Found(total.count + found.count, (total.first + found.first)[:_SHOWN])
    return total


def _extents(spark: SparkSession, shards: Shards, files: Sequence[ShardFile]) -> list[GroupExtents]:
    """Return the extents of each file, or nothing if the keys are compared without them."""
    if sum(file.file.rows for file in files) <= PORTION_ROWS or not has_one_pattern(shards.first):
        return []
    orders = [files[start : start + _LOOKED_AT] for start in range(0, len(files), _LOOKED_AT)]
    outcomes = run_tasks(spark, "read key ranges", orders, ReadExtents(shards))
    return [of_file for of_files in outcomes for of_file in of_files]


def portions(files: Sequence[ShardFile], extents: Sequence[GroupExtents]) -> list[Portion]:
    """Divide the keys of a merged table into portions of about `PORTION_ROWS` rows. Equal keys are in one portion.

    :param extents: the result of `ReadExtents` for the files; empty: it is not known.
    """
    rows = sum(file.file.rows for file in files)
    if extents and all(extent is not None for groups in extents for extent, _ in groups):
        return in_ranges(files, extents)
    return _in_buckets(Portion(tuple(map(FileGroups, files))), rows)


def in_ranges(files: Sequence[ShardFile], extents: Sequence[GroupExtents]) -> list[Portion]:
    """Divide the keys into ranges of the first key column, with about `PORTION_ROWS` rows each.

    :param extents: the extent of the first key column and the rows of each row group, for each file.
    """
    groups = [
        (extent, rows, number, group)
        for number, of_file in enumerate(extents)
        for group, (extent, rows) in enumerate(of_file)
        if extent is not None
    ]
    found: list[Portion] = []
    for low, high in pairwise(_edges([(extent, rows) for extent, rows, _, _ in groups])):
        inside = [
            (rows, number, group)
            for extent, rows, number, group in groups
            if (high is None or _less(extent[0], high)) and (low is None or not _less(extent[1], low))
        ]
        by_file: dict[int, list[int]] = {}
        for _, number, group in inside:
            by_file.setdefault(number, []).append(group)
        if len({files[number].table for number in by_file}) < 2:
            # The keys of one shard do not collide with each other.
            continue
        parts = tuple(FileGroups(files[number], tuple(own)) for number, own in by_file.items())
        found += _in_buckets(Portion(parts, Range(low, high)), sum(rows for rows, _, _ in inside))
    return found


def _edges(groups: Sequence[tuple[Extent, int]]) -> list[Bound | None]:
    """Return the edges of ranges, with about `PORTION_ROWS` rows between two of them."""
    edges: list[Bound | None] = [None]
    rows = 0
    for (low, _), count in sorted(groups, key=lambda group: group[0]):
        if rows >= PORTION_ROWS and (edges[-1] is None or _less(edges[-1], low)):
            edges.append(low)
            rows = 0
        rows += count
    return [*edges, None]


def _in_buckets(portion: Portion, rows: int) -> list[Portion]:
    """Divide a portion with too many rows by a hash of the keys."""
    buckets = max(1, min(_BUCKETS, rows // PORTION_ROWS))
    return [replace(portion, bucket=bucket, buckets=buckets) for bucket in range(buckets)]


def _less(one: Bound, other: Bound) -> bool:
    return one < other  # type: ignore[operator]


def _error(step: Step, copy: CopyTables, found: Found) -> KeysCollide:
    names = [str(entry.table.name) for entry in step.tables]
    return collision_error(str(copy.name), copy.first.table.key, names, found, step.run.position_text)


def collision_error(where: str, key: Sequence[str], names: Sequence[str], found: Found, position: str) -> KeysCollide:
    """Return the error for a merged table with colliding keys.

    :param names: the names of the shards, by their index.
    """
    shown = "; ".join(
        f"({', '.join(f'{name}={value}' for name, value in zip(key, one.key, strict=True))}) in "
        f"{' and '.join(dict.fromkeys(names[index] for index in one.tables))}"
        for one in found.first
    )
    more = ", such as" if found.count > len(found.first) else ":"
    return KeysCollide(
        f"{format_count(found.count, 'key')} {'is' if found.count == 1 else 'are'} in more than one shard at "
        f"{position}{more} {shown}",
        where=where,
        hint="remove the rows from all but one of the shards, or set `Merge.origin_columns` and `On.collision` = "
        "`origin_in_key`, and trigger a new run",
    )


def _shown(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else repr(value) if isinstance(value, str) else str(value)
