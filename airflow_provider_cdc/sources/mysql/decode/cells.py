"""The cells of values: what is located in result rows and row images, and becomes Arrow arrays in `columns`.

The module has three parts: packed dates and the calendar, wide decimals, and the cells of each kind of value.

MySQL can store dates that are not in the calendar: ``0000-00-00``, ``2024-00-15``, and with ALLOW_INVALID_DATES
``2024-02-31``. So dates remain packed, as separate fields, until an Arrow array is built from them.

The calendar algorithms are from H. Hinnant, "chrono-Compatible Low-Level Date Algorithms": in a year that begins in
March, the number of days before a month is a linear function of the month.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    load16,
    load32,
    load64,
    load_be,
    load_le,
    multiply_add_128,
    negative_128,
    store8,
    store16,
    store32,
    store64,
)
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.log.netting import ALL_GOOD as ALL_GOOD
from airflow_provider_cdc.sources.log.netting import LARGEST, OVERRUN, copy_values
from airflow_provider_cdc.sources.log.netting import Located as Located
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, decimal_groups

NO_DATE = -(2**63)
"""Result of ``days_of`` for a date that is not in the calendar."""
DATE_SHIFT = 41
"""A packed DATETIME, shifted right by this number of bits, is its date."""
DAY_MICROS = 86_400_000_000


@inner
def pack_datetime(year: int, month: int, day: int, hour: int, minute: int, second: int, micro: int) -> int:
    """Pack a DATETIME as the server does, with the largest unit in the highest bits, so that packed values sort in
    order of time. Any field may be zero."""
    date = ((year * 13 + month) << 5) | day
    time = (hour << 12) | (minute << 6) | second
    return (((date << 17) | time) << 24) | micro


@inner
def pack_epoch(seconds: int, micro: int) -> int:
    """Return non-negative seconds since 1970-01-01 as a packed DATETIME."""
    days, rest = seconds // 86_400, seconds % 86_400
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    return pack_datetime(year, month, day, rest // 3_600, rest // 60 % 60, rest % 60, micro)


@inner
def days_of(packed: int) -> int:
    """Return the days from 1970-01-01 to the date of a packed DATETIME, or ``NO_DATE``."""
    date = packed >> DATE_SHIFT
    day, months = date & 31, date >> 5
    year, month = months // 13, months % 13
    if year > 9_999 or month == 0 or day == 0 or day > _days_in_month(year, month):
        return NO_DATE
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    year_of_era = shifted - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


@inner
def micros_of_day(packed: int) -> int:
    """Return the microseconds from midnight to the time of day of a packed DATETIME."""
    hour, minute, second = (packed >> 36) & 31, (packed >> 30) & 63, (packed >> 24) & 63
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + (packed & 0xFF_FFFF)


@inner
def _days_in_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 31 - ((month - 1) % 7 & 1)


def text_of(packed: int) -> str:
    """Return the text of a packed DATETIME as MySQL prints it: ``2024-02-31 00:00:00``, and the fraction if it is not
    zero."""
    months, day = packed >> 46, packed >> 41 & 31
    hour, minute, second, micro = packed >> 36 & 31, packed >> 30 & 63, packed >> 24 & 63, packed & 0xFF_FFFF
    fraction = f".{micro:06}" if micro else ""
    return f"{months // 13:04}-{months % 13:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction}"


# Cells, the intermediate form of values between MySQL's two binary formats and Arrow.
#
# First, the *locate* kernel of a format (``rows``, ``images``) finds every value of a batch of rows. Then, for each
# column, a kernel converts the values to cells. ``columns.finish`` builds the Arrow array, in the same way for both
# formats.
#
# ===============  ===========================================================================================
# family           cell
# ===============  ===========================================================================================
# NUMBER           the number, little-endian, as wide as its Arrow type
# YEAR             int16
# DECIMAL          128-bit integer: the value times 10^scale
# WIDE_DECIMAL     int32 offsets, and the text that MySQL prints
# BITS, SET        uint64
# ENUM             int64: index into the members, from 1
# DATE DATETIME    int64: ``pack_datetime``, which also represents dates that are not in the calendar
# TIMESTAMP        the same, in UTC
# TIME             int64: microseconds
# BYTES TEXT JSON  int32 offsets, and the bytes as they are stored
# VECTOR           the same
# ===============  ===========================================================================================


@dataclass(frozen=True)
class Cells:
    """The values of one column in their intermediate form, as Arrow buffers. ``validity`` is None if the column has no
    NULLs. ``offsets`` is None for values of fixed width."""

    rows: int
    nulls: int
    validity: pa.Buffer | None
    values: pa.Buffer
    offsets: pa.Buffer | None = None

    def int64(self) -> Int64s:
        """Return the values of a column whose family has 64-bit cells. The value of a NULL is 0."""
        return np.frombuffer(self.values, np.int64, self.rows)

    def valid(self) -> Bytes:
        """Return ``validity`` as an array for kernels. The array is empty if there are no NULLs."""
        return np.empty(0, np.uint8) if self.validity is None else np.frombuffer(self.validity, np.uint8)

    def own_validity(self) -> Bytes:
        """Return a copy of the validity bitmap, in which a kernel can clear more bits."""
        size = (self.rows + 7) // 8
        return np.full(size, 255, np.uint8) if self.validity is None else self.valid()[:size].copy()


def fixed_cells(located: Located, index: int, values: pa.Buffer) -> Cells:
    """Return the cells of the column with number ``index``, made from the fixed-width ``values``."""
    return Cells(located.rows, int(located.nulls[index]), located.validity(index), values)


def number_cells(located: Located, index: int, column: ColumnType, width: int) -> Cells:
    """Return numbers of ``width`` bytes as cells. If the Arrow type is wider, the numbers are widened."""
    cell = column.arrow.bit_width // 8
    values = pa.allocate_buffer(located.rows * cell)
    out = np.frombuffer(values, np.uint8)
    starts = located.starts[index]
    if width == cell:
        copy_fixed(located.data, starts, located.rows, width, out)
    else:
        _widen(located.data, starts, located.rows, width, 0 if column.unsigned else 1 << (8 * width - 1), out)
    return fixed_cells(located, index, values)


def integer_cells(located: Located, index: int, width: int) -> Cells:
    """Return little-endian unsigned integers of ``width`` bytes as 64-bit cells."""
    values = pa.allocate_buffer(located.rows * 8)
    load_integers(located.data, located.starts[index], located.rows, width, np.frombuffer(values, np.int64))
    return fixed_cells(located, index, values)


def bit_cells(located: Located, index: int, column: ColumnType, lengths: Int32s) -> Cells:
    """Return the cells of a bit(n) column. In both formats, values are big-endian, in the smallest number of bytes.

    :raises DecodeError: a value has a wrong length, or more bits than the column.
    """
    values = pa.allocate_buffer(located.rows * 8)
    bad = _load_bits(
        located.data, located.starts[index], lengths, located.rows, column.precision, np.frombuffer(values, np.int64)
    )
    check(bad, column, f"not the {column.precision} bits of a bit({column.precision})")
    return fixed_cells(located, index, values)


def byte_cells(located: Located, index: int, column: ColumnType) -> Cells:
    """Return values of any length. Values of binary(n) are padded with the zero bytes that the log omits.

    :raises DecodeError: one batch has more than 2 GiB, or a binary(n) value has more than n bytes.
    """
    starts, lengths = located.starts[index], located.lengths[index]
    rows = located.rows
    total = rows * column.length if column.length else int(located.totals[index])
    if total > LARGEST:
        raise DecodeError(
            f"{rows} rows have {total} bytes in this column, which is more than an Arrow array can hold",
            where=column.name,
        )
    offsets = pa.allocate_buffer((rows + 1) * 4)
    values = pa.allocate_buffer(total + OVERRUN)
    ends, out = np.frombuffer(offsets, np.int32), np.frombuffer(values, np.uint8)
    if column.length:
        bad = _copy_padded(located.data, starts, lengths, rows, column.length, ends, out)
        check(bad, column, f"more than the {column.length} bytes of a binary({column.length})")
    else:
        copy_values(located.data, starts, lengths, rows, ends, out)
    fixed = fixed_cells(located, index, values)
    return Cells(rows, fixed.nulls, fixed.validity, values, offsets)


def check(bad: int, column: ColumnType, what: str) -> None:
    """Raise DecodeError if a cell kernel found a malformed value."""
    if bad != ALL_GOOD:
        raise DecodeError(f"the value in row {bad} of the batch is {what}", where=column.name)


@kernel
def copy_fixed(data: Bytes, starts: Int32s, rows: int, width: int, out: Bytes) -> None:
    """Copy values of 1, 2, 4 or 8 bytes unchanged. Write 0 for NULL."""
    if width == 8:
        for row in range(rows):
            start = starts[row]
            store64(out, 8 * row, load64(data, start) if start >= 0 else 0)
    elif width == 4:
        for row in range(rows):
            start = starts[row]
            store32(out, 4 * row, load32(data, start) if start >= 0 else 0)
    elif width == 2:
        for row in range(rows):
            start = starts[row]
            store16(out, 2 * row, load16(data, start) if start >= 0 else 0)
    else:
        for row in range(rows):
            start = starts[row]
            store8(out, row, load8(data, start) if start >= 0 else 0)


@kernel
def _widen(data: Bytes, starts: Int32s, rows: int, width: int, sign: int, out: Bytes) -> None:
    """Widen integers of three bytes to cells of four. ``sign`` is the sign bit, or 0 if there is none."""
    for row in range(rows):
        start = starts[row]
        store32(out, 4 * row, (load_le(data, start, width) ^ sign) - sign if start >= 0 else 0)


@kernel
def load_integers(data: Bytes, starts: Int32s, rows: int, width: int, out: Int64s) -> None:
    """Load little-endian unsigned integers of ``width`` (at most 8) bytes. Write 0 for NULL."""
    for row in range(rows):
        start = starts[row]
        out[row] = load_le(data, start, width) if start >= 0 else 0


@kernel
def _load_bits(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, bits: int, out: Int64s) -> int:
    width = (bits + 7) >> 3
    for row in range(rows):
        start = starts[row]
        value = 0
        if start >= 0:
            if lengths[row] != width:
                return row
            if bits & 7 and load8(data, start) >> (bits & 7):
                return row
            value = load_be(data, start, width)
        out[row] = value
    return ALL_GOOD


@kernel
def _copy_padded(
    data: Bytes, starts: Int32s, lengths: Int32s, rows: int, width: int, offsets: Int32s, out: Bytes
) -> int:
    at = 0
    offsets[0] = 0
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            length = int(lengths[row])
            if length > width:
                return row
            copy_bytes(out, at, data, start, length)
            for index in range(length, width):
                out[at + index] = 0
            at += width
        offsets[row + 1] = at
    return ALL_GOOD


# Decodes DECIMAL columns of more than 38 digits, the maximum of an Arrow decimal, to the text that MySQL prints.
#
# The text consists of a minus sign if the value is negative, the digits before the point (at least one; with ZEROFILL,
# all digits of the column), and, if the scale is not 0, a point and the digits after it. This module first converts
# both binary formats to the same digits, and then prints the digits.


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
