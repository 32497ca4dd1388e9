"""Collects the single row changes of a log segment in a growing buffer. Change feeds are made from these changes.

A *record* describes one row change. Records are stored one after the other in an ``int64`` arena. A record has
``HEADER`` words, followed by the row before the change and the row after it, each rounded up to whole words.

====  =====================================================================
word  content
====  =====================================================================
0     index of the tracked table
1     number of the prepared transaction to which the change belongs, or -1
2     order: number of the row change in the segment
3     index of its transaction in ``transactions``
4, 5  bytes of the row before, and of the row after; -1: no row
====  =====================================================================

The buffer grows with the changes, so `ChangeLog.batches` empties it from time to time. Changes of a prepared
transaction stay in the buffer until the position of the transaction's commit is known. The changes get this position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import Bytes, Int64s, copy_bytes, inner, kernel
from airflow_provider_cdc.sources.api.window import CHANGE_SCHEMA, Committed, TrackedTable
from airflow_provider_cdc.sources.log.delta import order_base

LOG_BYTES = 1 << 26
"""The number of bytes of rows that a segment's reader collects before it returns the rows."""
BATCH_ROWS = 1 << 16
BATCH_BYTES = 1 << 26

HEADER = 6
NAME_BYTES = 56
NO_TIME = -1
TABLE, PREPARED, ORDER, TRANSACTION, BEFORE, AFTER = 0, 1, 2, 3, 4, 5

USED, RECORDS, TRANSACTIONS, LAST = 0, 1, 2, 3
"""Indexes into ``Changes.state``: the used words of the arena, the number of records, the number of transactions, and
the serial of the last transaction."""

_TRANSACTION_WORDS = 2
_FIRST_WORDS = 1 << 12
_FIRST_TRANSACTIONS = 1 << 8

Name = Callable[[int, bytes], str]
"""A function that makes the text of a position from a transaction's number and the name of the transaction's origin."""


class SegmentChanges(NamedTuple):
    """The arrays of `ChangeLog`, for kernels. For each transaction, ``transactions`` has the transaction's number and
    commit time, and ``names`` has ``NAME_BYTES`` bytes with the name of the transaction's origin."""

    arena: Int64s
    bytes: Bytes
    transactions: Int64s
    names: Bytes
    state: Int64s


@inner
def change_words(row_bytes: int) -> int:
    """Return the maximum number of words of a record whose two rows have ``row_bytes`` bytes in total."""
    return HEADER + ((row_bytes + 7) >> 3) + 1


@inner
def has_room_for(changes: SegmentChanges, words: int) -> bool:
    """Return whether there is room for one more record of ``words`` words, and for the transaction of this record."""
    return bool(
        changes.state[USED] + words <= len(changes.arena)
        and _TRANSACTION_WORDS * (changes.state[TRANSACTIONS] + 1) <= len(changes.transactions)
    )


@inner
def note_transaction(changes: SegmentChanges, serial: int, number: int, time: int) -> int:
    """Record the transaction to which the next records belong. Its ``serial`` differs from the serial of the previous
    transaction, and is not 0.

    :returns: the place in ``names`` at which the name of the transaction's origin must be written. -1: the transaction
        is already recorded.
    """
    if changes.state[LAST] == serial:
        return -1
    at = changes.state[TRANSACTIONS]
    changes.state[LAST] = serial
    changes.state[TRANSACTIONS] = at + 1
    changes.transactions[_TRANSACTION_WORDS * at] = number
    changes.transactions[_TRANSACTION_WORDS * at + 1] = time
    return int(at * NAME_BYTES)


@inner
def after_place(changes: SegmentChanges, before_bytes: int) -> int:
    """Return the place in ``bytes`` at which the row after the next change must be stored, given the size of the row
    before this change."""
    return int(changes.state[USED] + HEADER + ((max(0, before_bytes) + 7) >> 3)) << 3


