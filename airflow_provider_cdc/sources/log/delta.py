"""A segment's net change as record batches of ``DELTA_SCHEMA``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import Bytes, Int64s, copy_bytes, kernel
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.api.window import BUCKETS, DELTA_SCHEMA, TrackedTable
from airflow_provider_cdc.sources.log.netting import (
    COUNT,
    FILLED,
    HEADER,
    LENGTHS,
    ORDER,
    SUBORDER,
    USED,
    WASTED,
    Net,
    compact,
    last_rows_of,
    list_records,
    rehash,
)

# The memory in which kernels compute net changes. The memory starts small and grows with the number of keys.


_FIRST_WORDS = 1 << 16
_FIRST_SLOTS = 1 << 12
_USUAL_WORDS = 1 << 26
"""The usual size of the arena after it has grown the first time: 512 MiB of addresses. Addresses take no memory until
they are used."""


class NetChange:
    """The memory of the hash table. It starts small and grows with the number of keys.

    ``arena`` is ``int64``, and ``bytes`` is the same memory as ``uint8``. `netting` describes ``slots`` and ``state``.
    """

    def __init__(self, keyless: Bytes) -> None:
        self.keyless = keyless
        self._memory: Int64s = np.empty(_FIRST_WORDS, np.int64)
        self.arena = self._memory
        self.bytes: Bytes = self.arena.view(np.uint8)
        self.slots: Int64s = np.zeros(_FIRST_SLOTS, np.int64)
        self.state: Int64s = np.zeros(4, np.int64)

    @property
    def arrays(self) -> Net:
        """Return the arrays for kernels. `reserve` replaces them."""
        return Net(self.arena, self.bytes, self.slots, self.state)

    @property
    def used_bytes(self) -> int:
        """The size of the keys and rows in the hash table, in bytes."""
        return 8 * int(self.state[USED])

    def clear(self) -> None:
        """Drop all changes. The memory stays allocated, and the orders of later changes continue from the dropped
        changes."""
        self.slots[:] = 0
        self.state[[USED, WASTED, FILLED]] = 0

    def has_slots(self, records: int) -> bool:
        """Return whether the hash table has enough slots for ``records`` more records."""
        return 2 * (int(self.state[FILLED]) + records) <= len(self.slots)

    def reserve(self, records: int, words: int, marks: Int64s) -> None:
        """Make room for more records. ``marks`` has places of records in the arena, in words. The method updates these
        places, so that they still refer to the same records."""
        compact(self.arena, self.state, self.keyless, marks)
        # Leave half of the arena free, so that the arena need not grow again soon.
        needed = 2 * int(self.state[USED]) + words
        if needed > len(self.arena):
            self._extend(max(needed, 2 * len(self.arena)))
        rehash(self.arrays)
        while 4 * (int(self.state[FILLED]) + records) > len(self.slots):
            self.slots = np.zeros(2 * len(self.slots), np.int64)
            self.state[FILLED] = 0
        if self.state[FILLED] == 0:
            rehash(self.arrays)

    def _extend(self, words: int) -> None:
        if words > len(self._memory):
            try:
                memory: Any = np.empty(max(words, _USUAL_WORDS), np.int64)
            except MemoryError:
                # This system counts reserved addresses as used memory (vm.overcommit_memory=2, ulimit -v), so reserve
                # only the words that are needed now.
                memory = np.empty(words, np.int64)
            memory[: self.state[USED]] = self.arena[: self.state[USED]]
            self._memory = memory
        self.arena = self._memory[:words]
        self.bytes = self.arena.view(np.uint8)

    def records(self) -> tuple[Int64s, Int64s]:
        """Return the records that have an effect, sorted by group, and the groups of these records."""
        none: Int64s = np.empty(0, np.int64)
        record_count = list_records(self.arena, self.state, self.keyless, none, none)
        records: Int64s = np.empty(record_count, np.int64)
        groups: Int64s = np.empty(record_count, np.int64)
        list_records(self.arena, self.state, self.keyless, records, groups)
        by_group = np.argsort(groups, kind="stable")
        return records[by_group], groups[by_group]

    def last_rows(self, records: Int64s) -> Int64s:
        """Return, for each key of ``records``, the record with the last row of this key. Only for tables that are
        rolled forward."""
        rows: Int64s = np.empty(len(records), np.int64)
        last_rows_of(self.arrays, records, rows)
        return rows


Decoder = Callable[[Table, pa.BinaryArray], pa.RecordBatch]

NET_BYTES = 1 << 28
"""The number of bytes of keys and rows that a segment's reader nets at once. A larger segment is netted in parts."""
BATCH_ROWS = 1 << 16
BATCH_BYTES = 1 << 26

_LOW_HALF = (1 << 32) - 1
_KEYS, _ROWS = 0, 1


@kernel
def _batch_end(arena: Int64s, records: Int64s, lasts: Int64s, start: int, stop: int, limit: int) -> int:
    """Return the end of the batch that begins at ``records[start]`` and ends at ``stop`` or before. The batch has at
    most ``limit`` bytes, but at least one record.

    :param lasts: for each key of ``records``, the record with the last row of this key. Empty if the last rows are not
        needed.
    """
    total = 0
    at = start
    while at < stop:
        lengths = arena[records[at] + LENGTHS]
        total += (lengths >> 32) + (lengths & _LOW_HALF)
        if len(lasts):
            total += arena[lasts[at] + LENGTHS] & _LOW_HALF
        if total > limit and at > start:
            break
        at += 1
    return at


