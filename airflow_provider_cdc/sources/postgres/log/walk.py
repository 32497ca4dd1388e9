"""The compiled kernel that processes the frequent pgoutput messages, without executing Python code for each message.

The kernel follows the transactions, decides by their commit positions which transactions count, and computes the net
change of the copied tables (``sources.log.netting``). The kernel leaves rare or unknown messages to the caller. For
such a message it returns ``ODD``, and ``state[AT]`` is the index of the message.

A transaction is before a position in the log if its commit record *begins* before the position. The consistent point of
a slot and the position of a snapshot that was exported with the slot are ends of records. The snapshot includes the
transactions before its position.
Formats: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html, version 1.
"""

from __future__ import annotations

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    inner,
    kernel,
    load8,
    load16be,
    load32be,
    load64be,
    same_bytes,
    store8,
    wrapping_multiply,
)
from airflow_provider_cdc.sources.log.changes import (
    SegmentChanges,
    after_place,
    change_words,
    has_room_for,
    note_change,
    note_transaction,
)
from airflow_provider_cdc.sources.log.netting import (
    HEADER,
    NO_ROW,
    Net,
    count,
    has_room,
    key_place,
    leave,
    note_last,
    touch,
)
from airflow_provider_cdc.sources.postgres.log.walk_state import (
    AT,
    BAD_COMMIT,
    BAD_LENGTH,
    BAD_TUPLE,
    BETWEEN,
    COLUMNS,
    COMMIT,
    COMMITTED,
    CONSTANT,
    COUNTS,
    DONE,
    FORWARD,
    IMAGES,
    INITIAL,
    KEYS,
    KEYS_AT,
    KEYS_ONLY,
    MARKED,
    MORE,
    NO_RELATION,
    NO_ROOM,
    NO_ROOM_FOR_CHANGES,
    NOT_READ,
    NOT_WHOLE,
    ODD,
    OPEN,
    ORDER,
    OUT_OF_PLACE,
    PHASE,
    SHAPE,
    STOP,
    TABLE_WORDS,
    TRANSACTIONS,
    UPPER,
    WANTED,
    XID,
)
from airflow_provider_cdc.sources.postgres.server.pgoutput import NULL_VALUE, TEXT_VALUE, UNCHANGED_VALUE

# Locates the values of tuples in pgoutput messages, and writes rows and keys to the buffer of the net change.
#
# A field of a tuple is a letter, followed by the value if there is one. ``places``, here and in ``walk``, has two words
# for each column of a tuple: the position of the field's letter, and the field's size in bytes.


@inner
def find_relation(relations: Int64s, oid: int) -> int:
    """Return the index in ``relations`` of the entry of an OID. If there is no entry, return the index where it would
    be inserted."""
    mask = (len(relations) >> 1) - 1
    entry: int = (wrapping_multiply(oid, 0x9E3779B1) >> 7) & mask
    while relations[2 * entry] != 0 and relations[2 * entry] != oid + 1:
        entry = (entry + 1) & mask
    return 2 * entry


@inner
def take_tuple(data: Bytes, at: int, end: int, columns: int, places: Int64s) -> int:
    """Locate the fields of a TupleData. Return the position after the TupleData, or a negated error code."""
    if end - at < 2:
        return -BAD_TUPLE
    if load16be(data, at) != columns:
        return -SHAPE
    at += 2
    for column in range(columns):
        if at >= end:
            return -BAD_TUPLE
        kind = load8(data, at)
        size = 1
        if kind == TEXT_VALUE:
            if end - at < 5:
                return -BAD_TUPLE
            size = 5 + load32be(data, at + 1)
            if size > end - at:
                return -BAD_TUPLE
        elif kind != NULL_VALUE and kind != UNCHANGED_VALUE:
            return -BAD_TUPLE
        places[2 * column] = at
        places[2 * column + 1] = size
        at += size
    return at


@inner
def has_unchanged(data: Bytes, columns: int, places: Int64s) -> bool:
    """Return whether a tuple omits a value because an UPDATE did not change the value."""
    unchanged = False
    for column in range(columns):
        unchanged |= load8(data, places[2 * column]) == UNCHANGED_VALUE
    return unchanged


@inner
def fill_in(data: Bytes, columns: int, places: Int64s, others: Int64s) -> None:
    """Fill in the values that a new row omits, with the values of the old row."""
    for column in range(columns):
        if load8(data, places[2 * column]) == UNCHANGED_VALUE:
            places[2 * column] = others[2 * column]
            places[2 * column + 1] = others[2 * column + 1]


