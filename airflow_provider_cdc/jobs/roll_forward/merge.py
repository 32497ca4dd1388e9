"""Merges the small files with new versions of rows, once a table has many of them.

Each run may add such files, and each reader must open all of them. A file that has become large is not merged again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.parquet.writer import FILE_BYTES
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.run.table_files import table_files
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.jobs.apply.key_ranges import Range
from airflow_provider_cdc.jobs.apply.rewind import Rewind, RewindOutcome
from airflow_provider_cdc.jobs.apply.rolled_file import RolledFile
from airflow_provider_cdc.jobs.apply.touched_rows import BoolArray, has_one_pattern
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.sources.api.source import Source

# Applies the net change of a window to the rows of one row group.
#
# Changed rows may have become far larger during the window, so the rows are decoded in parts.


Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Left:
    """Some rows of a row group, with their states before and after the window. ``before`` has the rows as they are in
    the copy.

    ``rows`` replace the rows at ``places``, and differ from them in the columns ``changed``. ``gone`` is a mask of the
    rows that were deleted."""

    before: pa.Table
    places: Int64s
    rows: pa.Table
    gone: BoolArray
    changed: set[str]

    def now(self, columns: Sequence[str]) -> pa.Table:
        """Return the given columns, with the changed rows in place of the old ones. Deleted rows are still included."""
        rows = self.before.select(columns)
        if not len(self.places) or not rows.num_columns:
            return rows
        taken = np.arange(rows.num_rows)
        taken[self.places] = rows.num_rows + np.arange(len(self.places))
        together = pa.concat_tables([rows, self.rows.select(rows.column_names)])
        # Each batch has its own dictionary, so unify the dictionaries first.
        return together.unify_dictionaries().combine_chunks().take(pa.array(taken))


def parts(lengths: tuple[Int64s, Int64s], most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide rows into parts that can be decoded at once, and yield the start and stop (exclusive) of each part.

    :param lengths: the bytes of each row's images before and after the window, and -1 where there is no image.
    """
    ends = np.cumsum(sum(np.maximum(image_lengths, 0) for image_lengths in lengths))
    start = done = 0
    while start < len(ends):
        stop = int(np.searchsorted(ends, done + most_bytes, side="right"))
        stop = min(max(stop, start + 1), start + most_rows)
        yield start, stop
        start, done = stop, int(ends[stop - 1])


def sorted_rows(rows: pa.Table, name: str) -> pa.Table:
    """Return the rows in the order of the column ``name``."""
    # Each batch has its own dictionary, so unify the dictionaries first.
    rows = rows.unify_dictionaries().combine_chunks()
    return rows.take(pc.sort_indices(rows[name]))


def differing(before: pa.RecordBatch, after: pa.RecordBatch) -> set[str]:
    """Return the names of the columns in which any row of ``after`` differs, bit for bit, from the same row of
    ``before``."""
    return {
        name
        for name in before.schema.names
        if not row_bytes.encode(before, [name]).equals(row_bytes.encode(after, [name]))
    }


# Loads the log's images of a copy's touched rows, in portions that fit into memory.
#
# The changes to a few files may be far larger than these files. So the size of each image is read first, and then the
# images themselves, in the order in which they are requested. Each further portion needs another scan of the changes.


HELD_BYTES = 256 * 2**20
"""Bytes of images, or of added rows, that one task holds in memory at a time."""

Place = tuple[str, int]
"""A row group: the name of its file, and its number."""

_LARGE = pa.large_binary()


