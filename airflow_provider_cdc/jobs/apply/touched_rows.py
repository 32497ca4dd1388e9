"""Finds touched rows in staged files by their keys, and leaves these rows out when a file is written again.

A file is searched in stages: the footer (least and greatest key), then the first key column, then all key columns of
the rows whose first key value is touched. The search ends as soon as a stage shows that the file has no touched row.
Only a file with touched rows is read in full.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.lake_types import to_published
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CopyMismatch

BLOCK_ROWS = 1_000_000
BLOCK_BYTES = 128 * 2**20
"""Limits for the row groups that are searched together: the number of their rows, and the bytes of their key columns.
Arrow builds a hash table of all touched keys for each search, however few rows are searched."""
TOUCHED_BYTES = 256 * 2**20
"""Bytes of touched keys that a task holds at a time. The keys must fit into one array of 2 GiB."""
_PRUNED_VALUES = 100_000
_FEW_ROWS = 16
"""A binary search for each touched key is quicker than a hash table if there is at most one such key in this number of
rows."""

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class TouchedKeys:
    """Some of the touched keys.

    For keyless tables, ``left`` has, for each row, the number of equal rows that are still to be removed. ``first`` has
    the values of the first key column, if its type has one bit pattern per value.
    """

    keys: pa.BinaryArray
    left: np.ndarray[Any, np.dtype[np.int64]] | None
    first: pa.Array | None
    _sorted: Any = field(init=False)

    def __post_init__(self) -> None:
        self._sorted = None if self.first is None else _sorted_values(self.first)

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], keyless: bool, first: pa.DataType) -> TouchedKeys:
        """Return the keys in changes of `net_change_files.TOWARDS_SCHEMA`. Those of a keyless table must have negative
        counts."""
        rows = pa.Table.from_batches(batches).combine_chunks()
        keys = rows["key"].chunk(0)
        remaining_counts = -rows["count"].to_numpy() if keyless else None
        return cls(keys, remaining_counts, row_bytes.first_values(keys, first) if has_one_pattern(first) else None)

    def may_lie_in(self, statistics: pq.Statistics | None) -> bool:
        """Return whether a touched key may lie between the least and the greatest first key value of a row group."""
        if (
            self.first is None
            or self._sorted is None
            or statistics is None
            or not statistics.has_min_max
            or statistics.null_count
        ):
            return True
        low, high = bounds(statistics, self.first.type)
        at = bisect_left(self._sorted, low)
        return at < len(self._sorted) and bool(self._sorted[at] <= high)

    def first_found_in(self, columns: Sequence[pa.ChunkedArray]) -> list[BoolArray]:
        """Return a mask for each column: the values that are the first value of a touched key."""
        assert self.first is not None
        masks = [self._found_in_order(column) for column in columns]
        others = [column for column, mask in zip(columns, masks, strict=True) if mask is None]
        if not others:
            return [mask for mask in masks if mask is not None]
        values = pa.chunked_array([chunk for column in others for chunk in column.chunks], self.first.type)
        # Search them together, because Arrow builds a hash table of all touched values for each search.
        found = iter(_split(pc.is_in(values, value_set=self.first).to_numpy(), [len(column) for column in others]))
        return [next(found) if mask is None else mask for mask in masks]

    def _found_in_order(self, column: pa.ChunkedArray) -> BoolArray | None:
        """Search a column of ascending numbers, as in files that were read in the order of the key. For few touched
        keys, this takes a tenth of the time of a search with a hash table. None: use the hash table."""
        assert self.first is not None
        if not isinstance(self._sorted, np.ndarray) or column.type != self.first.type:
            return None
        if column.null_count or column.num_chunks != 1:
            return None
        values = _numbers(column.chunk(0))
        if not len(values) or (values[1:] < values[:-1]).any():
            return None
        touched = self._sorted[
            np.searchsorted(self._sorted, values[0], "left") : np.searchsorted(self._sorted, values[-1], "right")
        ]
        if len(touched) > len(values) // _FEW_ROWS:
            return None
        starts, stops = np.searchsorted(values, touched, "left"), np.searchsorted(values, touched, "right")
        # The first column of a key may have the same value in several rows.
        lengths = stops - starts
        mask = np.zeros(len(values), np.bool_)
        mask[np.repeat(stops - np.cumsum(lengths), lengths) + np.arange(lengths.sum())] = True
        return mask

    def identified_by_first(self, key: Sequence[str]) -> bool:
        """Return whether the value of the first key column alone identifies a touched row."""
        return len(key) == 1 and self.left is None and self.first is not None

    def found_in(self, keys: pa.ChunkedArray) -> BoolArray:
        """Return a mask of the rows that are to be removed.

        :param keys: the encoded keys of the rows.
        """
        if self.left is None:
            mask: BoolArray = pc.is_in(keys, value_set=self.keys).to_numpy()
            return mask
        index = pc.index_in(keys, value_set=self.keys)
        rows = np.flatnonzero(index.is_valid().to_numpy())
        which = index.drop_null().to_numpy()
        # The log says how many occurrences of a row to remove. All occurrences are equal, so remove the first
        # occurrences.
        order = np.argsort(which, kind="stable")
        rows, which = rows[order], which[order]
        start = np.searchsorted(which, which)
        taken = np.arange(len(which)) - start < self.left[which]
        np.subtract.at(self.left, which[taken], 1)
        result = np.zeros(len(keys), np.bool_)
        result[rows[taken]] = True
        return result

    def check_all_found(self, table: Table) -> None:
        """Check that all rows to be removed from a keyless table were found.

        :raises CopyMismatch: some rows are not in the table's files.
        """
        if self.left is not None and self.left.any():
            raise CopyMismatch(
                f"the net change removes {format_count(int(self.left.sum()), 'row')} that the copy does not have",
                where=str(table.name),
                hint="trigger a new run; if it recurs, report it with the server's version",
            )


def has_one_pattern(kind: pa.DataType) -> bool:
    """Return whether equal values of an Arrow type have equal bits, so that a search by value finds every equal key."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
    )


