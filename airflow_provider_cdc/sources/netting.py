"""The net change of a log segment, as it grows: one hash table over all groups of keys.

A *group* is a number: table ``t`` (of ``tables``) by itself, or ``tables * (x + 1) + t`` for what the ``x``-th
prepared transaction of the segment did to it. A *record* stands for one key of one group. Of a keyed table it holds
the row before the key's first change (``core.net_change``: to rewind, no later one matters), of a keyless table the
row itself and how often it came and went.

Records lie one behind the other in an ``int64`` arena and are found through ``slots``, an open-addressing table of
which each entry is 0 or 24 bits of the key's hash above 40 bits of the record's word plus one. A record is ``HEADER``
words and then key and row, each rounded up to whole words:

====  =============================================================================
word  content
====  =============================================================================
0     group; ``DEAD`` once another record stands for the key
1     bytes of the key << 32 | bytes of the row + 1; 0 there: no row (or keyless)
2     order: the number of the row change in the segment
3     keyed: suborder; keyless: times added minus times removed
====  =============================================================================

The memory is that of the touched keys: records without effect are dropped when room is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.core.kernel import Bytes, Int64s, copy_bytes, inner, kernel, load8, load64

HEADER = 4
GROUP, LENGTHS, ORDER, COUNT = 0, 1, 2, 3
SUBORDER = COUNT
DEAD = -1

USED, FILLED, WASTED = 0, 1, 2
"""``NetChange.state``: words of the arena in use; slots in use; words of dead records."""

_WORD_MASK = (1 << 40) - 1
_LOW_HALF = (1 << 32) - 1
_MULTIPLIER = -7046029254386353131  # the odd integer nearest to 2**64 divided by the golden ratio
_FIRST_WORDS = 1 << 16
_FIRST_SLOTS = 1 << 12


@inner
def record_words(key_bytes: int, row_bytes: int) -> int:
    """Words that a record takes."""
    return HEADER + ((key_bytes + 7) >> 3) + ((row_bytes + 7) >> 3)


@inner
def has_room(arena: Int64s, slots: Int64s, state: Int64s, records: int, words: int) -> bool:
    """Whether ``records`` more records of ``words`` words in all fit."""
    return bool(state[USED] + words <= len(arena) and 2 * (state[FILLED] + records) <= len(slots))


@inner
def _hash(data: Bytes, at: int, size: int, group: int) -> int:
    value = (group + 1) * _MULTIPLIER
    while size >= 8:
        value = (value ^ load64(data, at)) * _MULTIPLIER
        value ^= (value >> 29) & 0x7FFFFFFFF
        at += 8
        size -= 8
    tail = size
    while size > 0:
        size -= 1
        tail = tail << 8 | load8(data, at + size)
    value = (value ^ tail) * _MULTIPLIER
    value ^= (value >> 32) & _LOW_HALF
    value *= _MULTIPLIER
    return value ^ ((value >> 29) & 0x7FFFFFFFF)


@inner
def _find(arena: Int64s, bytes_: Bytes, slots: Int64s, group: int, key_at: int, key_bytes: int) -> tuple[int, int, int]:
    """The record with the key at ``bytes_[key_at]``, or -1; the slot it is in, or that it can take; and the key's
    hash."""
    hashed = _hash(bytes_, key_at, key_bytes, group)
    mask = len(slots) - 1
    slot = hashed & mask
    tag = hashed & ~_WORD_MASK
    while slots[slot] != 0:
        entry = slots[slot]
        if (entry & ~_WORD_MASK) == tag:
            record = (entry & _WORD_MASK) - 1
            if arena[record] == group and (arena[record + LENGTHS] >> 32) == key_bytes:
                at = (record + HEADER) << 3
                same = True
                index = 0
                while index + 8 <= key_bytes and same:
                    same = load64(bytes_, at + index) == load64(bytes_, key_at + index)
                    index += 8
                while index < key_bytes and same:
                    same = load8(bytes_, at + index) == load8(bytes_, key_at + index)
                    index += 1
                if same:
                    return record, slot, hashed
        slot = (slot + 1) & mask
    return -1, slot, hashed


@inner
def _enter(slots: Int64s, state: Int64s, slot: int, record: int, hashed: int) -> None:
    slots[slot] = (hashed & ~_WORD_MASK) | (record + 1)
    state[FILLED] += 1


@inner
def touch(
    arena: Int64s,
    bytes_: Bytes,
    slots: Int64s,
    state: Int64s,
    group: int,
    key_bytes: int,
    data: Bytes,
    row_at: int,
    row_bytes: int,
    order: int,
) -> None:
    """Note that a key was changed, unless it has been before.

    The key's bytes stand ready where a new record's would: from byte ``8 * (state[USED] + HEADER)`` of the arena. The
    row before is ``data[row_at:]``, ``row_bytes`` long, or none if that is -1. The caller has asked ``has_room``.
    """
    record = state[USED]
    key_at = (record + HEADER) << 3
    found, slot, hashed = _find(arena, bytes_, slots, group, key_at, key_bytes)
    if found >= 0:
        return
    arena[record] = group
    arena[record + LENGTHS] = key_bytes << 32 | (row_bytes + 1)
    arena[record + ORDER] = order
    arena[record + SUBORDER] = 0
    if row_bytes > 0:
        copy_bytes(bytes_, (record + HEADER + ((key_bytes + 7) >> 3)) << 3, data, row_at, row_bytes)
    _enter(slots, state, slot, record, hashed)
    state[USED] = record + record_words(key_bytes, row_bytes)


@inner
def count(
    arena: Int64s,
    bytes_: Bytes,
    slots: Int64s,
    state: Int64s,
    group: int,
    row_bytes: int,
    change: int,
    order: int,
) -> None:
    """Note that a row of a keyless table came (``change`` 1) or went (-1).

    The row's bytes stand ready as those of a key do for ``touch``. The caller has asked ``has_room``.
    """
    record = state[USED]
    key_at = (record + HEADER) << 3
    found, slot, hashed = _find(arena, bytes_, slots, group, key_at, row_bytes)
    if found >= 0:
        arena[found + COUNT] += change
        return
    arena[record] = group
    arena[record + LENGTHS] = row_bytes << 32
    arena[record + ORDER] = order
    arena[record + COUNT] = change
    _enter(slots, state, slot, record, hashed)
    state[USED] = record + record_words(row_bytes, 0)


@inner
def _next(arena: Int64s, record: int) -> int:
    lengths = arena[record + LENGTHS]
    return record + record_words(lengths >> 32, max(0, (lengths & _LOW_HALF) - 1))


@kernel
def decide(
    arena: Int64s,
    bytes_: Bytes,
    slots: Int64s,
    state: Int64s,
    start: int,
    stop: int,
    transaction: int,
    counts: Bytes,
    keyless: Bytes,
    order: int,
) -> None:
    """Make what a prepared transaction did part of its tables' net change: its records among ``arena[start:stop]``.

    :param counts: by table, whether the transaction counts for it; where it does not, the records die.
    :param order: of the commit; the order that the change had becomes the suborder.

    The caller has asked ``has_room`` for as many records (of no words).
    """
    tables = len(counts)
    record = start
    while record < stop:
        following = _next(arena, record)
        table = arena[record] - tables * (transaction + 1)
        if 0 <= table < tables:
            key_bytes = arena[record + LENGTHS] >> 32
            key_at = (record + HEADER) << 3
            found, slot, hashed = _find(arena, bytes_, slots, table, key_at, key_bytes)
            if counts[table] and found < 0:
                arena[record] = table
                if not keyless[table]:
                    arena[record + SUBORDER] = arena[record + ORDER]
                arena[record + ORDER] = order
                _enter(slots, state, slot, record, hashed)
            else:
                if counts[table] and keyless[table]:
                    arena[found + COUNT] += arena[record + COUNT]
                arena[record] = DEAD
                state[WASTED] += following - record
        record = following


@kernel
def _compact(arena: Int64s, state: Int64s, keyless: Bytes, marks: Int64s) -> None:
    """Move the records that matter to the front; ``marks``, increasing words of the arena, follow them."""
    tables = len(keyless)
    record = target = 0
    mark = 0
    while record < state[USED]:
        while mark < len(marks) and marks[mark] <= record:
            marks[mark] = target
            mark += 1
        following = _next(arena, record)
        group = arena[record]
        if group != DEAD and not (keyless[group % tables] and arena[record + COUNT] == 0):
            if target != record:
                for word in range(following - record):
                    arena[target + word] = arena[record + word]
            target += following - record
        record = following
    while mark < len(marks):
        marks[mark] = target
        mark += 1
    state[USED] = target
    state[WASTED] = 0


@kernel
def _rehash(arena: Int64s, bytes_: Bytes, slots: Int64s, state: Int64s) -> None:
    slots[:] = 0
    state[FILLED] = 0
    record = 0
    while record < state[USED]:
        if arena[record] != DEAD:
            key_at = (record + HEADER) << 3
            key_bytes = arena[record + LENGTHS] >> 32
            hashed = _hash(bytes_, key_at, key_bytes, arena[record])
            slot = hashed & (len(slots) - 1)
            while slots[slot] != 0:
                slot = (slot + 1) & (len(slots) - 1)
            _enter(slots, state, slot, record, hashed)
        record = _next(arena, record)


@kernel
def _list_records(arena: Int64s, state: Int64s, keyless: Bytes, records: Int64s, groups: Int64s) -> int:
    tables = len(keyless)
    found = 0
    record = 0
    while record < state[USED]:
        group = arena[record]
        if group != DEAD and not (keyless[group % tables] and arena[record + COUNT] == 0):
            if found < len(records):
                records[found] = record
                groups[found] = group
            found += 1
        record = _next(arena, record)
    return found


class NetChange:
    """The hash table's memory: it starts small and grows with the keys.

    ``arena`` is ``int64``, ``bytes`` the same memory as ``uint8``; ``slots`` and ``state`` as the module says.
    """

    def __init__(self, keyless: Bytes) -> None:
        self.keyless = keyless
        self.arena: Int64s = np.empty(_FIRST_WORDS, np.int64)
        self.bytes: Bytes = self.arena.view(np.uint8)
        self.slots: Int64s = np.zeros(_FIRST_SLOTS, np.int64)
        self.state: Int64s = np.zeros(4, np.int64)

    @property
    def used_bytes(self) -> int:
        """Of the keys and rows that it holds."""
        return 8 * int(self.state[USED])

    def clear(self) -> None:
        """Forget all changes. The memory stays, and so do the orders of what comes next."""
        self.slots[:] = 0
        self.state[[USED, WASTED, FILLED]] = 0

    def has_slots(self, records: int) -> bool:
        """Whether so many more records can be entered, if they need no words."""
        return 2 * (int(self.state[FILLED]) + records) <= len(self.slots)

    def reserve(self, records: int, words: int, marks: Int64s) -> None:
        """Make room for so many more records; ``marks`` are words of the arena that are to point at the same records
        after."""
        _compact(self.arena, self.state, self.keyless, marks)
        # Half of it free, or the next call would come soon.
        needed = 2 * int(self.state[USED]) + words
        if needed > len(self.arena):
            arena: Any = np.empty(max(needed, 2 * len(self.arena)), np.int64)
            arena[: self.state[USED]] = self.arena[: self.state[USED]]
            self.arena = arena
            self.bytes = arena.view(np.uint8)
        _rehash(self.arena, self.bytes, self.slots, self.state)
        while 4 * (int(self.state[FILLED]) + records) > len(self.slots):
            self.slots = np.zeros(2 * len(self.slots), np.int64)
            self.state[FILLED] = 0
        if self.state[FILLED] == 0:
            _rehash(self.arena, self.bytes, self.slots, self.state)

    def records(self) -> tuple[Int64s, Int64s]:
        """The records that have an effect, ordered by group, and their groups."""
        none: Int64s = np.empty(0, np.int64)
        found = _list_records(self.arena, self.state, self.keyless, none, none)
        records: Int64s = np.empty(found, np.int64)
        groups: Int64s = np.empty(found, np.int64)
        _list_records(self.arena, self.state, self.keyless, records, groups)
        by_group = np.argsort(groups, kind="stable")
        return records[by_group], groups[by_group]
