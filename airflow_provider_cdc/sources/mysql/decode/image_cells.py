"""Converts values in row images of the binary log to cells.

Formats: MySQL's ``decimal2bin`` (groups of nine decimal digits in big-endian integers, the sign bit inverted, negative
numbers complemented), and ``my_datetime_packed_to_binary`` and similar functions (big-endian, with an offset so that
bytes sort like the values).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import (
    Bytes,
    Int32s,
    Int64s,
    inner,
    kernel,
    load8,
    load_be,
    load_le,
    multiply_add_128,
    negative_128,
)
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.mysql.decode.calendar import pack_datetime, pack_epoch
from airflow_provider_cdc.sources.mysql.decode.cells import (
    ALL_GOOD,
    Cells,
    Located,
    bit_cells,
    byte_cells,
    check,
    fixed_cells,
    integer_cells,
    load_integers,
    number_cells,
)
from airflow_provider_cdc.sources.mysql.decode.wide_decimals import wide_image_cells
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, decimal_groups


def image_cells(located: Located, index: int, column: ColumnType) -> Cells:
    """Return the cells of column ``index`` of a batch of images.

    :raises DecodeError: a value does not follow the format.
    """
    match column.family:
        case Family.NUMBER:
            return number_cells(located, index, column, column.width)
        case Family.YEAR:
            return _year_cells(located, index)
        case Family.ENUM | Family.SET:
            return integer_cells(located, index, column.width)
        case Family.BITS:
            return bit_cells(located, index, column, located.lengths[index])
        case Family.DECIMAL:
            return _decimal_cells(located, index, column)
        case Family.WIDE_DECIMAL:
            return wide_image_cells(located, index, column)
        case Family.DATE | Family.DATETIME | Family.TIMESTAMP | Family.TIME:
            return _temporal_cells(located, index, column)
        case Family.BYTES | Family.TEXT | Family.VECTOR:
            return byte_cells(located, index, column)
        case Family.JSON:
            return _json_cells(byte_cells(located, index, column), column)


def _json_cells(binary: Cells, column: ColumnType) -> Cells:
    """Return the texts of binary JSON values."""
    # Imported late, because few tables have JSON.
    from airflow_provider_cdc.sources.mysql.decode.json.text import json_texts

    buffers = [binary.validity, binary.offsets, binary.values]
    try:
        texts = json_texts(pa.BinaryArray.from_buffers(pa.binary(), binary.rows, buffers, binary.nulls))
    except DecodeError as error:
        raise DecodeError(error.message, where=f"{column.name}, {error.where}") from error
    _, offsets, values = texts.buffers()
    return Cells(binary.rows, binary.nulls, binary.validity, values, offsets)


def _year_cells(located: Located, index: int) -> Cells:
    years = np.empty(located.rows, np.int64)
    load_integers(located.data, located.starts[index], located.rows, 1, years)
    values = np.where(years > 0, years + 1900, 0).astype(np.int16)
    return fixed_cells(located, index, pa.py_buffer(values))


def _decimal_cells(located: Located, index: int, column: ColumnType) -> Cells:
    values = pa.allocate_buffer(located.rows * 16)
    groups = decimal_groups(column.precision, column.scale)
    bad = _unpack_decimals(
        located.data,
        located.starts[index],
        located.rows,
        np.array([width for width, _ in groups], np.int64),
        np.array([10**digits for _, digits in groups], np.int64),
        np.frombuffer(values, np.int64),
    )
    check(bad, column, f"not a decimal({column.precision},{column.scale})")
    return fixed_cells(located, index, values)


def _temporal_cells(located: Located, index: int, column: ColumnType) -> Cells:
    values = pa.allocate_buffer(located.rows * 8)
    out = np.frombuffer(values, np.int64)
    starts = located.starts[index]
    fraction = (column.scale + 1) // 2
    if column.family is Family.DATE:
        bad = _unpack_dates(located.data, starts, located.rows, out)
    elif column.family is Family.DATETIME:
        bad = _unpack_datetimes(located.data, starts, located.rows, fraction, out)
    elif column.family is Family.TIMESTAMP:
        bad = _unpack_timestamps(located.data, starts, located.rows, fraction, out)
    else:
        bad = _unpack_times(located.data, starts, located.rows, fraction, out)
    check(bad, column, f"not a {column.family.value}")
    return fixed_cells(located, index, values)


@kernel
def _unpack_decimals(data: Bytes, starts: Int32s, rows: int, widths: Int64s, powers: Int64s, out: Int64s) -> int:
    for row in range(rows):
        position = int(starts[row])
        low = high = 0
        if position >= 0:
            negative = load8(data, position) & 0x80 == 0
            sign = 0x80
            for group in range(len(widths)):
                width = widths[group]
                value = load_be(data, position, width) ^ (sign << (8 * (width - 1)))
                sign = 0
                if negative:
                    value ^= (1 << (8 * width)) - 1
                if value >= powers[group]:
                    return row
                low, high = multiply_add_128(low, high, powers[group], value)
                position += width
            if negative:
                low, high = negative_128(low, high)
        out[2 * row] = low
        out[2 * row + 1] = high
    return ALL_GOOD


@kernel
def _unpack_dates(data: Bytes, starts: Int32s, rows: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        packed = 0
        if start >= 0:
            date = load_le(data, start, 3)
            day, month, year = date & 31, (date >> 5) & 15, date >> 9
            if month > 12 or year > 9999:
                return row
            packed = pack_datetime(year, month, day, 0, 0, 0, 0)
        out[row] = packed
    return ALL_GOOD


@inner
def _micros(data: Bytes, position: int, width: int) -> int:
    """Read the fraction of a second that is stored in ``width`` bytes, with two decimal digits per byte. Return it in
    microseconds."""
    value = load_be(data, position, width)
    for _ in range(3 - width):
        value *= 100
    return value


@kernel
def _unpack_datetimes(data: Bytes, starts: Int32s, rows: int, fraction: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        packed = 0
        if start >= 0:
            fields = load_be(data, start, 5) - 0x80_0000_0000
            micro = _micros(data, start + 5, fraction)
            hour, minute, second = (fields >> 12) & 31, (fields >> 6) & 63, fields & 63
            if fields < 0 or (fields >> 22) // 13 > 9999 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
                return row
            packed = (fields << 24) | micro
        out[row] = packed
    return ALL_GOOD


@kernel
def _unpack_timestamps(data: Bytes, starts: Int32s, rows: int, fraction: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        packed = 0
        if start >= 0:
            seconds = load_be(data, start, 4)
            micro = _micros(data, start + 4, fraction)
            if micro > 999_999:
                return row
            if seconds or micro:
                packed = pack_epoch(seconds, micro)
        out[row] = packed
    return ALL_GOOD


@kernel
def _unpack_times(data: Bytes, starts: Int32s, rows: int, fraction: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        value = 0
        if start >= 0:
            # The value is one signed number with the fraction in its low bits, so parse it as a whole. The fields of a
            # negative time cannot be parsed separately, because a field may borrow from the next higher field.
            whole = load_be(data, start, 3 + fraction) - (0x80_0000 << (8 * fraction))
            size = -whole if whole < 0 else whole
            fields = size >> (8 * fraction)
            micro = size & ((1 << (8 * fraction)) - 1)
            for _ in range(3 - fraction):
                micro *= 100
            hour, minute, second = fields >> 12, (fields >> 6) & 63, fields & 63
            if hour > 838 or minute > 59 or second > 59 or micro > 999_999:
                return row
            value = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro
            if whole < 0:
                value = -value
        out[row] = value
    return ALL_GOOD