@kernel
def _measure(arena: Int64s, records: Int64s, part: int, offsets: Int64s, present: Bytes) -> None:
    """Compute the places at which the keys or rows of the records begin when they are stored one after the other.
    Writes the places and the end of the last one to ``offsets``. Writes to ``present`` whether the key or row of each
    record exists."""
    offsets[0] = 0
    for index in range(len(records)):
        lengths = arena[records[index] + LENGTHS]
        size = lengths >> 32 if part == _KEYS else (lengths & _LOW_HALF) - 1
        present[index] = size >= 0
        offsets[index + 1] = offsets[index] + max(0, size)


@kernel
def _gather(arena: Int64s, bytes_: Bytes, records: Int64s, part: int, offsets: Int64s, out: Bytes) -> None:
    for index in range(len(records)):
        at = (records[index] + HEADER) << 3
        if part == _ROWS:
            at += ((arena[records[index] + LENGTHS] >> 32) + 7) >> 3 << 3
        copy_bytes(out, offsets[index], bytes_, at, offsets[index + 1] - offsets[index])


def order_base(segment_number: int) -> int:
    """Return the number at which the values of ``order`` in ``DELTA_SCHEMA`` begin for a segment. Later segments have
    greater numbers."""
    return segment_number << 40


def delta_batches(
    change: NetChange,
    tracked: Sequence[TrackedTable],
    segment_number: int,
    decode: Decoder,
    pending: Callable[[int, TrackedTable], str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the net change of a segment, in batches of one table and one prepared transaction each.

    Records of a keyed table are sorted here by the buckets of their keys, because sorting at this point does not copy
    the rows. If only a part of a keyless table is copied, the row images serve as keys until it is known which rows are
    copied (`jobs.changes.filter_images`).

    :param decode: the source's ``decode_images``.
    :param pending: a function that receives the number of a prepared transaction and a table, and returns the id for
        the changes of the transaction to the table. None: there are no prepared transactions.
    """
    records, groups = change.records()
    base = order_base(segment_number)
    edges = (np.flatnonzero(np.diff(groups)) + 1).tolist()
    for first, last in pairwise([0, *edges, len(groups)]):
        if first == last:
            continue
        transaction, index = divmod(int(groups[first]), len(tracked))
        one = tracked[index]
        waits_for = pending(transaction - 1, one) if transaction and pending else None
        batch_records = records[first:last]
        if not one.table.keyless:
            batch_records = _by_bucket(change, one, batch_records, decode)
        lasts = change.last_rows(batch_records if one.forward and not one.table.keyless else batch_records[:0])
        for start, stop in _batches(change, batch_records, lasts):
            yield _batch(change, one, batch_records[start:stop], lasts[start:stop], base, decode, waits_for)


def _by_bucket(change: NetChange, one: TrackedTable, records: Int64s, decode: Decoder) -> Int64s:
    bucket: Bytes = np.empty(len(records), np.uint8)
    for start, stop in _batches(change, records, records[:0]):
        keys = _keys(one, _binary(change, records[start:stop], _KEYS), decode)
        bucket[start:stop] = row_bytes.buckets(keys, BUCKETS)
    return records[np.argsort(bucket, kind="stable")]


def _batches(change: NetChange, records: Int64s, lasts: Int64s) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(records):
        stop = _batch_end(change.arena, records, lasts, start, min(len(records), start + BATCH_ROWS), BATCH_BYTES)
        yield start, stop
        start = stop


def key_table(table: Table) -> Table:
    """Return a table that has only the key columns of ``table``, in key order. The bytes of a key in a net change are a
    row image of this table."""
    return Table(table.name, tuple(table.column(name) for name in table.key), table.key, options=table.options)


def _batch(
    change: NetChange,
    one: TrackedTable,
    records: Int64s,
    lasts: Int64s,
    base: int,
    decode: Decoder,
    waits_for: str | None,
) -> pa.RecordBatch:
    rows = len(records)
    orders = change.arena[records + ORDER]
    counts = suborders = np.zeros(rows, np.int64)
    after = pa.nulls(rows, pa.binary())
    if one.table.keyless:
        before = _binary(change, records, _KEYS)
        keys = before
        if one.table.selection.whole:
            keys = row_bytes.encode(decode(one.table, before), [column.name for column in one.table.columns])
        counts = change.arena[records + COUNT]
    else:
        before = _binary(change, records, _ROWS)
        images = _binary(change, records, _KEYS)
        keys = _keys(one, images, decode)
        if one.keys_only:
            before, counts = images, change.arena[records + COUNT]
        else:
            suborders = change.arena[records + SUBORDER]
        if len(lasts):
            after = _binary(change, lasts, _ROWS)
    if waits_for is not None:
        suborders = orders
    return pa.record_batch(
        [
            pa.array(np.full(rows, one.index, np.int32)),
            keys,
            pa.array(base + orders),
            pa.array(suborders),
            before,
            pa.array(counts),
            pa.nulls(rows, pa.string()) if waits_for is None else pa.array([waits_for] * rows, pa.string()),
            after,
        ],
        schema=DELTA_SCHEMA,
    )


def _keys(one: TrackedTable, images: pa.BinaryArray, decode: Decoder) -> pa.BinaryArray:
    key = key_table(one.table)
    return row_bytes.encode(decode(key, images), key.key)


def _binary(change: NetChange, records: Int64s, part: int) -> pa.BinaryArray:
    offsets: Int64s = np.empty(len(records) + 1, np.int64)
    present: Bytes = np.empty(len(records), np.uint8)
    _measure(change.arena, records, part, offsets, present)
    out: Bytes = np.empty(int(offsets[-1]), np.uint8)
    _gather(change.arena, change.bytes, records, part, offsets, out)
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(records), [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    )