@inner
def note_change(
    changes: SegmentChanges,
    table: int,
    prepared: int,
    order: int,
    data: Bytes,
    before: int,
    before_bytes: int,
    after_data: Bytes,
    after: int,
    after_bytes: int,
) -> None:
    """Record a change of the last recorded transaction. The rows begin at ``data[before:]`` and ``after_data[after:]``,
    and have the given sizes. A size of -1 means that there is no row. The caller must have checked ``has_room_for``."""
    record, arena = changes.state[USED], changes.arena
    arena[record + TABLE] = table
    arena[record + PREPARED] = prepared
    arena[record + ORDER] = order
    arena[record + TRANSACTION] = changes.state[TRANSACTIONS] - 1
    arena[record + BEFORE] = before_bytes
    arena[record + AFTER] = after_bytes
    place = after_place(changes, before_bytes)
    # The row after the change may already be at its place in the arena.
    if after_bytes > 0:
        copy_bytes(changes.bytes, place, after_data, after, after_bytes)
    if before_bytes > 0:
        copy_bytes(changes.bytes, (record + HEADER) << 3, data, before, before_bytes)
    changes.state[USED] = (place >> 3) + ((max(0, after_bytes) + 7) >> 3)
    changes.state[RECORDS] += 1


@inner
def _words(arena: Int64s, record: int) -> int:
    before, after = max(0, arena[record + BEFORE]), max(0, arena[record + AFTER])
    return int(HEADER + ((before + 7) >> 3) + ((after + 7) >> 3))


@kernel
def _list_records(arena: Int64s, records: Int64s) -> None:
    record = 0
    for index in range(len(records)):
        records[index] = record
        record += _words(arena, record)


@kernel
def _keep(arena: Int64s, state: Int64s, records: Int64s) -> None:
    """Move ``records``, which must be in ascending order, to the front of the arena, and drop all other records."""
    target = 0
    for index in range(len(records)):
        words = _words(arena, records[index])
        if target != records[index]:
            for word in range(words):
                arena[target + word] = arena[records[index] + word]
        target += words
    state[USED] = target
    state[RECORDS] = len(records)


@kernel
def _gather(arena: Int64s, bytes_: Bytes, records: Int64s, part: int, offsets: Int64s, out: Bytes) -> None:
    for index in range(len(records)):
        at = records[index] + HEADER
        if part == AFTER:
            at += (max(0, arena[records[index] + BEFORE]) + 7) >> 3
        copy_bytes(out, offsets[index], bytes_, at << 3, offsets[index + 1] - offsets[index])


@dataclass(frozen=True)
class Outcome:
    """The outcome of a transaction that was both prepared and decided in this segment: the position of the commit, and
    a flag for each table (``uint8``) that says whether the transaction counts for this table. If the transaction was
    rolled back, it does not count for any table."""

    at: Committed
    counts: Bytes


