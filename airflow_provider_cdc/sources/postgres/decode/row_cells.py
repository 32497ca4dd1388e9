"""Makes Arrow arrays from the values of a COPY in binary format. ADBC would make the same arrays.

So the next step (``columns.finish``) is the same for rows from this module and for rows from ADBC. The types' send
functions determine the formats: numbers are big-endian, and days and microseconds are counted from 2000-01-01.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import (
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
    multiply_add_128,
    negative_128,
    store16,
    store32,
    store64,
    wrapping_add,
)
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.log.located_values import ALL_GOOD, LARGEST, OVERRUN, Located, copy_values
from airflow_provider_cdc.sources.postgres.catalog.types import ColumnType, Family
from airflow_provider_cdc.sources.postgres.decode.columns import NO_NUMBER
from airflow_provider_cdc.sources.postgres.decode.image_cells import texts

_EPOCH_DAYS = 10_957
_EPOCH_MICROS = 946_684_800_000_000
_JSONB_VERSION = 1
_UUID_BYTES = 16

# Signs of a numeric.
_NEGATIVE, _NAN, _INFINITE, _MINUS_INFINITE = 0x4000, 0xC000, 0xD000, 0xF000


def width(column: ColumnType) -> int:
    """Return the size in bytes of each value of a column. -1: the sizes differ."""
    match column.family:
        case Family.BOOL:
            return 1
        case Family.UUID:
            return _UUID_BYTES
        case Family.INTEGER | Family.FLOAT | Family.DATE | Family.TIMESTAMP | Family.TIME:
            return int(column.arrow.bit_width) // 8
    return -1


def row_array(where: str, column: ColumnType, jsonb: bool, located: Located, index: int) -> pa.Array:
    """Return column ``index`` of a batch of rows, as ADBC would read it.

    :param where: the column's name, for messages.
    :param jsonb: whether a byte with the version of the format precedes each text.
    :raises DecodeError: a value is not in the format of a send function.
    """
    rows, starts, lengths = located.rows, located.starts[index], located.lengths[index]
    match column.family:
        case Family.DECIMAL:
            decimals: Int64s = np.zeros(2 * rows, np.int64)
            whole = column.precision - column.scale
            bad = _copy_numerics(located.data, starts, lengths, rows, whole, column.scale, decimals)
            if bad != ALL_GOOD:
                raise DecodeError(f"the value in row {bad} of the batch is not a {column.arrow}", where=where)
            return located.array(index, column.arrow, decimals)
        case Family.TEXT | Family.OUTPUT | Family.LIST:
            if jsonb and _skip_versions(located.data, starts, lengths, rows) != ALL_GOOD:
                raise DecodeError("a jsonb value has another version than 1", where=where)
            if jsonb:
                located.totals[index] -= rows - located.nulls[index]
            return texts(where, located, index)
        case Family.BYTES:
            return _binaries(where, located, index)
        case Family.UUID:
            uuids: Bytes = np.zeros(rows * _UUID_BYTES, np.uint8)
            _copy_uuids(located.data, starts, rows, uuids)
            return located.array(index, pa.binary(_UUID_BYTES), uuids)
        case Family.BOOL:
            bits: Bytes = np.zeros((rows + 7) // 8, np.uint8)
            if _copy_bools(located.data, starts, rows, bits) != ALL_GOOD:
                raise DecodeError("a value is neither true nor false", where=where)
            return located.array(index, column.arrow, bits)
    size = width(column)
    epoch = {Family.DATE: _EPOCH_DAYS, Family.TIMESTAMP: _EPOCH_MICROS}.get(column.family, 0)
    numbers: Bytes = np.empty(rows * size, np.uint8)
    _copy_numbers(located.data, starts, rows, size, epoch, numbers)
    return located.array(index, column.arrow, numbers)


def _binaries(where: str, located: Located, index: int) -> pa.Array:
    total = int(located.totals[index])
    if total > LARGEST:
        raise DecodeError(
            f"the rows have {total} bytes in this column, which is more than an Arrow array can hold", where=where
        )
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
    """Copy numbers of 2, 4 or 8 bytes, and add ``epoch`` to each. As in ADBC, sums that do not fit wrap around."""
    if size == 8:
        for row in range(rows):
            start = int(starts[row])
            store64(out, 8 * row, wrapping_add(load64be(data, start), epoch) if start >= 0 else 0)
    elif size == 4:
        for row in range(rows):
            start = int(starts[row])
            store32(out, 4 * row, load32be(data, start) + epoch if start >= 0 else 0)
    else:
        for row in range(rows):
            start = int(starts[row])
            store16(out, 2 * row, load16be(data, start) if start >= 0 else 0)


@inner
def _power(exponent: int) -> int:
    value = 1
    for _ in range(exponent):
        value *= 10
    return value


@kernel
def _copy_numerics(
    data: Bytes, starts: Int32s, lengths: Int32s, rows: int, whole_digits: int, scale: int, out: Int64s
) -> int:
    """Multiply the values by 10^scale and write them as 128-bit integers. Return the index of the first malformed
    value, or ALL_GOOD.

    A numeric has four two-byte numbers (the number of digits, the weight of the first digit, the sign, and the number
    of decimals to show), and then its digits, in base 10000, two bytes each. Source: numeric_send in PostgreSQL's
    numeric.c.
    """
    for row in range(rows):
        at = int(starts[row])
        if at < 0:
            continue
        length = int(lengths[row])
        if length < 8:
            return row
        digits, sign = load16be(data, at), load16be(data, at + 4)
        weight = load16be(data, at + 2)
        if weight >= 0x8000:
            weight -= 0x10000
        if length != 8 + 2 * digits:
            return row
        if sign != 0 and sign != _NEGATIVE:
            if digits != 0 or (sign != _NAN and sign != _INFINITE and sign != _MINUS_INFINITE):
                return row
            out[2 * row] = sign
            out[2 * row + 1] = NO_NUMBER
            continue
        low = high = 0
        if digits > 0:
            first = load16be(data, at + 8)
            whole = 4 * weight + (1 if first < 10 else 2 if first < 100 else 3 if first < 1000 else 4)
            # The number of decimal places after the last digit. If this number is negative, the value has digits beyond
            # the scale. These digits must be zeros.
            shift = scale + 4 * (weight - digits + 1)
            if whole > whole_digits or shift < -3 or shift > 38:
                return row
            for index in range(digits):
                digit = load16be(data, at + 8 + 2 * index)
                if digit > 9999:
                    return row
                if shift < 0 and index == digits - 1:
                    beyond = _power(-shift)
                    if digit % beyond != 0:
                        return row
                    low, high = multiply_add_128(low, high, _power(4 + shift), digit // beyond)
                else:
                    low, high = multiply_add_128(low, high, 10_000, digit)
            while shift > 0:
                step = min(shift, 18)
                low, high = multiply_add_128(low, high, _power(step), 0)
                shift -= step
        if sign == _NEGATIVE:
            low, high = negative_128(low, high)
        out[2 * row] = low
        out[2 * row + 1] = high
    return ALL_GOOD


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