@inner
def put_row(target: Bytes, start: int, data: Bytes, columns: int, places: Int64s) -> int:
    """Write a row to ``target`` as an image with all fields. Return the size of the image."""
    store8(target, start, columns >> 8)
    store8(target, start + 1, columns)
    at = start + 2
    for column in range(columns):
        copy_bytes(target, at, data, places[2 * column], places[2 * column + 1])
        at += places[2 * column + 1]
    return at - start


@inner
def reorder(
    data: Bytes,
    at: int,
    end: int,
    columns: int,
    orders: Int32s,
    order: int,
    constants: Bytes,
    places: Int64s,
    row: Bytes,
) -> int:
    """Write the tuples in ``data[at:end]`` to ``row``, with their fields in the table's order. Fields of columns that
    are not read become NULL. Columns that were added later get their constants.

    :returns: the size of the tuples that were written, or a negated error code.
    """
    told = int(orders[order])
    target = 0
    while at < end:
        store8(row, target, load8(data, at))
        at = take_tuple(data, at + 1, end, told, places)
        if at < 0:
            return at
        store8(row, target + 1, columns >> 8)
        store8(row, target + 2, columns)
        target += 3
        for column in range(columns):
            place = int(orders[order + 1 + column])
            if place == NOT_READ:
                store8(row, target, NULL_VALUE)
                target += 1
            elif place < NOT_READ:
                constant = CONSTANT - place
                size = 5 + load32be(constants, constant + 1)
                copy_bytes(row, target, constants, constant, size)
                target += size
            else:
                copy_bytes(row, target, data, places[2 * place], places[2 * place + 1])
                target += places[2 * place + 1]
    return target


@inner
def put_key(net: Net, data: Bytes, places: Int64s, key_columns: Int32s, keys_at: int, keys: int) -> int:
    """Write a key to ``net``, as an image of the key columns. Return the image's size. -1: a key column is NULL."""
    target = key_place(net.state)
    store8(net.bytes, target, keys >> 8)
    store8(net.bytes, target + 1, keys)
    at = target + 2
    for key in range(keys):
        column = key_columns[keys_at + key]
        start, size = places[2 * column], places[2 * column + 1]
        if load8(data, start) != TEXT_VALUE:
            return -1
        copy_bytes(net.bytes, at, data, start, size)
        at += size
    return at - target


@inner
def same_key(data: Bytes, places: Int64s, others: Int64s, key_columns: Int32s, keys_at: int, keys: int) -> bool:
    for key in range(keys):
        column = key_columns[keys_at + key]
        at, other, size = places[2 * column], others[2 * column], places[2 * column + 1]
        if others[2 * column + 1] != size or not same_bytes(data, at, data, other, size):
            return False
    return True


_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE = 0x42, 0x43, 0x49, 0x55, 0x44
_ORIGIN, _TYPE, _MESSAGE = 0x4F, 0x59, 0x4D
_OLD, _KEY, _NEW = 0x4F, 0x4B, 0x4E
_BEGIN_BYTES, _COMMIT_BYTES, _LEAST_MESSAGE_BYTES = 21, 26, 15
_EPOCH = 946_684_800_000_000
"""Microseconds from 1970 to 2000. PostgreSQL counts times from 2000."""

_ROW_SLACK = 2 * HEADER + 8
MOST_RECORDS = 4
"""Maximum number of records that one row change adds: the old state of two keys and, for tables that are rolled
forward, also the new state of both keys."""