class ChangeLog:
    """The buffer for changes. The buffer starts small and grows with the number of changes.

    :param tracked: the tables of the segment's reader.
    :param segment_number: the number of the segment.
    :param name: a function that makes the text of a position.
    """

    def __init__(self, tracked: Sequence[TrackedTable], segment_number: int, name: Name) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.wanted = any(tracked_table.changes for tracked_table in tracked)
        self._tracked = tracked
        self._base = order_base(segment_number)
        self._name = name
        self.arena: Int64s = np.empty(_FIRST_WORDS if self.wanted else 1, np.int64)
        self.bytes: Bytes = self.arena.view(np.uint8)
        self._make_transactions(_FIRST_TRANSACTIONS if self.wanted else 1)
        self.state: Int64s = np.zeros(4, np.int64)

    @property
    def arrays(self) -> SegmentChanges:
        """Return the arrays for kernels. `reserve` replaces them."""
        return SegmentChanges(self.arena, self.bytes, self.transactions, self.names, self.state)

    @property
    def used_bytes(self) -> int:
        return 8 * int(self.state[USED])

    def reserve(self, words: int) -> None:
        """Make room for one more record of ``words`` words, and for the transaction of this record."""
        used, count = int(self.state[USED]), int(self.state[TRANSACTIONS])
        if used + words > len(self.arena):
            arena: Any = np.empty(2 * (used + words), np.int64)
            arena[:used] = self.arena[:used]
            self.arena = arena
            self.bytes = arena.view(np.uint8)
        if _TRANSACTION_WORDS * (count + 1) > len(self.transactions):
            transactions, names = self.transactions, self.names
            self._make_transactions(2 * (count + 1))
            self.transactions[: len(transactions)] = transactions
            self.names[: len(names)] = names

    def batches(
        self, undecided: Sequence[int] = (), pending: Callable[[int, TrackedTable], str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the collected changes as batches of ``CHANGE_SCHEMA``, each of one table, and drop them.

        :param undecided: the numbers of the prepared transactions whose outcome may still follow in the log. The
            changes of these transactions stay in the buffer.
        :param pending: a function that is called for transactions that are not decided in this segment. It receives the
            number of a prepared transaction and a table, and returns the id for the changes of the transaction to the
            table. None: there are no prepared transactions.
        """
        records: Int64s = np.empty(int(self.state[RECORDS]), np.int64)
        _list_records(self.arena, records)
        prepared = self.arena[records + PREPARED]
        stays = np.isin(prepared, list(undecided))
        yield from self._batches(records[~stays], prepared[~stays], pending)
        _keep(self.arena, self.state, records[stays])
        self.state[[TRANSACTIONS, LAST]] = 0

    def _batches(
        self, records: Int64s, prepared: Int64s, pending: Callable[[int, TrackedTable], str] | None
    ) -> Iterator[pa.RecordBatch]:
        count = int(self.state[TRANSACTIONS])
        points = [self._point(index) for index in range(count)]
        tables, orders = self.arena[records + TABLE], self._base + self.arena[records + ORDER]
        places = self.arena[records + TRANSACTION].copy()
        counts: Bytes = np.ones(len(records), np.uint8)
        waits: Int64s = np.full(len(records), -1, np.int64)
        for number in np.unique(prepared[prepared >= 0]).tolist():
            in_transaction = prepared == number
            outcome = self.outcomes.get(number)
            if outcome is None:
                waits[in_transaction] = number
            else:
                counts[in_transaction] = outcome.counts[tables[in_transaction]]
                orders[in_transaction] = outcome.at.order
                places[in_transaction] = len(points)
                points.append((outcome.at.position, outcome.at.time))
        # All changes of a prepared transaction have the same ``order``. Sort these changes by their place in the log.
        sequence = np.lexsort((np.arange(len(records)), orders, tables, waits))
        sequence = sequence[counts[sequence] != 0]
        positions = pa.array([position for position, _ in points], pa.string())
        times = pa.array([time for _, time in points], CHANGE_SCHEMA.field("commit_time").type)
        for rows in self._parts(records, tables, waits, sequence):
            one, number = self._tracked[int(tables[rows[0]])], int(waits[rows[0]])
            waiting = number >= 0
            assert not waiting or pending is not None
            place = pa.array(places[rows])
            yield pa.record_batch(
                [
                    pa.array(np.full(len(rows), one.index, np.int32)),
                    pa.array(orders[rows]),
                    pa.nulls(len(rows), pa.string()) if waiting else positions.take(place),
                    pa.nulls(len(rows), times.type) if waiting else times.take(place),
                    self._binary(records[rows], BEFORE),
                    self._binary(records[rows], AFTER),
                    pa.array([pending(number, one)] * len(rows), pa.string())
                    if waiting and pending
                    else pa.nulls(len(rows), pa.string()),
                ],
                schema=CHANGE_SCHEMA,
            )

    def _parts(self, records: Int64s, tables: Int64s, waits: Int64s, sequence: Int64s) -> Iterator[Int64s]:
        """Split ``sequence`` into parts of limited size, each of one table and one prepared transaction."""
        before, after = (np.maximum(self.arena[records[sequence] + part], 0) for part in (BEFORE, AFTER))
        sizes = before + after
        edges = (np.flatnonzero(np.diff(tables[sequence]) | np.diff(waits[sequence])) + 1).tolist()
        first = 0
        for last in [*edges, len(sequence)]:
            while first < last:
                ends = np.cumsum(sizes[first : min(last, first + BATCH_ROWS)])
                stop = first + max(1, int(np.searchsorted(ends, BATCH_BYTES, "right")))
                yield sequence[first:stop]
                first = stop

    def _point(self, index: int) -> tuple[str, int | None]:
        number, time = self.transactions[_TRANSACTION_WORDS * index :][:_TRANSACTION_WORDS].tolist()
        name = self.names[NAME_BYTES * index :][:NAME_BYTES].tobytes()
        return self._name(number, name), None if time == NO_TIME else time

    def _binary(self, records: Int64s, part: int) -> pa.BinaryArray:
        sizes = self.arena[records + part]
        offsets: Int64s = np.zeros(len(records) + 1, np.int64)
        np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
        out: Bytes = np.empty(int(offsets[-1]), np.uint8)
        _gather(self.arena, self.bytes, records, part, offsets, out)
        present = sizes >= 0
        validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(records), [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
        )

    def _make_transactions(self, count: int) -> None:
        self.transactions: Int64s = np.zeros(_TRANSACTION_WORDS * count, np.int64)
        self.names: Bytes = np.zeros(NAME_BYTES * count, np.uint8)