class Images:
    """The images of touched rows as the copy must have them, and as they are at the position of the run. The images are
    the log's own bytes.

    :param keys: the keys of each row group's touched rows, in the order of the row group. Each key occurs once, and
        ``changes`` contains every key.
    :param changes: reads the changes of the table: the columns ``key``, ``was`` and ``now``.
    """

    def __init__(self, keys: Mapping[Place, pa.BinaryArray], changes: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        ends = np.cumsum([0, *map(len, keys.values())]).tolist()
        self._places = dict(zip(keys, pairwise(ends), strict=True))
        self._keys = pa.chunked_array([*keys.values()], pa.binary())
        self._changes = changes
        self._first = self._end = 0
        self._held = pa.table({})
        self._lengths = self._measure_images() if len(self._keys) else (np.empty(0, np.int64), np.empty(0, np.int64))
        self._ends = np.cumsum(sum(np.maximum(lengths_of_batch, 0) for lengths_of_batch in self._lengths))

    def lengths(self, place: Place) -> tuple[Int64s, Int64s]:
        """Return the length in bytes of each image in the copy and at the position of the run, and -1 where there is no
        image."""
        place_slice = slice(*self._places[place])
        was, now = self._lengths
        return was[place_slice], now[place_slice]

    def of(self, place: Place, start: int, stop: int) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Return the images in the copy and at the position of the run, for the touched rows of a row group from
        ``start`` up to ``stop`` (exclusive). Each of the two must fit into one binary array."""
        begin, _ = self._places[place]
        start, stop = begin + start, begin + stop
        if start < self._first or stop > self._end:
            self._load(start, stop)
        # Take a copy: the bytes of a slice may lie at offsets beyond the range of the smaller type, `pa.binary`.
        rows = self._held.take(pa.array(np.arange(start - self._first, stop - self._first))).combine_chunks()
        was, now = (rows[name].cast(pa.binary()).combine_chunks() for name in ("was", "now"))
        return was, now

    def _measure_images(self) -> tuple[Int64s, Int64s]:
        """Return the lengths of all images. Keep the images in memory if all of them fit."""
        keys, was, now, held = [], [], [], []
        size = 0
        for batch in self._changes():
            batch_of_keys = batch.filter(pc.is_in(batch["key"], value_set=self._keys))
            keys.append(batch_of_keys["key"])
            was.append(_lengths_of(batch_of_keys["was"]))
            now.append(_lengths_of(batch_of_keys["now"]))
            size += batch_of_keys.nbytes
            if size <= HELD_BYTES:
                held.append(batch_of_keys)
            else:
                held.clear()
        if size <= HELD_BYTES:
            self._hold(held, self._keys)
            self._end = len(self._keys)
        places = pc.index_in(self._keys, value_set=pa.chunked_array(keys, pa.binary())).to_numpy()
        return np.concatenate(was)[places], np.concatenate(now)[places]

    def _load(self, start: int, stop: int) -> None:
        self._held = pa.table({})
        base_offset = int(self._ends[start - 1]) if start else 0
        self._first, self._end = (
            start,
            max(stop, int(np.searchsorted(self._ends, base_offset + HELD_BYTES, side="right"))),
        )
        keys = self._keys.slice(start, self._end - start)
        self._hold([batch.filter(pc.is_in(batch["key"], value_set=keys)) for batch in self._changes()], keys)

    def _hold(self, batches: Sequence[pa.RecordBatch], keys: pa.ChunkedArray) -> None:
        schema = pa.schema([("key", pa.binary()), ("was", _LARGE), ("now", _LARGE)])
        # All images together may be larger than one `pa.binary` array can be.
        images = pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)
        images = images.combine_chunks()
        self._held = images.select(["was", "now"]).take(pc.index_in(keys, value_set=images["key"]))


def _lengths_of(images: pa.BinaryArray) -> Int64s:
    lengths: Int64s = pc.binary_length(images).fill_null(-1).to_numpy().astype(np.int64)
    return lengths


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
                yield file.remaining_rows(group)


def is_small_versions(file: StagedFile) -> bool:
    """Return whether a file has new versions of rows, and is small enough to be merged."""
    return file.base_name.startswith(f"{NEW_VERSIONS}-") and file.bytes < SMALL_BYTES


def merge_versions(step: Step, outcomes: Sequence[RewindOutcome]) -> list[RewindOutcome]:
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
        step.spark,
        "merge new versions of rows",
        orders,
        MergeTask(step.staging, step.source, step.tables),
        size=sum(file.bytes for order in orders for file in order.files),
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
        RewindOutcome(order.table, written=files, replaced=sum(file.name in kept for file in order.files))
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


# Orders for tasks that roll copies forward.


@dataclass(frozen=True)
class Target:
    """A file into which rows are written. ``file`` is a file of the base copy, or None for a new file. The added rows
    whose keys are in ``range`` are written into this file. If ``range`` is None, no rows are added."""

    file: StagedFile | None
    range: Range | None


@dataclass(frozen=True)
class Roll:
    """An order: remove the touched rows from the target files of one table, and add the rows that belong in these
    files.

    If touched rows were read again, the added rows come from ``layers``, the lowest layer first. Otherwise, ``layers``
    is None."""

    table: int
    targets: tuple[Target, ...]
    layers: tuple[Rewind, ...] | None = None

    @property
    def bytes(self) -> int:
        return sum(target.file.bytes for target in self.targets if target.file is not None)