def _sorted_values(values: pa.Array) -> Any:
    """Return the values in the order of Parquet's statistics; None: statistics cannot be used, or would not help."""
    if values.null_count:
        return None
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        if len(values) > _PRUNED_VALUES:
            return None
        return sorted(values.cast(pa.binary()).to_pylist())
    return np.sort(_numbers(values))


def _numbers(values: pa.Array) -> np.ndarray[Any, Any]:
    """Return integers, dates or timestamps without nulls as integers."""
    if not pa.types.is_integer(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    numbers: np.ndarray[Any, Any] = values.to_numpy()
    return numbers


def bounds(statistics: pq.Statistics, kind: pa.DataType) -> tuple[Any, Any]:
    """Return the least and the greatest value, as integers or bytes that sort in the same order as the values.

    :param kind: the published type of the column.
    """
    low, high = statistics.min_raw, statistics.max_raw
    if pa.types.is_uint64(kind) and isinstance(low, bytes):
        # Files of table formats store this type as a decimal (`core.parquet.lake_types`).
        return int.from_bytes(low, "big", signed=True), int.from_bytes(high, "big", signed=True)
    if pa.types.is_unsigned_integer(kind):
        # Parquet stores unsigned integers in signed integers of 32 or 64 bits, but sorts them as unsigned integers.
        bits = 64 if kind.bit_width == 64 else 32
        return low % 2**bits, high % 2**bits
    return low, high


def in_portions(batches: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Group batches of touched keys into lists of at least one batch. Each list is small enough to be held in
    memory."""
    together: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if together and size + batch.nbytes > TOUCHED_BYTES:
            yield together
            together, rows, size = [], 0, 0
        together.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= most_rows:
            yield together
            together, rows, size = [], 0, 0
    if rows:
        yield together


class MarkedFile:
    """A staged file. For each row group, ``marks`` has a mask of the rows to be removed."""

    def __init__(self, folder: Storage, staged: StagedFile, published: pa.Schema) -> None:
        self.staged = staged
        self.marks: dict[int, BoolArray] = {}
        self._folder = folder
        self._published = published
        self._open: pq.ParquetFile | None = None

    @property
    def parquet(self) -> pq.ParquetFile:
        if self._open is None:
            self._open = pq.ParquetFile(self._folder.path(self.staged.name), filesystem=self._folder.filesystem)
        return self._open

    def groups(self, key: Sequence[str], touched: TouchedKeys) -> Iterator[TouchedRowGroup]:
        """Yield the row groups that may have touched rows."""
        metadata = self.parquet.metadata
        columns = [self.parquet.schema_arrow.get_field_index(name) for name in key]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if touched.may_lie_in(group.column(columns[0]).statistics):
                size = sum(group.column(column).total_uncompressed_size for column in columns)
                yield TouchedRowGroup(self, number, group.num_rows, size)

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        return to_published(self.parquet.read_row_group(group, columns=columns), self._published)

    def gone(self, group: int) -> BoolArray | None:
        """Return a mask of the rows that are already deleted; None: no row is. These rows are never marked."""
        return None

    def mark(self, group: int, mask: BoolArray) -> None:
        earlier = self.marks.get(group)
        self.marks[group] = mask if earlier is None else earlier | mask

    def unmarked(self) -> Iterator[pa.Table]:
        """Yield the rows that are not to be removed."""
        for group in range(self.parquet.metadata.num_row_groups):
            marked = self.marks.get(group)
            if marked is None:
                yield self.read(group)
            elif not marked.all():
                yield self.read(group).filter(pa.array(~marked))


@dataclass(frozen=True)
class TouchedRowGroup:
    """A row group of a file. ``bytes`` is the size of its key columns."""

    file: MarkedFile
    number: int
    rows: int
    bytes: int


def mark(files: Iterable[MarkedFile], key: Sequence[str], touched: TouchedKeys) -> None:
    """Mark the rows of ``files`` that are to be removed.

    :param key: the key columns; for a keyless table, all columns.
    """
    block: list[TouchedRowGroup] = []
    rows = size = 0
    for file in files:
        for group in file.groups(key, touched):
            block.append(group)
            rows += group.rows
            size += group.bytes
            if rows >= BLOCK_ROWS or size >= BLOCK_BYTES:
                _mark_block(block, key, touched)
                block, rows, size = [], 0, 0
    if block:
        _mark_block(block, key, touched)


def _mark_block(block: Sequence[TouchedRowGroup], key: Sequence[str], touched: TouchedKeys) -> None:
    masks = [np.ones(group.rows, np.bool_) for group in block]
    if touched.first is not None:
        masks = touched.first_found_in([group.file.read(group.number, key[:1])[0] for group in block])
    masks = [_live(group, mask) for group, mask in zip(block, masks, strict=True)]
    if not touched.identified_by_first(key):
        masks = _confirmed(block, masks, key, touched)
    for group, mask in zip(block, masks, strict=True):
        if mask.any():
            group.file.mark(group.number, mask)


def _live(group: TouchedRowGroup, mask: BoolArray) -> BoolArray:
    """Return ``mask`` without the rows that are already deleted."""
    gone = group.file.gone(group.number) if mask.any() else None
    return mask if gone is None else mask & ~gone


def _confirmed(
    block: Sequence[TouchedRowGroup], candidates: Sequence[BoolArray], key: Sequence[str], touched: TouchedKeys
) -> list[BoolArray]:
    """Return masks of the candidate rows whose whole key is touched."""
    encoded = []
    for group, mask in zip(block, candidates, strict=True):
        if mask.any():
            rows = group.file.read(group.number, key).filter(pa.array(mask)).combine_chunks()
            batch = pa.RecordBatch.from_arrays([column.chunk(0) for column in rows.columns], rows.column_names)
            encoded.append(row_bytes.encode(batch, key))
    confirmed_masks = touched.found_in(pa.chunked_array(encoded, pa.binary()))
    masks = [mask.copy() for mask in candidates]
    for mask, confirmed in zip(masks, _split(confirmed_masks, [int(mask.sum()) for mask in masks]), strict=True):
        mask[mask] = confirmed
    return masks


def _split(flat: BoolArray, sizes: Sequence[int]) -> list[BoolArray]:
    return np.split(flat, np.cumsum(sizes)[:-1])
