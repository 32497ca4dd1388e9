"""Decodes DECIMAL columns of more than 38 digits, the maximum of an Arrow decimal, to the text that MySQL prints.

The text consists of a minus sign if the value is negative, the digits before the point (at least one; with ZEROFILL,
all digits of the column), and, if the scale is not 0, a point and the digits after it. This module first converts both
binary formats to the same digits, and then prints the digits.
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
    multiply_add_128,
    negative_128,
    store8,
)
from airflow_provider_cdc.sources.mysql.decode.cells import ALL_GOOD, Cells, Located, check, fixed_cells
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, decimal_groups

_MINUS, _POINT, _ZERO, _NINE = 45, 46, 48, 57
_MOST = 38
"""Maximum number of digits in a decimal128."""


def wide_row_cells(located: Located, index: int, column: ColumnType) -> Cells:
    """Return the cells of a column of a batch of result rows. In result rows, decimals are sent as text.

    :raises DecodeError: a value does not match the column's type.
    """
    offsets, values = _room(located, column)
    bad = _copy_numbers(
        located.data,
        located.starts[index],
        located.lengths[index],
        located.rows,
        column.scale,
        column.length,
        np.empty(column.precision, np.uint8),
        np.frombuffer(offsets, np.int32),
        np.frombuffer(values, np.uint8),
    )
    return _checked(located, index, column, bad, offsets, values)


def wide_image_cells(located: Located, index: int, column: ColumnType) -> Cells:
    """Return the cells of a column of a batch of images. In images, decimals are stored as groups of digits.

    :raises DecodeError: a value does not match the column's type.
    """
    offsets, values = _room(located, column)
    groups = decimal_groups(column.precision, column.scale)
    bad = _print_groups(
        located.data,
        located.starts[index],
        located.rows,
        np.array([width for width, _ in groups], np.int64),
        np.array([digits for _, digits in groups], np.int64),
        column.scale,
        column.length,
        np.empty(column.precision, np.uint8),
        np.frombuffer(offsets, np.int32),
        np.frombuffer(values, np.uint8),
    )
    return _checked(located, index, column, bad, offsets, values)


def fitting(column: ColumnType, cells: Cells) -> Cells:
    """Convert texts to 128-bit integers (the value times 10^scale). Values of more than 38 digits, not counting leading
    zeros, become null."""
    assert cells.offsets is not None
    validity = cells.own_validity()
    values = pa.allocate_buffer(cells.rows * 16)
    nulled = _fit(
        np.frombuffer(cells.offsets, np.int32),
        np.frombuffer(cells.values, np.uint8),
        cells.rows,
        validity,
        np.frombuffer(values, np.int64),
    )
    return Cells(cells.rows, cells.nulls + nulled, pa.py_buffer(validity), values)


def _room(located: Located, column: ColumnType) -> tuple[pa.Buffer, pa.Buffer]:
    """Allocate buffers for the offsets and for texts of maximum length."""
    return pa.allocate_buffer((located.rows + 1) * 4), pa.allocate_buffer(located.rows * (column.precision + 2))


def _checked(
    located: Located, index: int, column: ColumnType, bad: int, offsets: pa.Buffer, values: pa.Buffer
) -> Cells:
    check(bad, column, f"not a decimal({column.precision},{column.scale})")
    fixed = fixed_cells(located, index, values)
    return Cells(fixed.rows, fixed.nulls, fixed.validity, values, offsets)


@inner
def _print(digits: Bytes, negative: bool, scale: int, least: int, out: Bytes, at: int) -> int:
    """Write ``digits`` (as many as the column has) as MySQL prints them. Return the offset after the text."""
    whole = len(digits) - scale
    first = 0
    while first < whole - least and digits[first] == 0:
        first += 1
    any_digit = 0
    for index in range(len(digits)):
        any_digit |= digits[index]
    # A decimal zero has no minus sign.
    if negative and any_digit != 0:
        store8(out, at, _MINUS)
        at += 1
    for index in range(first, len(digits)):
        if index == whole:
            store8(out, at, _POINT)
            at += 1
        store8(out, at, _ZERO + digits[index])
        at += 1
    return at


@kernel
def _copy_numbers(
    data: Bytes,
    starts: Int32s,
    lengths: Int32s,
    rows: int,
    scale: int,
    least: int,
    digits: Bytes,
    offsets: Int32s,
    out: Bytes,
) -> int:
    whole = len(digits) - scale
    at = 0
    offsets[0] = 0
    for row in range(rows):
        position = int(starts[row])
        if position >= 0:
            end = position + int(lengths[row])
            negative = position < end and load8(data, position) == _MINUS
            if negative:
                position += 1
            # The offset of the decimal point. If the scale is 0, this is the offset of the end.
            point = end - scale - 1 if scale else end
            if point < position or point == end - scale == position:
                return row
            if scale and load8(data, point) != _POINT:
                return row
            while position < point and load8(data, position) == _ZERO:
                position += 1
            if point - position > whole:
                return row
            place = whole - (point - position)
            digits[:place] = 0
            for source in range(position, end):
                if source == point:
                    continue
                character = load8(data, source)
                if character < _ZERO or character > _NINE:
                    return row
                digits[place] = character - _ZERO
                place += 1
            at = _print(digits, negative, scale, least, out, at)
        offsets[row + 1] = at
    return ALL_GOOD


@kernel
def _print_groups(
    data: Bytes,
    starts: Int32s,
    rows: int,
    widths: Int64s,
    counts: Int64s,
    scale: int,
    least: int,
    digits: Bytes,
    offsets: Int32s,
    out: Bytes,
) -> int:
    at = 0
    offsets[0] = 0
    for row in range(rows):
        position = int(starts[row])
        if position >= 0:
            negative = load8(data, position) & 0x80 == 0
            sign = 0x80
            place = 0
            for group in range(len(widths)):
                width = widths[group]
                value = load_be(data, position, width) ^ (sign << (8 * (width - 1)))
                sign = 0
                if negative:
                    value ^= (1 << (8 * width)) - 1
                for index in range(counts[group]):
                    digits[place + counts[group] - 1 - index] = value % 10
                    value //= 10
                if value:
                    return row
                place += counts[group]
                position += width
            at = _print(digits, negative, scale, least, out, at)
        offsets[row + 1] = at
    return ALL_GOOD


@kernel
def _fit(offsets: Int32s, data: Bytes, rows: int, validity: Bytes, out: Int64s) -> int:
    """Fill ``out``. Clear the ``validity`` bits of values that do not fit, and return the number of these values."""
    nulled = 0
    for row in range(rows):
        low = high = digits = 0
        if (validity[row >> 3] >> (row & 7)) & 1:
            position, end = int(offsets[row]), int(offsets[row + 1])
            negative = load8(data, position) == _MINUS
            for source in range(position, end):
                character = load8(data, source)
                if character < _ZERO:
                    continue
                if digits or character != _ZERO:
                    digits += 1
                if digits <= _MOST:
                    low, high = multiply_add_128(low, high, 10, character - _ZERO)
            if digits > _MOST:
                validity[row >> 3] &= ~(1 << (row & 7)) & 0xFF
                nulled += 1
                low = high = 0
            elif negative:
                low, high = negative_128(low, high)
        out[2 * row] = low
        out[2 * row + 1] = high
    return nulled
