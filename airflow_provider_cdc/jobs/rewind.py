"""What the tasks of consolidate do: take touched rows out of staged files, and put back those that were there before.

A file is read only as far as it takes to know that it holds no touched row: the footer (keys lie between its least and
its greatest), then the first key column, then the key columns of rows whose first one is touched. Only a file that does
hold some is read whole, and written anew without them.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.core import row_bytes
from airflow_provider_cdc.core.manifest import RunTable
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import Table
from airflow_provider_cdc.errors import CopyMismatch
from airflow_provider_cdc.jobs import net
from airflow_provider_cdc.jobs.extract_delta import NetChange
from airflow_provider_cdc.sinks.base import Sink, StagedFile, folder_name
from airflow_provider_cdc.sources.base import Source

TOUCHED_ROWS = 1_000_000
"""How many touched keys a task holds at a time."""
DECODED_ROWS = 65_536
_PRUNED_VALUES = 100_000

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Rewind:
    """An order: take the touched rows out of these files of one table. Of a keyless table: out of all of its files,
    and put back the rows that the window removed."""

    table: int
    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class Restore:
    """An order: put back the rows that were there before, as these files of the net change give them."""

    table: int
    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class Outcome:
    """What an order led to: files ``adopted`` as they are, files ``written``, how many were ``replaced`` by these; and
    how many values of each column were put back as null because no Arrow type holds them (``nulled``)."""

    table: int
    adopted: tuple[StagedFile, ...] = ()
    written: tuple[StagedFile, ...] = ()
    replaced: int = 0
    nulled: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RewindTask:
    """What a task of consolidate needs to know. It is sent to executors."""

    run: Storage
    source: Source
    sink: Sink
    tables: tuple[RunTable, ...]
    change: NetChange

    def __call__(self, order: Rewind | Restore) -> Outcome:
        if isinstance(order, Restore):
            written, nulled = self._restore(order.table, order.files)
            return Outcome(order.table, written=written, nulled=nulled)
        outcome = self._take_out(order)
        if not self._table(order.table).keyless:
            return outcome
        added, nulled = self._restore(order.table, self.change.files)
        return replace(outcome, written=outcome.written + added, nulled=nulled)

    def _table(self, index: int) -> Table:
        return self.tables[index].table

    def _staged(self, table: Table, part: str) -> str:
        return f"staged/{folder_name(table.name)}/{part}-{uuid.uuid4().hex[:8]}"

    def _take_out(self, order: Rewind) -> Outcome:
        table = self._table(order.table)
        schema = self.source.arrow_schema(table)
        key = schema.names if table.keyless else list(table.key)
        files = [_File(self.run, file, key) for file in order.files]
        for touched in self._touched(order.table, schema.field(key[0]).type):
            for file in files:
                file.mark(touched)
            touched.check_all_found(table)
        written: list[StagedFile] = []
        for file in files:
            if file.marks:
                part = "-".join(file.staged.base_name.split("-")[:2])
                with self.sink.writer(self.run, self._staged(table, part), schema) as writer:
                    for rows in file.unmarked():
                        writer.write(rows)
                written += writer.files
        return Outcome(
            order.table,
            tuple(file.staged for file in files if not file.marks),
            tuple(written),
            sum(bool(file.marks) for file in files),
        )

    def _touched(self, index: int, first: pa.DataType) -> Iterator[_Touched]:
        keyless = self._table(index).keyless
        batches: list[pa.RecordBatch] = []
        rows = 0
        for batch in net.read(self.run, self.change.files, ["key", "count"], table=index):
            if keyless:
                batch = batch.filter(pc.greater(batch["count"], 0))
            batches.append(batch)
            rows += batch.num_rows
            if rows >= TOUCHED_ROWS:
                yield _Touched.of(batches, keyless, first)
                batches, rows = [], 0
        if rows:
            yield _Touched.of(batches, keyless, first)

    def _restore(self, index: int, files: Sequence[StagedFile]) -> tuple[tuple[StagedFile, ...], dict[str, int]]:
        table = self._table(index)
        nulled: dict[str, int] = {}
        schema = self.source.arrow_schema(table)
        with self.sink.writer(self.run, self._staged(table, "part-restored"), schema) as writer:
            for batch in net.read(self.run, files, ["before", "count"], table=index):
                restored = pc.less(batch["count"], 0) if table.keyless else batch["before"].is_valid()
                batch = batch.filter(restored)
                for start in range(0, batch.num_rows, DECODED_ROWS):
                    part = batch.slice(start, DECODED_ROWS)
                    rows = self.source.decode_images(table, part["before"], nulled)
                    if table.keyless:
                        copies = np.repeat(np.arange(rows.num_rows), -part["count"].to_numpy())
                        for first in range(0, len(copies), DECODED_ROWS):
                            writer.write(rows.take(pa.array(copies[first : first + DECODED_ROWS])))
                    else:
                        writer.write(rows)
        return tuple(writer.files), nulled


@dataclass
class _Touched:
    """Some of the touched keys. ``left``, of a keyless table: how many copies of each are still to be taken out.

    ``first`` holds the values of the first key column, where its type has one bit pattern per value.
    """

    keys: pa.BinaryArray
    left: np.ndarray[Any, np.dtype[np.int64]] | None
    first: pa.Array | None
    _sorted: Any = field(init=False)

    def __post_init__(self) -> None:
        self._sorted = None if self.first is None else _sorted_values(self.first)

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], keyless: bool, first: pa.DataType) -> _Touched:
        rows = pa.Table.from_batches(batches).combine_chunks()
        keys = rows["key"].chunk(0)
        left = rows["count"].to_numpy().copy() if keyless else None
        return cls(keys, left, row_bytes.first_values(keys, first) if _has_one_pattern(first) else None)

    def may_lie_in(self, statistics: pq.Statistics | None) -> bool:
        """Whether a touched key may lie between the least and the greatest first value of a row group."""
        if (
            self.first is None
            or self._sorted is None
            or statistics is None
            or not statistics.has_min_max
            or statistics.null_count
        ):
            return True
        low, high = _bounds(statistics, self.first.type)
        at = bisect_left(self._sorted, low)
        return at < len(self._sorted) and bool(self._sorted[at] <= high)

    def found_in(self, keys: pa.BinaryArray) -> BoolArray:
        """Which of a file's rows, given by their bytes, are to be taken out."""
        if self.left is None:
            mask: BoolArray = pc.is_in(keys, value_set=self.keys).to_numpy(zero_copy_only=False)
            return mask
        index = pc.index_in(keys, value_set=self.keys)
        rows = np.flatnonzero(index.is_valid().to_numpy(zero_copy_only=False))
        which = index.drop_null().to_numpy()
        # Copies of one row are alike: take the first ones, as many as are left to be taken.
        order = np.argsort(which, kind="stable")
        rows, which = rows[order], which[order]
        start = np.searchsorted(which, which)
        taken = np.arange(len(which)) - start < self.left[which]
        np.subtract.at(self.left, which[taken], 1)
        result = np.zeros(len(keys), np.bool_)
        result[rows[taken]] = True
        return result

    def check_all_found(self, table: Table) -> None:
        """:raises CopyMismatch: the log added rows to a keyless table that were not read."""
        if self.left is not None and self.left.any():
            raise CopyMismatch(
                f"the log adds {int(self.left.sum())} rows that the copy does not hold",
                where=str(table.name),
                mend="trigger a new run; if it recurs, report it with the server's version",
            )


