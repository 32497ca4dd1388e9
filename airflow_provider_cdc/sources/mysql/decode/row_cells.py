"""Converts values in the rows of a prepared statement's result to cells.

The format is described in MySQL's documentation of "Binary Protocol Value". Decimals are sent as text. Dates and times
are sent as structs of 0 to 12 bytes. Trailing parts that are zero are omitted.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import (
    Bytes,
    Int32s,
    Int64s,
    kernel,
    load8,
    load16,
    load32,
    multiply_add_128,
    negative_128,
)
from airflow_provider_cdc.sources.mysql.decode.calendar import pack_datetime
from airflow_provider_cdc.sources.mysql.decode.cells import (
    ALL_GOOD,
    Cells,
    Located,
    bit_cells,
    byte_cells,
    check,
    fixed_cells,
    integer_cells,
    number_cells,
)
from airflow_provider_cdc.sources.mysql.decode.wide_decimals import wide_row_cells
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family


def row_cells(located: Located, index: int, column: ColumnType) -> Cells:
    """Return the cells of column ``index`` of a batch of result rows.

    :raises DecodeError: a value does not follow the format.
    """
    match column.family:
        case Family.NUMBER | Family.YEAR:
            return number_cells(located, index, column, column.row_width)
        case Family.ENUM | Family.SET:
            return integer_cells(located, index, column.row_width)
        case Family.BITS:
            return bit_cells(located, index, column, located.lengths[index])
        case Family.DECIMAL:
            return _decimal_cells(located, index, column)
        case Family.WIDE_DECIMAL:
            return wide_row_cells(located, index, column)
        case Family.DATE | Family.DATETIME | Family.TIMESTAMP | Family.TIME:
            return _temporal_cells(located, index, column)
        case Family.BYTES | Family.TEXT | Family.JSON | Family.VECTOR:
            return byte_cells(located, index, column)


def _decimal_cells(located: Located, index: int, column: ColumnType) -> Cells:
    values = pa.allocate_buffer(located.rows * 16)
    bad = _parse_decimals(
        located.data,
        located.starts[index],
        located.lengths[index],
        located.rows,
        column.precision,
        column.scale,
        np.frombuffer(values, np.int64),
    )
    check(bad, column, f"not a decimal({column.precision},{column.scale})")
    return fixed_cells(located, index, values)


def _temporal_cells(located: Located, index: int, column: ColumnType) -> Cells:
    values = pa.allocate_buffer(located.rows * 8)
    parse = _parse_times if column.family is Family.TIME else _parse_datetimes
    bad = parse(
        located.data,
        located.starts[index],
        located.lengths[index],
        located.rows,
        np.frombuffer(values, np.int64),
    )
    check(bad, column, f"not a {column.family.value}")
    return fixed_cells(located, index, values)


@kernel
def _parse_decimals(
    data: Bytes, starts: Int32s, lengths: Int32s, rows: int, precision: int, scale: int, out: Int64s
) -> int:
    for row in range(rows):
        start = int(starts[row])
        low = high = 0
        if start >= 0:
            length = int(lengths[row])
            # The precision does not count three characters that the text may have: a sign, a point, and a zero before
            # the point.
            if length == 0 or length > precision + 3:
                return row
            end = start + length
            negative = load8(data, start) == 45
            position = start + 1 if negative else start
            while position < end and load8(data, position) == 48:
                position += 1
            group, power, digits, point = 0, 1, 0, -1
            while position < end:
                character = load8(data, position)
                position += 1
                if character == 46 and point < 0:
                    point = position
                    continue
                if character < 48 or character > 57:
                    return row
                digits += 1
                group = group * 10 + (character - 48)
                power *= 10
                if power == 1_000_000_000_000_000_000:
                    low, high = multiply_add_128(low, high, power, group)
                    group, power = 0, 1
            if digits > precision or (end - point if point >= 0 else 0) != scale:
                return row
            low, high = multiply_add_128(low, high, power, group)
            if negative:
                low, high = negative_128(low, high)
        out[2 * row] = low
        out[2 * row + 1] = high
    return ALL_GOOD


@kernel
def _parse_datetimes(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        packed = 0
        if start >= 0:
            length = lengths[row]
            if length != 0 and length != 4 and length != 7 and length != 11:
                return row
            if length:
                year, month, day = load16(data, start), load8(data, start + 2), load8(data, start + 3)
                hour = minute = second = micro = 0
                if length > 4:
                    hour, minute, second = load8(data, start + 4), load8(data, start + 5), load8(data, start + 6)
                if length > 7:
                    micro = load32(data, start + 7)
                if year > 9999 or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
                    return row
                packed = pack_datetime(year, month, day, hour, minute, second, micro)
        out[row] = packed
    return ALL_GOOD


@kernel
def _parse_times(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        value = 0
        if start >= 0:
            length = lengths[row]
            if length != 0 and length != 8 and length != 12:
                return row
            if length:
                negative, days = load8(data, start), load32(data, start + 1)
                hour, minute, second = load8(data, start + 5), load8(data, start + 6), load8(data, start + 7)
                micro = load32(data, start + 8) if length > 8 else 0
                if negative > 1 or days > 34 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
                    return row
                value = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + micro
                if negative:
                    value = -value
        out[row] = value
    return ALL_GOOD
