"""Locates the values of tuples in pgoutput messages, and writes rows and keys to the buffer of the net change.

A field of a tuple is a letter, followed by the value if there is one. ``places``, here and in ``walk``, has two words
for each column of a tuple: the position of the field's letter, and the field's size in bytes."""

from __future__ import annotations

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    inner,
    load8,
    load16be,
    load32be,
    same_bytes,
    store8,
    wrapping_multiply,
)
from airflow_provider_cdc.sources.log.netting import Net, key_place
from airflow_provider_cdc.sources.postgres.log.walk_state import BAD_TUPLE, CONSTANT, NOT_READ, SHAPE
from airflow_provider_cdc.sources.postgres.server.pgoutput import NULL_VALUE, TEXT_VALUE, UNCHANGED_VALUE


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
