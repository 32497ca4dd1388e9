"""The kernel that takes row events apart and nets their rows."""

from __future__ import annotations

from airflow_provider_cdc.core.kernel import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    inner,
    kernel,
    load8,
    load16,
    load64,
    store8,
)
from airflow_provider_cdc.sources.mysql.decode.images import skip_image
from airflow_provider_cdc.sources.mysql.log.walk_state import (
    AT,
    BAD_ROWS,
    COLUMNS,
    COLUMNS_AT,
    IMAGES,
    JSON_COLUMNS,
    KEYS,
    KEYS_AT,
    MORE,
    NO_ROOM,
    NOT_WHOLE,
    ORDER,
    ROW,
    SHAPE,
    TABLE_WORDS,
    TRACKED,
    WANTED,
    XA,
)
from airflow_provider_cdc.sources.netting import HEADER, USED, count, has_room, touch

_HEADER_BYTES = 19
_ROW_SLACK = 2 * HEADER + 8


@inner
def equal(data: Bytes, at: int, other: Bytes, other_at: int, size: int) -> bool:
    index = 0
    while index + 8 <= size:
        if load64(data, at + index) != load64(other, other_at + index):
            return False
        index += 8
    while index < size:
        if load8(data, at + index) != load8(other, other_at + index):
            return False
        index += 1
    return True


@inner
def _full(data: Bytes, at: int, columns: int) -> bool:
    """Whether a bitmap has all its ``columns`` bits set."""
    for byte in range(columns >> 3):
        if load8(data, at + byte) != 0xFF:
            return False
    rest = (1 << (columns & 7)) - 1
    return rest == 0 or load8(data, at + (columns >> 3)) & rest == rest


@inner
def _put_key(
    bytes_: Bytes, target: int, data: Bytes, ranges: Int64s, key_prefixes: Int32s, keys_at: int, keys: int
) -> int:
    """Write a key as an image of its own (bitmap, fields in key order) at ``bytes_[target]``; its size, or -1: a
    NULL."""
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
def _same_key(data: Bytes, ranges: Int64s, other: Int64s, keys: int) -> bool:
    for key in range(keys):
        size = ranges[2 * key + 1] - ranges[2 * key]
        if other[2 * key + 1] - other[2 * key] != size:
            return False
        if not equal(data, ranges[2 * key], data, other[2 * key], size):
            return False
    return True


@kernel
def net_rows(
    data: Bytes,
    kind: int,
    body_end: int,
    state: Int64s,
    table: int,
    tables: Int64s,
    prefixes: Int32s,
    widths: Int32s,
    slots: Int32s,
    key_prefixes: Int32s,
    ranges: Int64s,
    after_ranges: Int64s,
    arena: Int64s,
    bytes_: Bytes,
    hash_slots: Int64s,
    net_state: Int64s,
) -> int:
    """Net the rows of the event at ``state[AT]``, which are of ``table``; MORE stands for success."""
    event = state[AT]
    info = table * TABLE_WORDS
    columns = tables[info + COLUMNS]
    first = tables[info + COLUMNS_AT]
    keys_at = tables[info + KEYS_AT]
    keys = tables[info + KEYS]
    writes = kind == 23 or kind == 30
    deletes = kind == 25 or kind == 32
    partial = kind == 39

    at = event + _HEADER_BYTES + 8
    if kind >= 30:
        if at + 2 > body_end:
            return BAD_ROWS
        extra = load16(data, at)
        if extra < 2:
            return BAD_ROWS
        at += extra
    if at + 3 > body_end:
        return BAD_ROWS
    width = load8(data, at)
    at += 1
    if width == 252:
        width = load16(data, at)
        at += 2
    elif width > 252:
        return BAD_ROWS
    if width != columns:
        return SHAPE
    bitmap = (columns + 7) >> 3
    bitmaps = bitmap if writes or deletes else 2 * bitmap
    if at + bitmaps > body_end:
        return BAD_ROWS
    if not _full(data, at, columns) or not _full(data, at + bitmaps - bitmap, columns):
        return NOT_WHOLE
    at += bitmaps
    if state[ROW]:
        at = event + state[ROW]

    group = table
    if state[XA] >= 0:
        group += len(tables) // TABLE_WORDS * (state[XA] + 1)
    prefixes = prefixes[first : first + columns]
    widths = widths[first : first + columns]
    slots = slots[first : first + columns]
    while at < body_end:
        row = at
        before = before_end = after = after_end = -1
        diffs = False
        if not writes:
            before = at
            at = skip_image(data, at, body_end, prefixes, widths, slots, ranges)
            if at < 0:
                return BAD_ROWS
            before_end = at
        if partial:
            if at >= body_end:
                return BAD_ROWS
            options = load8(data, at)
            at += 1
            if options > 1:
                return NOT_WHOLE
            if options:
                marks = (tables[info + JSON_COLUMNS] + 7) >> 3
                if at + marks > body_end:
                    return BAD_ROWS
                for byte in range(marks):
                    if load8(data, at + byte):
                        diffs = True
                at += marks
        if not deletes:
            after = at
            at = skip_image(data, at, body_end, prefixes, widths, slots, after_ranges)
            if at < 0:
                return BAD_ROWS
            after_end = at
        words = _ROW_SLACK + ((at - row) >> 2)
        if not has_room(arena, hash_slots, net_state, 2, words):
            state[ROW] = row - event
            state[WANTED] = words
            return NO_ROOM
        state[ORDER] += 1
        if keys == 0:
            if before >= 0:
                size = before_end - before
                copy_bytes(bytes_, (net_state[USED] + HEADER) << 3, data, before, size)
                count(arena, bytes_, hash_slots, net_state, group, size, -1, state[ORDER])
            if after >= 0:
                if diffs:
                    return NOT_WHOLE
                size = after_end - after
                copy_bytes(bytes_, (net_state[USED] + HEADER) << 3, data, after, size)
                count(arena, bytes_, hash_slots, net_state, group, size, 1, state[ORDER])
        else:
            if before >= 0:
                target = (net_state[USED] + HEADER) << 3
                size = _put_key(bytes_, target, data, ranges, key_prefixes, keys_at, keys)
                if size < 0:
                    return SHAPE
                touch(
                    arena, bytes_, hash_slots, net_state, group, size, data, before, before_end - before, state[ORDER]
                )
            if after >= 0 and (before < 0 or not _same_key(data, ranges, after_ranges, keys)):
                target = (net_state[USED] + HEADER) << 3
                size = _put_key(bytes_, target, data, after_ranges, key_prefixes, keys_at, keys)
                if size < 0:
                    return SHAPE
                touch(arena, bytes_, hash_slots, net_state, group, size, data, 0, -1, state[ORDER])
        state[TRACKED] += 1
        state[IMAGES] += 1 if before < 0 or after < 0 else 2
    state[ROW] = 0
    return MORE