def _has_one_pattern(kind: pa.DataType) -> bool:
    """Whether equal values of an Arrow type have equal bits, so that a search by value finds every equal key."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
    )


def _sorted_values(values: pa.Array) -> Any:
    """Values in the order of Parquet's statistics, or None: there is no use in looking."""
    if values.null_count:
        return None
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        if len(values) > _PRUNED_VALUES:
            return None
        return sorted(values.cast(pa.binary()).to_pylist())
    if not pa.types.is_integer(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return np.sort(values.to_numpy())


def _bounds(statistics: pq.Statistics, kind: pa.DataType) -> tuple[Any, Any]:
    """The least and the greatest value as `_sorted_values` has them."""
    low, high = statistics.min_raw, statistics.max_raw
    if pa.types.is_unsigned_integer(kind):
        # Parquet stores them in signed integers of 32 or 64 bits, and orders them as unsigned.
        bits = 64 if kind.bit_width == 64 else 32
        return low % 2**bits, high % 2**bits
    return low, high


class _File:
    """A staged file, and the rows that are to be taken out of it: by row group, a mask."""

    def __init__(self, run: Storage, staged: StagedFile, key: Sequence[str]) -> None:
        self.staged = staged
        self.marks: dict[int, BoolArray] = {}
        self._run = run
        self._key = list(key)
        self._open: pq.ParquetFile | None = None

    @property
    def _parquet(self) -> pq.ParquetFile:
        if self._open is None:
            self._open = pq.ParquetFile(self._run.path(self.staged.name), filesystem=self._run.filesystem)
        return self._open

    def mark(self, touched: _Touched) -> None:
        metadata = self._parquet.metadata
        first = self._parquet.schema_arrow.get_field_index(self._key[0])
        for group in range(metadata.num_row_groups):
            if touched.may_lie_in(metadata.row_group(group).column(first).statistics):
                self._mark_group(group, touched)

    def _mark_group(self, group: int, touched: _Touched) -> None:
        candidates: BoolArray | None = None
        if touched.first is not None:
            values = self._parquet.read_row_group(group, columns=self._key[:1])[0]
            candidates = pc.is_in(values, value_set=touched.first).to_numpy()
            if not candidates.any():
                return
        rows = self._parquet.read_row_group(group, columns=self._key)
        if candidates is not None:
            rows = rows.filter(pa.array(candidates))
        rows = rows.combine_chunks()
        batch = pa.RecordBatch.from_arrays([column.chunk(0) for column in rows.columns], rows.column_names)
        found = touched.found_in(row_bytes.encode(batch, self._key))
        if not found.any():
            return
        mask = found
        if candidates is not None:
            mask = candidates.copy()
            mask[candidates] = found
        earlier = self.marks.get(group)
        self.marks[group] = mask if earlier is None else earlier | mask

    def unmarked(self) -> Iterator[pa.Table]:
        """The rows that stay."""
        for group in range(self._parquet.metadata.num_row_groups):
            rows = self._parquet.read_row_group(group)
            marked = self.marks.get(group)
            yield rows if marked is None else rows.filter(pa.array(~marked))
