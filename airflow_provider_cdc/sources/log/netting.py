"""Builds the net change of a log segment in one hash table for all groups of keys.

A *group* is a number. The number ``t`` (less than ``tables``) stands for table ``t`` itself, and ``tables * (x + 1) +
t`` stands for the changes of the ``x``-th prepared transaction of the segment to table ``t``. A *record* describes one
key of one group. For a keyed table, the record has the row before the first change of the key, because later changes do
not matter for the rewind (``core.tables.net_change``). For a keyless table, the record has the row itself, and how
often the row was added and removed.

If a table is rolled forward, each key has a second record, in the group ``after_group``. This record has the row after
the last change of the key.

Records are stored one after the other in an ``int64`` arena. ``slots`` is an open-addressing hash table that finds the
records. An entry of ``slots`` is 0 if it is free. Otherwise, its upper 24 bits are bits of the key's hash, and its
lower 40 bits are the place of the record in the arena, in words, plus one. A record has ``HEADER`` words, followed by
the key and the row, each rounded up to whole words:

====  =============================================================================
word  content
====  =============================================================================
0     group; ``DEAD`` once another record replaces this one
1     bytes of the key << 32 | bytes of the row + 1; 0 in the low half: no row (or keyless)
2     order: number of the row change in the segment
3     keyed: suborder; keyless: times added minus times removed; keys only: whether
      the row exists after the key's last change (1) or not (0); order is then that
      of the last change
====  =============================================================================

The memory grows with the number of touched keys. Records without effect are dropped when room is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    inner,
    kernel,
    load8,
    load64,
    same_bytes,
    store64,
    wrapping_multiply,
)

HEADER = 4
GROUP, LENGTHS, ORDER, COUNT = 0, 1, 2, 3
SUBORDER = COUNT
DEAD = -1
NO_ROW = -1
"""The value of ``row_bytes`` if the key had no row before the change (`touch`) or has no row after it (`leave`)."""

USED, FILLED, WASTED = 0, 1, 2
"""Indexes into ``NetChange.state``: the used words of the arena, the used slots, and the words of dead records."""

_WORD_MASK = (1 << 40) - 1
_LOW_HALF = (1 << 32) - 1
_MULTIPLIER = -7046029254386353131  # the odd integer nearest to 2**64 divided by the golden ratio


class Net(NamedTuple):
    """The arrays of `NetChange`, for kernels."""

    arena: Int64s
    bytes: Bytes
    slots: Int64s
    state: Int64s


@inner
def after_group(group: int) -> int:
    """Return the group that has the last rows of the keys of ``group``. The number of the returned group is less than
    ``DEAD``. The function is its own inverse."""
    return -2 - group


@inner
def record_words(key_bytes: int, row_bytes: int) -> int:
    """Return the number of words of a record."""
    return HEADER + ((key_bytes + 7) >> 3) + ((row_bytes + 7) >> 3)


@inner
def _next(arena: Int64s, record: int) -> int:
    lengths = arena[record + LENGTHS]
    return record + record_words(lengths >> 32, max(0, (lengths & _LOW_HALF) - 1))


@inner
def _matters(arena: Int64s, record: int, keyless: Bytes) -> bool:
    """Return whether a record has an effect."""
    group = arena[record]
    return bool(group < DEAD or (group >= 0 and not (keyless[group % len(keyless)] and arena[record + COUNT] == 0)))


@inner
def has_room(net: Net, records: int, words: int) -> bool:
    """Return whether there is room for ``records`` more records with ``words`` words in total."""
    return bool(net.state[USED] + words <= len(net.arena) and 2 * (net.state[FILLED] + records) <= len(net.slots))


@inner
def key_place(state: Int64s) -> int:
    """Return the offset, in the bytes of the arena, at which the caller must put the key of the next record."""
    return int(state[USED] + HEADER) << 3


@inner
def hash_key(data: Bytes, at: int, size: int, group: int) -> int:
    """Return a hash of a group and the key ``data[at : at + size]``. All bits of the hash depend on the group and on
    the key. The hash is used only in memory."""
    value: int = wrapping_multiply(group + 1, _MULTIPLIER)
    while size >= 8:
        value = wrapping_multiply(value ^ load64(data, at), _MULTIPLIER)
        value ^= (value >> 29) & 0x7FFFFFFFF
        at += 8
        size -= 8
    tail = size
    while size > 0:
        size -= 1
        tail = tail << 8 | load8(data, at + size)
    value = wrapping_multiply(value ^ tail, _MULTIPLIER)
    value ^= (value >> 32) & _LOW_HALF
    value = wrapping_multiply(value, _MULTIPLIER)
    return value ^ ((value >> 29) & 0x7FFFFFFFF)


@inner
def _find(net: Net, group: int, key_at: int, key_bytes: int) -> tuple[int, int, int]:
    """Find the key at ``net.bytes[key_at]``. Return three numbers: the record of the key, or -1 if there is none; the
    slot of the key, or a free slot; and the hash of the key."""
    hashed = hash_key(net.bytes, key_at, key_bytes, group)
    mask = len(net.slots) - 1
    slot = hashed & mask
    tag = hashed & ~_WORD_MASK
    while net.slots[slot] != 0:
        entry = net.slots[slot]
        if (entry & ~_WORD_MASK) == tag:
            record = (entry & _WORD_MASK) - 1
            if (
                net.arena[record] == group
                and (net.arena[record + LENGTHS] >> 32) == key_bytes
                and same_bytes(net.bytes, (record + HEADER) << 3, net.bytes, key_at, key_bytes)
            ):
                return record, slot, hashed
        slot = (slot + 1) & mask
    return -1, slot, hashed


@inner
def _enter(net: Net, slot: int, record: int, hashed: int) -> None:
    net.slots[slot] = (hashed & ~_WORD_MASK) | (record + 1)
    net.state[FILLED] += 1


@inner
def touch(net: Net, group: int, key_bytes: int, data: Bytes, row_at: int, row_bytes: int, order: int) -> None:
    """Record the row before the first change of a key. Later changes of the key have no effect.

    The key must be at ``key_place``. The row before the change begins at ``data[row_at:]`` and has ``row_bytes`` bytes.
    If ``row_bytes`` is ``NO_ROW``, there was no row. The caller must have checked ``has_room``.
    """
    record = net.state[USED]
    found, slot, hashed = _find(net, group, key_place(net.state), key_bytes)
    if found >= 0:
        return
    net.arena[record] = group
    net.arena[record + LENGTHS] = key_bytes << 32 | (row_bytes + 1)
    net.arena[record + ORDER] = order
    net.arena[record + SUBORDER] = 0
    if row_bytes > 0:
        copy_bytes(net.bytes, (record + HEADER + ((key_bytes + 7) >> 3)) << 3, data, row_at, row_bytes)
    _enter(net, slot, record, hashed)
    net.state[USED] = record + record_words(key_bytes, row_bytes)


@inner
def note_last(net: Net, group: int, key_bytes: int, left: int, order: int) -> None:
    """Record that a key was changed. ``left`` is 1 if the row of the key exists after the change, and otherwise 0.

    The last call for a key counts.

    The key must be at ``key_place``. The caller must have checked ``has_room``.
    """
    record = net.state[USED]
    found, slot, hashed = _find(net, group, key_place(net.state), key_bytes)
    if found < 0:
        found = record
        net.arena[record] = group
        net.arena[record + LENGTHS] = key_bytes << 32
        _enter(net, slot, record, hashed)
        net.state[USED] = record + record_words(key_bytes, 0)
    net.arena[found + ORDER] = order
    net.arena[found + COUNT] = left


@inner
def leave(net: Net, group: int, key_bytes: int, data: Bytes, row_at: int, row_bytes: int, order: int) -> None:
    """Record the row after a change of a key. It replaces the row after earlier changes of this key. Call `touch`
    first."""
    record = net.state[USED]
    after = after_group(group)
    found, slot, hashed = _find(net, after, key_place(net.state), key_bytes)
    words = record_words(key_bytes, row_bytes)
    if found >= 0 and _next(net.arena, found) - found == words:
        record = found
    elif found >= 0:
        net.arena[found] = DEAD
        net.state[WASTED] += _next(net.arena, found) - found
        net.slots[slot] = (hashed & ~_WORD_MASK) | (record + 1)
    else:
        _enter(net, slot, record, hashed)
    if record == net.state[USED]:
        net.arena[record] = after
        net.state[USED] = record + words
    net.arena[record + LENGTHS] = key_bytes << 32 | (row_bytes + 1)
    net.arena[record + ORDER] = order
    net.arena[record + SUBORDER] = 0
    if row_bytes > 0:
        copy_bytes(net.bytes, (record + HEADER + ((key_bytes + 7) >> 3)) << 3, data, row_at, row_bytes)


@inner
def count(net: Net, group: int, row_bytes: int, change: int, order: int) -> None:
    """Record that a row of a keyless table was added (``change`` is 1) or removed (``change`` is -1).

    The row must be at ``key_place``, like the key of ``touch``. The caller must have checked ``has_room``.
    """
    record = net.state[USED]
    found, slot, hashed = _find(net, group, key_place(net.state), row_bytes)
    if found >= 0:
        net.arena[found + COUNT] += change
        return
    net.arena[record] = group
    net.arena[record + LENGTHS] = row_bytes << 32
    net.arena[record + ORDER] = order
    net.arena[record + COUNT] = change
    _enter(net, slot, record, hashed)
    net.state[USED] = record + record_words(row_bytes, 0)


@kernel
def apply_prepared(
    net: Net, start: int, stop: int, transaction: int, counts: Bytes, keyless: Bytes, order: int
) -> None:
    """Add the changes of a prepared transaction to the net changes of their tables. The records of these changes are in
    ``arena[start:stop]``.

    :param counts: for each table, whether the transaction counts for this table. If it does not count, its records for
        the table become dead.
    :param order: the order of the commit. The former order of a change becomes its suborder.

    The caller must have checked ``has_room`` for the same number of records, with 0 words.
    """
    arena = net.arena
    tables = len(counts)
    record = start
    while record < stop:
        following = _next(arena, record)
        after = arena[record] < DEAD
        table = (after_group(arena[record]) if after else arena[record]) - tables * (transaction + 1)
        if 0 <= table < tables:
            key_bytes = arena[record + LENGTHS] >> 32
            group = after_group(table) if after else table
            found, slot, hashed = _find(net, group, (record + HEADER) << 3, key_bytes)
            if counts[table] and after and found >= 0:
                # Any other transaction that changed the key ended earlier, so this row is the latest row of the key.
                net.state[WASTED] += _next(arena, found) - found
                arena[found] = DEAD
                arena[record] = group
                net.slots[slot] = (hashed & ~_WORD_MASK) | (record + 1)
            elif counts[table] and after:
                arena[record] = group
                _enter(net, slot, record, hashed)
            elif counts[table] and found < 0:
                arena[record] = table
                if not keyless[table]:
                    arena[record + SUBORDER] = arena[record + ORDER]
                arena[record + ORDER] = order
                _enter(net, slot, record, hashed)
            else:
                if counts[table] and keyless[table] and not after:
                    arena[found + COUNT] += arena[record + COUNT]
                arena[record] = DEAD
                net.state[WASTED] += following - record
        record = following


@kernel
def compact(arena: Int64s, state: Int64s, keyless: Bytes, marks: Int64s) -> None:
    """Move the records that have an effect to the front of the arena. ``marks`` has places in the arena, in ascending
    order. The function updates these places."""
    record = target = 0
    mark = 0
    while record < state[USED]:
        while mark < len(marks) and marks[mark] <= record:
            marks[mark] = target
            mark += 1
        following = _next(arena, record)
        if _matters(arena, record, keyless):
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
def rehash(net: Net) -> None:
    net.slots[:] = 0
    net.state[FILLED] = 0
    record = 0
    while record < net.state[USED]:
        if net.arena[record] != DEAD:
            key_at = (record + HEADER) << 3
            key_bytes = net.arena[record + LENGTHS] >> 32
            hashed = hash_key(net.bytes, key_at, key_bytes, net.arena[record])
            slot = hashed & (len(net.slots) - 1)
            while net.slots[slot] != 0:
                slot = (slot + 1) & (len(net.slots) - 1)
            _enter(net, slot, record, hashed)
        record = _next(net.arena, record)


@kernel
def last_rows_of(net: Net, records: Int64s, out: Int64s) -> None:
    """Find the record with the last row of each key in ``records``, and write it to ``out``. -1: the key has no such
    record."""
    for index in range(len(records)):
        record = records[index]
        key_bytes = net.arena[record + LENGTHS] >> 32
        out[index], _, _ = _find(net, after_group(net.arena[record]), (record + HEADER) << 3, key_bytes)


@kernel
def list_records(arena: Int64s, state: Int64s, keyless: Bytes, records: Int64s, groups: Int64s) -> int:
    written = 0
    record = 0
    while record < state[USED]:
        if arena[record] >= 0 and _matters(arena, record, keyless):
            if written < len(records):
                records[written] = record
                groups[written] = arena[record]
            written += 1
        record = _next(arena, record)
    return written


# The places of the values in a batch of rows. Locating the values, without decoding them, is the first step of the log
# decoders of all sources.


NULL = -1
"""The entry of ``Located.starts`` for a NULL."""

ALL_GOOD = -1
"""Return code of a kernel that decoded all values. If a value is malformed, the kernel returns the number of the row
instead."""

LARGEST = 2**31 - 1
"""Maximum size in bytes of all values of a column in one batch."""

OVERRUN = 32
"""The number of bytes after the last value that ``copy_values`` may overwrite."""


@dataclass(frozen=True)
class Located:
    """The places of the values of a batch of rows.

    ``data``
        ``uint8[::1]``; contains every located value.
    ``starts``, ``lengths``
        ``int32[columns, capacity]``. For each column, only the first ``rows`` elements count. An element of ``starts``
        is the place of the value, or ``NULL``. An element of ``lengths`` is the size of the value in bytes. The lengths
        of fixed-width values are undefined.
    ``nulls``, ``totals``
        ``int64[columns]``: for each column, the number of NULLs, and the sum of the lengths of all other values.
    """

    data: Bytes
    starts: Int32s
    lengths: Int32s
    nulls: Int64s
    totals: Int64s
    rows: int

    def validity(self, index: int) -> pa.Buffer | None:
        """Return the validity bitmap of column ``index``. None: no value of the column is NULL."""
        if not self.nulls[index]:
            return None
        validity = pa.allocate_buffer((self.rows + 7) // 8)
        _fill_validity(self.starts[index], self.rows, np.frombuffer(validity, np.uint8))
        return validity

    def array(self, index: int, arrow: pa.DataType, values: object) -> pa.Array:
        """Return column ``index`` as an Arrow array. ``values`` has the fixed-width values or bits of the column, in
        Arrow's format."""
        buffers = [self.validity(index), pa.py_buffer(values)]
        return pa.Array.from_buffers(arrow, self.rows, buffers, int(self.nulls[index]))


@kernel
def _fill_validity(starts: Int32s, rows: int, validity: Bytes) -> None:
    for byte in range(len(validity)):
        bits = 0
        for row in range(8 * byte, min(8 * byte + 8, rows)):
            if starts[row] >= 0:
                bits |= 1 << (row & 7)
        validity[byte] = bits


@kernel
def copy_values(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, offsets: Int32s, out: Bytes) -> None:
    """Copy the values, one after the other, to ``out``. The buffer ``out`` must have ``OVERRUN`` more bytes than the
    values."""
    at = 0
    offsets[0] = 0
    last = len(data) - OVERRUN
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            length = int(lengths[row])
            # Most values are short. For a short value, copying some additional bytes is faster than a call of memcpy.
            if length <= 16 and start <= last:
                store64(out, at, load64(data, start))
                store64(out, at + 8, load64(data, start + 8))
            elif length <= 32 and start <= last:
                store64(out, at, load64(data, start))
                store64(out, at + 8, load64(data, start + 8))
                store64(out, at + 16, load64(data, start + 16))
                store64(out, at + 24, load64(data, start + 24))
            else:
                copy_bytes(out, at, data, start, length)
            at += length
        offsets[row + 1] = at