@inner
def _net_change(
    data: Bytes,
    kind: int,
    at: int,
    end: int,
    state: Int64s,
    table: int,
    tables: Int64s,
    key_columns: Int32s,
    places: Int64s,
    new_places: Int64s,
    net: Net,
    changes: SegmentChanges,
) -> int:
    """Add the row change in ``data[at:end]`` to the net change. If single changes are needed, also record this change.

    In the message, the row change comes after the OID of the relation. On success, return MORE.
    """
    info = table * TABLE_WORDS
    columns, keys_at, keys = tables[info + COLUMNS], tables[info + KEYS_AT], tables[info + KEYS]
    forward = tables[info + FORWARD] != 0
    old = old_end = -1
    if at >= end:
        return BAD_LENGTH
    tag = load8(data, at)
    if kind != _INSERT:
        if tag == _KEY or (tag == _NEW and kind == _UPDATE):
            return NOT_WHOLE
        if tag != _OLD:
            return BAD_TUPLE
        old = at + 1
        old_end = at = take_tuple(data, old, end, columns, places)
        if at < 0:
            return -at
        if has_unchanged(data, columns, places):
            return NOT_WHOLE
    new = -1
    if kind != _DELETE:
        if at >= end or load8(data, at) != _NEW:
            return BAD_TUPLE
        new = at + 1
        at = take_tuple(data, new, end, columns, new_places)
        if at < 0:
            return -at
        if has_unchanged(data, columns, new_places):
            if old < 0:
                return BAD_TUPLE
            fill_in(data, columns, new_places, places)
    if at != end:
        return BAD_LENGTH

    # This is an upper bound for the size. The values of the old row may be written three times: as the old row, as its
    # key, and as unchanged values of the new row or its key. The new row is written once.
    span = end - (old if old >= 0 else new)
    words = _ROW_SLACK + ((3 * span) >> 3)
    if forward:
        # Reserve additional room for the new row, and for a second copy of both keys.
        words *= 2
    if not has_room(net, MOST_RECORDS, words):
        state[WANTED] = words
        return NO_ROOM
    each = tables[info + FORWARD] > 1
    # Values that the new row takes from the old row are written twice, once in each row.
    if each and not has_room_for(changes, change_words(2 * span)):
        state[WANTED] = change_words(2 * span)
        return NO_ROOM_FOR_CHANGES
    state[ORDER] += 1
    if each:
        note_transaction(changes, state[COMMIT], state[COMMIT], state[COMMITTED])
        before_bytes = old_end - old if old >= 0 else -1
        after_bytes, place = -1, after_place(changes, before_bytes)
        if new >= 0:
            after_bytes = put_row(changes.bytes, place, data, columns, new_places)
        note_change(changes, table, -1, state[ORDER], data, old, before_bytes, changes.bytes, place, after_bytes)
    if keys == 0:
        if old >= 0:
            copy_bytes(net.bytes, key_place(net.state), data, old, old_end - old)
            count(net, table, old_end - old, -1, state[ORDER])
        if new >= 0:
            size = put_row(net.bytes, key_place(net.state), data, columns, new_places)
            count(net, table, size, 1, state[ORDER])
    else:
        same = old >= 0 and new >= 0 and same_key(data, places, new_places, key_columns, keys_at, keys)
        if old >= 0:
            size = put_key(net, data, places, key_columns, keys_at, keys)
            if size < 0:
                return SHAPE
            touch(net, table, size, data, old, old_end - old, state[ORDER])
            if forward and not same:
                size = put_key(net, data, places, key_columns, keys_at, keys)
                leave(net, table, size, data, 0, NO_ROW, state[ORDER])
        if new >= 0 and not same:
            size = put_key(net, data, new_places, key_columns, keys_at, keys)
            if size < 0:
                return SHAPE
            touch(net, table, size, data, 0, NO_ROW, state[ORDER])
        if new >= 0 and forward:
            size = put_key(net, data, new_places, key_columns, keys_at, keys)
            # The new row may contain values of the old row. Assemble the row directly at its final place.
            row = key_place(net.state) + ((size + 7) >> 3 << 3)
            row_bytes = put_row(net.bytes, row, data, columns, new_places)
            leave(net, table, size, net.bytes, row, row_bytes, state[ORDER])
    state[IMAGES] += 1 if old < 0 or new < 0 else 2
    return MORE


@inner
def _net_keys(
    data: Bytes,
    kind: int,
    at: int,
    end: int,
    state: Int64s,
    table: int,
    tables: Int64s,
    key_columns: Int32s,
    places: Int64s,
    new_places: Int64s,
    net: Net,
) -> int:
    """Add a row change to the net change, for a table of which only keys are read. `_net_change` is for other tables.

    An UPDATE has the old key only if it changes the key, or if the new row omits a value of the key.
    """
    info = table * TABLE_WORDS
    columns, keys_at, keys = tables[info + COLUMNS], tables[info + KEYS_AT], tables[info + KEYS]
    start = at
    old = new = False
    if at >= end:
        return BAD_LENGTH
    if kind != _INSERT and load8(data, at) in (_OLD, _KEY):
        old = True
        at = take_tuple(data, at + 1, end, columns, places)
        if at < 0:
            return -at
    elif kind == _DELETE:
        return BAD_TUPLE
    if kind != _DELETE:
        if at >= end or load8(data, at) != _NEW:
            return BAD_TUPLE
        new = True
        at = take_tuple(data, at + 1, end, columns, new_places)
        if at < 0:
            return -at
        if old:
            fill_in(data, columns, new_places, places)
    if at != end:
        return BAD_LENGTH
    words = _ROW_SLACK + ((2 * (end - start)) >> 3)
    if not has_room(net, 2, words):
        state[WANTED] = words
        return NO_ROOM
    state[ORDER] += 1
    if old:
        size = put_key(net, data, places, key_columns, keys_at, keys)
        if size < 0:
            return SHAPE
        note_last(net, table, size, 0, state[ORDER])
    if new:
        size = put_key(net, data, new_places, key_columns, keys_at, keys)
        if size < 0:
            return SHAPE
        note_last(net, table, size, 1, state[ORDER])
    state[IMAGES] += 1 if not old or not new else 2
    return MORE


