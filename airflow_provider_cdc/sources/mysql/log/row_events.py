"""The kernel that parses row events and adds their rows to the net change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    inner,
    kernel,
    load8,
    load16,
    same_bytes,
    store8,
)
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.log.changes import (
    NAME_BYTES,
    SegmentChanges,
    change_words,
    has_room_for,
    note_change,
    note_transaction,
)
from airflow_provider_cdc.sources.log.netting import HEADER, NO_ROW, Net, count, has_room, key_place, leave, touch
from airflow_provider_cdc.sources.mysql.decode.images import ImageLayout, image_layout, skip_image
from airflow_provider_cdc.sources.mysql.log.commits import SetArrays, set_arrays
from airflow_provider_cdc.sources.mysql.log.walk_state import (
    AT,
    BAD_ROWS,
    CASCADES,
    COLUMNS,
    COLUMNS_AT,
    COMMITTED,
    DIFFERENCES,
    FORWARD,
    IMAGES,
    JSON_COLUMNS,
    KEYS,
    KEYS_AT,
    LOOKED_AT,
    MORE,
    NO_ROOM,
    NO_ROOM_FOR_CHANGES,
    NOT_WHOLE,
    NUMBER,
    ORDER,
    ROW,
    SERIAL,
    SHAPE,
    TABLE_WORDS,
    TRACKED,
    UPPER,
    WANTED,
    XA,
)
from airflow_provider_cdc.sources.mysql.server.log_protocol import (
    DELETE_ROWS,
    DELETE_ROWS_V1,
    HEADER_BYTES,
    LOGS_CASCADES,
    NO_FOREIGN_KEYS,
    PARTIAL_UPDATE_ROWS,
    ROWS_POST_HEADER_BYTES_V1,
    TABLE_NUMBER_BYTES,
    TWO_BYTES_FOLLOW,
    WRITE_ROWS,
    WRITE_ROWS_V1,
)
from airflow_provider_cdc.sources.mysql.tables.types import Family, column_types

# Layouts of the copied tables and of their parents (through foreign keys), as arrays for the kernels.


class TableArrays(NamedTuple):
    """Layouts of several tables. ``words`` has an entry for each table (see ``walk_state``), which refers to the other
    arrays by index."""

    words: Int64s
    prefixes: Int32s
    widths: Int32s
    slots: Int32s
    key_prefixes: Int32s


@dataclass(frozen=True)
class Layouts:
    """``tables`` are the copied tables. ``parents`` are the parents whose changes reach copied tables through foreign
    keys. ``keyless`` has one ``uint8`` for each copied table. ``most_keys`` is the largest number of key columns of any
    of these tables."""

    tables: TableArrays
    parents: TableArrays
    keyless: Bytes
    most_keys: int
    sets: SetArrays


def parents_of(tracked: Sequence[TrackedTable]) -> list[TrackedTable]:
    """Return the parents whose cascades to a copied table are not logged; no parent occurs twice.

    The key of each parent consists of all its referenced columns. These columns must not change until all tables that
    the parent's changes reach have been read.
    """
    reached: dict[TableName, list[TrackedTable]] = defaultdict(list)
    parents: dict[TableName, Table] = {}
    for tracked_table in tracked:
        for parent in tracked_table.table.cascades_from:
            reached[parent.name].append(tracked_table)
            tracked_parent = parents.get(parent.name, parent)
            key = tuple(column.name for column in parent.columns if column.name in {*tracked_parent.key, *parent.key})
            parents[parent.name] = replace(parent, key=key)
    return [TrackedTable(-1, parent, _last(reached[name])) for name, parent in parents.items()]


def layouts(tracked: Sequence[TrackedTable], parents: Sequence[TrackedTable], initial: GtidSet) -> Layouts:
    """Return the layouts of ``tracked`` and ``parents``. Set 0 of ``sets`` is ``initial``; the other sets are the
    bounds of tables."""
    sets = [initial]
    return Layouts(
        _arrays(tracked, sets),
        _arrays(parents, sets),
        np.array([tracked_table.table.keyless for tracked_table in tracked], np.uint8),
        max((len(tracked_table.table.key) for tracked_table in [*tracked, *parents]), default=0),
        set_arrays(sets),
    )


def _last(children: Sequence[TrackedTable]) -> GtidSet | None:
    """Return the last of the positions at which the tables were read. None: one of the tables was not read at a
    position."""
    uppers = [GtidSet.expect(child.upper) for child in children if child.upper is not None]
    return reduce(or_, uppers) if len(uppers) == len(children) else None


def _number(sets: list[GtidSet], wanted: GtidSet) -> int:
    """Return the index of the bound ``wanted`` in ``sets``. If the bound is new, append it to ``sets``. The index is
    never 0."""
    if wanted not in sets[1:]:
        sets.append(wanted)
    return sets.index(wanted, 1)


def _arrays(tables: Sequence[TrackedTable], sets: list[GtidSet]) -> TableArrays:
    """Lay out tables, and add their bounds to ``sets``."""
    each = [image_layout(tracked_table.table) for tracked_table in tables]
    words = np.zeros(TABLE_WORDS * len(tables), np.int64)
    columns_at = keys_at = 0
    for index, (tracked_table, layout) in enumerate(zip(tables, each, strict=True)):
        row = words[TABLE_WORDS * index : TABLE_WORDS * (index + 1)]
        row[COLUMNS_AT], row[COLUMNS] = columns_at, len(layout.widths)
        row[KEYS_AT], row[KEYS] = keys_at, layout.keys
        row[JSON_COLUMNS] = sum(column.family is Family.JSON for column in column_types(tracked_table.table))
        row[UPPER] = _number(sets, GtidSet.expect(tracked_table.known_upper())) if tracked_table.bounded else 0
        row[FORWARD] = tracked_table.forward + (tracked_table.forward and tracked_table.changes)
        row[LOOKED_AT] = tracked_table.looked_at
        columns_at += len(layout.widths)
        keys_at += layout.keys
    return TableArrays(
        words,
        _joined([layout.prefixes for layout in each]),
        _joined([layout.widths for layout in each]),
        _joined([layout.slots for layout in each]),
        _joined([_key_prefixes(layout) for layout in each]),
    )


def _key_prefixes(layout: ImageLayout) -> Int32s:
    prefixes: Int32s = np.zeros(layout.keys, np.int32)
    keys = layout.slots >= 0
    prefixes[layout.slots[keys]] = layout.prefixes[keys]
    return prefixes


def _joined(arrays: list[Int32s]) -> Int32s:
    return np.concatenate([np.zeros(0, np.int32), *arrays])


_ROW_SLACK = 2 * HEADER + 8
MOST_RECORDS = 4
"""The maximum number of records that one row change can add. A row change may touch two keys. For each key, it adds the
row before the change and, in tables that are rolled forward, the row after the change."""


class KeyRanges(NamedTuple):
    """Work arrays that `skip_image` fills with the offsets of key column values. Each array is ``int64[2 * keys]``,
    where ``keys`` is the largest number of key columns of any table."""

    before: Int64s
    after: Int64s


@inner
def is_rows(kind: int) -> bool:
    """Return whether events of this type contain rows."""
    return (
        (kind >= WRITE_ROWS_V1 and kind <= DELETE_ROWS_V1)
        or (kind >= WRITE_ROWS and kind <= DELETE_ROWS)
        or kind == PARTIAL_UPDATE_ROWS
    )


@inner
def _writes(kind: int) -> bool:
    return kind in (WRITE_ROWS, WRITE_ROWS_V1)


@inner
def _deletes(kind: int) -> bool:
    return kind in (DELETE_ROWS, DELETE_ROWS_V1)


@inner
def hides_cascades(data: Bytes, body: int, kind: int) -> bool:
    """Return whether foreign keys were applied to the rows of a row event, but their effects were not logged.

    The result is meaningful only in the log of a server that logs the effects of foreign keys. Other servers do not set
    the flags that this function tests.
    """
    return not _writes(kind) and load16(data, body + TABLE_NUMBER_BYTES) & (NO_FOREIGN_KEYS | LOGS_CASCADES) == 0


@inner
def _full(data: Bytes, at: int, columns: int) -> bool:
    """Return whether the first ``columns`` bits of a bitmap are all set."""
    for byte in range(columns >> 3):
        if load8(data, at + byte) != 0xFF:
            return False
    rest = (1 << (columns & 7)) - 1
    return rest == 0 or load8(data, at + (columns >> 3)) & rest == rest


@inner
def _put_key(
    bytes_: Bytes, target: int, data: Bytes, ranges: Int64s, key_prefixes: Int32s, keys_at: int, keys: int
) -> int:
    """Write a key at ``bytes_[target]`` as a separate image: a bitmap, followed by the fields in key order. Return its
    size, or -1 if a key column is NULL."""
    at = target
    for _ in range((keys + 7) >> 3):
        store8(bytes_, at, 0)
        at += 1
    for key in range(keys):
        start = ranges[2 * key]
        if start < 0:
            return -1
        start -= key_prefixes[keys_at + key]
        size = ranges[2 * key + 1] - start
        copy_bytes(bytes_, at, data, start, size)
        at += size
    return at - target


@inner
def _same_key(data: Bytes, before: Int64s, after: Int64s, keys: int) -> bool:
    for key in range(0, 2 * keys, 2):
        start, other = before[key], after[key]
        size = before[key + 1] - start
        if (start < 0) != (other < 0) or after[key + 1] - other != size:
            return False
        if not same_bytes(data, start, data, other, size):
            return False
    return True


@inner
def _first_row(data: Bytes, kind: int, event: int, body_end: int, columns: int) -> int:
    """Return the offset of the first row in the row event at ``event``. If the row images do not contain all
    ``columns``, or if the event is damaged, return the negated error code."""
    at = event + HEADER_BYTES + ROWS_POST_HEADER_BYTES_V1
    if kind > DELETE_ROWS_V1:
        if at + 2 > body_end:
            return -BAD_ROWS
        extra = load16(data, at)
        if extra < 2:
            return -BAD_ROWS
        at += extra
    if at + 3 > body_end:
        return -BAD_ROWS
    width = load8(data, at)
    at += 1
    if width == TWO_BYTES_FOLLOW:
        width = load16(data, at)
        at += 2
    elif width > TWO_BYTES_FOLLOW:
        return -BAD_ROWS
    if width != columns:
        return -SHAPE
    bitmap = (columns + 7) >> 3
    bitmaps = bitmap if _writes(kind) or _deletes(kind) else 2 * bitmap
    if at + bitmaps > body_end:
        return -BAD_ROWS
    if not _full(data, at, columns) or not _full(data, at + bitmaps - bitmap, columns):
        return -NOT_WHOLE
    return at + bitmaps


@inner
def _take_options(data: Bytes, at: int, body_end: int, json_columns: int) -> tuple[int, bool]:
    """Skip the data between the two images of a partial update. Return the offset of the second image, or the negated
    error code. Also return whether the second image contains differences instead of values."""
    if at >= body_end:
        return -BAD_ROWS, False
    options = load8(data, at)
    at += 1
    if options > 1:
        return -NOT_WHOLE, False
    diffs = False
    if options:
        marks = (json_columns + 7) >> 3
        if at + marks > body_end:
            return -BAD_ROWS, False
        for byte in range(marks):
            if load8(data, at + byte):
                diffs = True
        at += marks
    return at, diffs


@kernel
def keeps_keys(
    data: Bytes, kind: int, body_end: int, state: Int64s, parent: int, parents: TableArrays, ranges: KeyRanges
) -> int:
    """Check the row event of a parent at ``state[AT]``. Return MORE if the event changes no referenced column and
    deletes no row. Return CASCADES if it does, or the code of another problem."""
    info = parent * TABLE_WORDS
    columns, first, keys = parents.words[info + COLUMNS], parents.words[info + COLUMNS_AT], parents.words[info + KEYS]
    at = _first_row(data, kind, state[AT], body_end, columns)
    if at < 0:
        return -at
    if _writes(kind):
        return MORE
    if _deletes(kind):
        return CASCADES
    prefixes = parents.prefixes[first : first + columns]
    widths = parents.widths[first : first + columns]
    slots = parents.slots[first : first + columns]
    before, after = ranges.before, ranges.after
    while at < body_end:
        at = skip_image(data, at, body_end, prefixes, widths, slots, before)
        if at < 0:
            return BAD_ROWS
        if kind == PARTIAL_UPDATE_ROWS:
            at, _ = _take_options(data, at, body_end, parents.words[info + JSON_COLUMNS])
            if at < 0:
                return -at
        at = skip_image(data, at, body_end, prefixes, widths, slots, after)
        if at < 0:
            return BAD_ROWS
        if not _same_key(data, before, after, keys):
            return CASCADES
    return MORE


@kernel
def net_rows(
    data: Bytes,
    kind: int,
    body_end: int,
    state: Int64s,
    tsid: Bytes,
    table: int,
    tables: TableArrays,
    ranges: KeyRanges,
    net: Net,
    changes: SegmentChanges,
) -> int:
    """Add the rows of the event at ``state[AT]`` to the net change of ``table``. If single changes are wanted, also
    record each row change. Return MORE on success."""
    event = state[AT]
    info = table * TABLE_WORDS
    columns, first = tables.words[info + COLUMNS], tables.words[info + COLUMNS_AT]
    keys_at, keys = tables.words[info + KEYS_AT], tables.words[info + KEYS]
    writes = _writes(kind)
    deletes = _deletes(kind)
    looked_at = tables.words[info + LOOKED_AT]
    if looked_at > 1:
        return MORE

    at = _first_row(data, kind, event, body_end, columns)
    if at < 0:
        return -at
    if looked_at:
        # Assume that the rows of the event contain JSON differences. To know this exactly, the kernel would have to
        # parse each row.
        return DIFFERENCES if kind == PARTIAL_UPDATE_ROWS else MORE
    if state[ROW]:
        at = event + state[ROW]

    group = table
    if state[XA] >= 0:
        group += len(tables.words) // TABLE_WORDS * (state[XA] + 1)
    prefixes = tables.prefixes[first : first + columns]
    widths = tables.widths[first : first + columns]
    slots = tables.slots[first : first + columns]
    # Take the arrays from the tuples outside the loop, because each such access updates a reference count.
    key_prefixes, bytes_, net_state = tables.key_prefixes, net.bytes, net.state
    before_ranges, after_ranges = ranges.before, ranges.after
    json_columns = tables.words[info + JSON_COLUMNS]
    forward = tables.words[info + FORWARD] != 0
    each = tables.words[info + FORWARD] > 1
    while at < body_end:
        row = at
        before = before_end = after = after_end = -1
        diffs = False
        if not writes:
            before = at
            at = skip_image(data, at, body_end, prefixes, widths, slots, before_ranges)
            if at < 0:
                return BAD_ROWS
            before_end = at
        if kind == PARTIAL_UPDATE_ROWS:
            at, diffs = _take_options(data, at, body_end, json_columns)
            if at < 0:
                return -at
        if not deletes:
            after = at
            at = skip_image(data, at, body_end, prefixes, widths, slots, after_ranges)
            if at < 0:
                return BAD_ROWS
            after_end = at
        words = _ROW_SLACK + ((at - row) >> 2)
        if forward:
            words *= 2
        if not has_room(net, MOST_RECORDS, words):
            state[ROW] = row - event
            state[WANTED] = words
            return NO_ROOM
        if each and not has_room_for(changes, change_words(at - row)):
            state[ROW] = row - event
            state[WANTED] = change_words(at - row)
            return NO_ROOM_FOR_CHANGES
        state[ORDER] += 1
        if keys == 0:
            if before >= 0:
                copy_bytes(bytes_, key_place(net_state), data, before, before_end - before)
                count(net, group, before_end - before, -1, state[ORDER])
            if after >= 0:
                if diffs:
                    return DIFFERENCES
                copy_bytes(bytes_, key_place(net_state), data, after, after_end - after)
                count(net, group, after_end - after, 1, state[ORDER])
        else:
            if forward and after >= 0 and diffs:
                return DIFFERENCES
            same = before >= 0 and after >= 0 and _same_key(data, before_ranges, after_ranges, keys)
            if before >= 0:
                size = _put_key(bytes_, key_place(net_state), data, before_ranges, key_prefixes, keys_at, keys)
                if size < 0:
                    return SHAPE
                touch(net, group, size, data, before, before_end - before, state[ORDER])
                if forward and not same:
                    size = _put_key(bytes_, key_place(net_state), data, before_ranges, key_prefixes, keys_at, keys)
                    leave(net, group, size, data, 0, NO_ROW, state[ORDER])
            if after >= 0 and not same:
                size = _put_key(bytes_, key_place(net_state), data, after_ranges, key_prefixes, keys_at, keys)
                if size < 0:
                    return SHAPE
                touch(net, group, size, data, 0, NO_ROW, state[ORDER])
            if forward and after >= 0:
                size = _put_key(bytes_, key_place(net_state), data, after_ranges, key_prefixes, keys_at, keys)
                leave(net, group, size, data, after, after_end - after, state[ORDER])
        if each:
            name = note_transaction(changes, state[SERIAL], state[NUMBER], state[COMMITTED])
            if name >= 0:
                copy_bytes(changes.names, name, tsid, 0, NAME_BYTES)
            before_bytes = before_end - before if before >= 0 else -1
            after_bytes = after_end - after if after >= 0 else -1
            order = state[ORDER]
            note_change(changes, table, state[XA], order, data, before, before_bytes, data, after, after_bytes)
        state[TRACKED] += 1
        state[IMAGES] += 1 if before < 0 or after < 0 else 2
    state[ROW] = 0
    return MORE
