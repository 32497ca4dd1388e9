"""Arrow arrays from the values of a COPY in binary: the very arrays that ADBC makes of the same values.

So what follows (``columns.finish``) is the same for both. The formats are those of the types' send functions: numbers
big-endian, days and microseconds counted from 2000-01-01.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.kernel import (
    Bytes,
    Int32s,
    copy_bytes,
    kernel,
    load8,
    load16be,
    load32be,
    load64be,
    store16,
    store32,
    store64,
)
from airflow_provider_cdc.sources.located import ALL_GOOD, LARGEST, OVERRUN, Located, copy_values
from airflow_provider_cdc.sources.postgres.image_cells import texts
from airflow_provider_cdc.sources.postgres.types import ColumnType, Family

_EPOCH_DAYS = 10_957
_EPOCH_MICROS = 946_684_800_000_000
_JSONB_VERSION = 1
_UUID_BYTES = 16


def width(column: ColumnType) -> int:
    """Bytes of every value of a column, -1 if they differ."""
    match column.family:
        case Family.BOOL:
            return 1
        case Family.UUID:
            return _UUID_BYTES
        case Family.INTEGER | Family.FLOAT | Family.DATE | Family.TIMESTAMP | Family.TIME:
            return int(column.arrow.bit_width) // 8
    return -1


def row_array(where: str, column: ColumnType, jsonb: bool, located: Located, index: int) -> pa.Array:
    """Column ``index`` of a batch of rows, as ADBC would read it.

    :param where: the column's name, for messages.
    :param jsonb: whether each text has the byte before it that tells the version of its format.
    :raises DecodeError: a value is not what a send function gives.
    """
    rows, starts, lengths = located.rows, located.starts[index], located.lengths[index]
    match column.family:
        case Family.TEXT | Family.DECIMAL | Family.OUTPUT:
            if jsonb and _skip_versions(located.data, starts, lengths, rows) != ALL_GOOD:
                raise DecodeError("a jsonb value of another version than 1", where=where)
            if jsonb:
                located.totals[index] -= rows - located.nulls[index]
            return texts(where, located, index)
        case Family.BYTES:
            return _binaries(where, located, index)
        case Family.UUID:
            uuids: Bytes = np.zeros(rows * _UUID_BYTES, np.uint8)
            _copy_uuids(located.data, starts, rows, uuids)
            return _array(pa.binary(_UUID_BYTES), located, index, uuids)
        case Family.BOOL:
            bits: Bytes = np.zeros((rows + 7) // 8, np.uint8)
            if _copy_bools(located.data, starts, rows, bits) != ALL_GOOD:
                raise DecodeError("a value that is neither true nor false", where=where)
            return _array(column.arrow, located, index, bits)
    size = width(column)
    epoch = {Family.DATE: _EPOCH_DAYS, Family.TIMESTAMP: _EPOCH_MICROS}.get(column.family, 0)
    numbers: Bytes = np.empty(rows * size, np.uint8)
    _copy_numbers(located.data, starts, rows, size, epoch, numbers)
    return _array(column.arrow, located, index, numbers)


def _array(arrow: pa.DataType, located: Located, index: int, values: object) -> pa.Array:
    nulls = int(located.nulls[index])
    return pa.Array.from_buffers(arrow, located.rows, [located.validity(index), pa.py_buffer(values)], nulls)


def _binaries(where: str, located: Located, index: int) -> pa.Array:
    total = int(located.totals[index])
    if total > LARGEST:
        raise DecodeError(f"the rows have {total} bytes in this column, more than one Arrow array holds", where=where)
    offsets: Int32s = np.empty(located.rows + 1, np.int32)
    values = pa.allocate_buffer(total + OVERRUN)
    copy_values(
        located.data, located.starts[index], located.lengths[index], located.rows, offsets,
        np.frombuffer(values, np.uint8),
    )  # fmt: skip
    buffers = [located.validity(index), pa.py_buffer(offsets), values.slice(0, total)]
    return pa.Array.from_buffers(pa.binary(), located.rows, buffers, int(located.nulls[index]))


@kernel
def _copy_numbers(data: Bytes, starts: Int32s, rows: int, size: int, epoch: int, out: Bytes) -> None:
    """Numbers of 2, 4 or 8 bytes, moved by ``epoch``; like ADBC's they wrap around where they do not fit."""
    if size == 8:
        for row in range(rows):
            start = int(starts[row])
            store64(out, 8 * row, load64be(data, start) + epoch if start >= 0 else 0)
    elif size == 4:
        for row in range(rows):
            start = int(starts[row])
            store32(out, 4 * row, load32be(data, start) + epoch if start >= 0 else 0)
    else:
        for row in range(rows):
            start = int(starts[row])
            store16(out, 2 * row, load16be(data, start) if start >= 0 else 0)


@kernel
def _copy_bools(data: Bytes, starts: Int32s, rows: int, out: Bytes) -> int:
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            value = load8(data, start)
            if value > 1:
                return row
            out[row >> 3] |= value << (row & 7)
    return ALL_GOOD


@kernel
def _copy_uuids(data: Bytes, starts: Int32s, rows: int, out: Bytes) -> None:
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            copy_bytes(out, 16 * row, data, start, 16)


@kernel
def _skip_versions(data: Bytes, starts: Int32s, lengths: Int32s, rows: int) -> int:
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            if lengths[row] < 1 or load8(data, start) != _JSONB_VERSION:
                return row
            starts[row] = start + 1
            lengths[row] -= 1
    return ALL_GOOD