@kernel
def walk(
    data: Bytes,
    ends: Int32s,
    state: Int64s,
    relations: Int64s,
    orders: Int32s,
    constants: Bytes,
    row: Bytes,
    tables: Int64s,
    key_columns: Int32s,
    places: Int64s,
    new_places: Int64s,
    net: Net,
    changes: SegmentChanges,
) -> int:
    """Process the messages from number ``state[AT]`` on. Stop at a message that the caller must handle.

    :param ends: the position in ``data`` at which each message begins, followed by the end of the last message. The
        positions increase, and are within ``data``.
    :param constants: the fields of columns in tuples from before they were added.
    :param row: buffer for rows whose columns are in another order, are not all read, or were added later. If there are
        such rows, the buffer has room for the longest message, plus one byte for each column of two rows, plus the
        constants of two rows.
    :param places, new_places: work arrays, ``int64[2 * columns]`` for the largest number of columns of any tuple.
    :returns: a code of ``walk_state``.
    """
    while state[AT] < len(ends) - 1:
        at, end = int(ends[state[AT]]), int(ends[state[AT] + 1])
        if at >= end:
            return BAD_LENGTH
        kind = load8(data, at)
        if kind == _BEGIN:
            if end - at != _BEGIN_BYTES:
                return BAD_LENGTH
            if state[PHASE] != BETWEEN:
                return OUT_OF_PLACE
            commit = load64be(data, at + 1)
            # The server sends transactions in the order of their commit records, so the positions must increase.
            if commit <= state[COMMIT]:
                return BAD_COMMIT
            if commit >= state[STOP]:
                return DONE
            state[COMMIT] = commit
            state[COMMITTED] = load64be(data, at + 9) + _EPOCH
            state[XID] = load32be(data, at + 17)
            state[COUNTS] = 1 if commit >= state[INITIAL] else 0
            state[TRANSACTIONS] += state[COUNTS]
            state[PHASE] = OPEN
        elif kind == _COMMIT:
            if end - at != _COMMIT_BYTES:
                return BAD_LENGTH
            if state[PHASE] != OPEN:
                return OUT_OF_PLACE
            if load8(data, at + 1) != 0 or load64be(data, at + 2) != state[COMMIT]:
                return BAD_COMMIT
            state[PHASE] = BETWEEN
        elif kind in (_INSERT, _UPDATE, _DELETE):
            if state[PHASE] != OPEN:
                return OUT_OF_PLACE
            if end - at < 6:
                return BAD_LENGTH
            entry = find_relation(relations, load32be(data, at + 1))
            if relations[entry] == 0:
                return NO_RELATION
            table = relations[entry + 1] & 0xFFFFFFFF
            order = (relations[entry + 1] >> 32) - 1
            if relations[entry + 1] >= 0 and state[COUNTS] and state[COMMIT] < tables[table * TABLE_WORDS + UPPER]:
                change, start, stop = data, at + 5, end
                if order >= 0:
                    columns = tables[table * TABLE_WORDS + COLUMNS]
                    stop = reorder(data, start, end, columns, orders, order, constants, places, row)
                    if stop < 0:
                        return -stop
                    change, start = row, 0
                if tables[table * TABLE_WORDS + KEYS_ONLY]:
                    code = _net_keys(
                        change, kind, start, stop, state, table, tables, key_columns, places, new_places, net
                    )
                else:
                    code = _net_change(
                        change, kind, start, stop, state, table, tables, key_columns, places, new_places, net, changes
                    )
                if code != MORE:
                    return code
        elif kind in (_ORIGIN, _TYPE):
            if state[PHASE] != OPEN:
                return OUT_OF_PLACE
        elif kind == _MESSAGE:
            # A message that an application wrote to the log changes no rows, and may occur anywhere.
            if end - at < _LEAST_MESSAGE_BYTES:
                return BAD_LENGTH
            if load64be(data, at + 2) >= state[MARKED]:
                return ODD
        else:
            return ODD
        state[AT] += 1
    return MORE
