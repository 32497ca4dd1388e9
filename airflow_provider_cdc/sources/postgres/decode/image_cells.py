"""Makes Arrow arrays from the texts in row images. ADBC would make the same arrays from the same values.

So the next step (``columns.finish``) is the same for rows from images and for rows from ADBC. The server's output
functions write the texts under ``session_variables.SESSION_SETTINGS``: numbers in decimal digits, ``bytea`` in
hexadecimal digits, and dates in ISO 8601 format, followed by `` BC`` before the year 1.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    inner,
    kernel,
    load8,
    store8,
    wrapping_add,
    wrapping_multiply,
)
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.log.netting import ALL_GOOD, LARGEST, OVERRUN, Located, copy_values
from airflow_provider_cdc.sources.postgres.catalog.types import ColumnType, Family

# Converts dates and times, for kernels and messages, in PostgreSQL's proleptic Gregorian calendar.


DAY_MICROS = 86_400_000_000

# ADBC adds the difference of the two epochs (2000 and 1970) to the stored value, and ignores overflow. So infinity,
# minus infinity, and timestamps beyond Arrow's range become lower numbers than the earliest date that PostgreSQL can
# store.
FIRST_DAY = -2_440_588
"""The first date that PostgreSQL stores, 4714-11-24 BC, in days since 1970."""
FIRST_MICRO = FIRST_DAY * DAY_MICROS
INFINITE_DAY, MINUS_INFINITE_DAY = -(2**31) + 10_956, -(2**31) + 10_957
INFINITE_MICRO, MINUS_INFINITE_MICRO = -(2**63) + 946_684_799_999_999, -(2**63) + 946_684_800_000_000


@inner
def days_of(year: int, month: int, day: int) -> int:
    """Return the number of days from 1970-01-01 to a date. The year before year 1 is year 0. The function does not
    check that the day exists."""
    # In this computation, years begin in March, so that a leap day is the last day of its year.
    year -= 1 if month <= 2 else 0
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@inner
def month_days(year: int, month: int) -> int:
    """Return the number of days of a month."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


def text_of_day(day: int) -> str:
    """Format a date as PostgreSQL does, given the value that ADBC returns for it."""
    if day < FIRST_DAY:
        return "infinity" if day == INFINITE_DAY else "-infinity"
    day += 719_468
    era, of_era = divmod(day, 146_097)
    of_era_year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * of_era_year + of_era_year // 4 - of_era_year // 100)
    month = (5 * of_year + 2) // 153
    number = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = of_era_year + era * 400 + (month <= 2)
    return f"{year:04}-{month:02}-{number:02}" if year > 0 else f"{1 - year:04}-{month:02}-{number:02} BC"


def text_of_micro(micro: int) -> str:
    """Format a timestamp as PostgreSQL does, without time zone, given the value that ADBC returns for it."""
    if micro == INFINITE_MICRO:
        return "infinity"
    if micro == MINUS_INFINITE_MICRO:
        return "-infinity"
    if micro < FIRST_MICRO:
        micro += 2**64
    day, rest = divmod(micro, DAY_MICROS)
    date, _, era = text_of_day(day).partition(" ")
    return f"{date} {text_of_time(rest)}{' BC' if era else ''}"


def text_of_time(micro: int) -> str:
    """Format a time of day as PostgreSQL does."""
    seconds, fraction = divmod(micro, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


_DATE, _TIMESTAMP, _TIMESTAMP_UTC = 0, 1, 2


def image_array(where: str, column: ColumnType, located: Located, index: int) -> pa.Array:
    """Return column ``index`` of a batch of images, as ADBC would read it.

    :param where: the column's name, for messages.
    :raises DecodeError: a value is not the text of an output function.
    """
    rows, starts, lengths = located.rows, located.starts[index], located.lengths[index]
    match column.family:
        case Family.TEXT | Family.UUID | Family.DECIMAL | Family.OUTPUT | Family.LIST:
            return texts(where, located, index)
        case Family.FLOAT:
            try:
                return texts(where, located, index).cast(column.arrow)
            except pa.ArrowInvalid as error:
                raise DecodeError(f"not a {column.arrow}: {error}", where=where) from error
        case Family.BYTES:
            return _binaries(where, located, index)
        case Family.BOOL:
            bits: Bytes = np.zeros((rows + 7) // 8, np.uint8)
            _check(_parse_bools(located.data, starts, lengths, rows, bits), where, "true or false")
            return located.array(index, column.arrow, bits)
    numbers: Int64s = np.empty(rows, np.int64)
    if column.family is Family.INTEGER:
        high = (1 << (column.arrow.bit_width - 1)) - 1
        bad = _parse_integers(located.data, starts, lengths, rows, -high - 1, high, numbers)
    elif column.family is Family.TIME:
        bad = _parse_times(located.data, starts, lengths, rows, numbers)
    else:
        kind = _DATE if column.family is Family.DATE else _TIMESTAMP if column.arrow.tz is None else _TIMESTAMP_UTC
        bad = _parse_dates(located.data, starts, lengths, rows, kind, numbers)
    _check(bad, where, f"of type {column.arrow}")
    return located.array(index, column.arrow, numbers.astype(f"i{column.arrow.bit_width // 8}"))


def texts(where: str, located: Located, index: int) -> pa.Array:
    """Return column ``index`` as text.

    :raises DecodeError: the text is not UTF-8, or longer than an array can hold.
    """
    total = int(located.totals[index])
    _check_total(where, total)
    offsets: Int32s = np.empty(located.rows + 1, np.int32)
    values = pa.allocate_buffer(total + OVERRUN)
    copy_values(
        located.data, located.starts[index], located.lengths[index], located.rows, offsets,
        np.frombuffer(values, np.uint8),
    )  # fmt: skip
    array = pa.Array.from_buffers(
        pa.utf8(),
        located.rows,
        [located.validity(index), pa.py_buffer(offsets), values.slice(0, total)],
        int(located.nulls[index]),
    )
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeError(
            f"the text is not UTF-8: {error}",
            where=where,
            hint="the row is damaged, because the server accepts only valid text: correct the row, or leave the "
            "column out with `Table.columns`",
        ) from error
    return array


def _binaries(where: str, located: Located, index: int) -> pa.Array:
    total = int(located.totals[index])
    _check_total(where, total)
    offsets: Int32s = np.empty(located.rows + 1, np.int32)
    out: Bytes = np.empty(total // 2, np.uint8)
    bad = _parse_hex(located.data, located.starts[index], located.lengths[index], located.rows, offsets, out)
    _check(bad, where, "bytea in hexadecimal digits")
    buffers = [located.validity(index), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), located.rows, buffers, int(located.nulls[index]))


def _check_total(where: str, total: int) -> None:
    if total > LARGEST:
        raise DecodeError(
            f"the rows have {total} bytes in this column, which is more than an Arrow array can hold", where=where
        )


def _check(bad: int, where: str, what: str) -> None:
    if bad != ALL_GOOD:
        raise DecodeError(f"the value in row {bad} of the batch is not {what}", where=where)


@kernel
def _parse_bools(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, out: Bytes) -> int:
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            if lengths[row] != 1:
                return row
            letter = load8(data, start)
            if letter == 0x74:
                out[row >> 3] |= 1 << (row & 7)
            elif letter != 0x66:
                return row
    return ALL_GOOD


@kernel
def _parse_integers(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, low: int, high: int, out: Int64s) -> int:
    for row in range(rows):
        at = int(starts[row])
        value = 0
        if at >= 0:
            end = at + int(lengths[row])
            negative = at < end and load8(data, at) == 0x2D
            if negative:
                at += 1
            if end - at < 1 or end - at > 19:
                return row
            # Compute the value as a negative number, because the lowest integer has no positive counterpart. If the
            # value is too large for the type, the computed number becomes positive.
            while at < end:
                digit = load8(data, at) - 0x30
                if digit < 0 or digit > 9:
                    return row
                value = wrapping_add(wrapping_multiply(value, 10), -digit)
                at += 1
            if value > 0 or (not negative and value < -high):
                return row
            if not negative:
                value = -value
            if value < low:
                return row
        out[row] = value
    return ALL_GOOD


@inner
def _hex_digit(letter: int) -> int:
    if 0x30 <= letter <= 0x39:
        return letter - 0x30
    if 0x61 <= letter <= 0x66:
        return letter - 0x57
    return -1


@kernel
def _parse_hex(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, offsets: Int32s, out: Bytes) -> int:
    filled = 0
    offsets[0] = 0
    for row in range(rows):
        at = int(starts[row])
        if at >= 0:
            end = at + int(lengths[row])
            if end - at < 2 or (end - at) & 1 or load8(data, at) != 0x5C or load8(data, at + 1) != 0x78:
                return row
            at += 2
            while at < end:
                first, second = _hex_digit(load8(data, at)), _hex_digit(load8(data, at + 1))
                if first < 0 or second < 0:
                    return row
                store8(out, filled, first << 4 | second)
                filled += 1
                at += 2
        offsets[row + 1] = filled
    return ALL_GOOD


@inner
def _two_digits(data: Bytes, at: int) -> int:
    """Return the number that two digits represent. A negative result means that the two characters are not digits."""
    first, second = load8(data, at) - 0x30, load8(data, at + 1) - 0x30
    if first < 0 or first > 9 or second < 0 or second > 9:
        return -1
    return int(first * 10 + second)


@inner
def _infinity(data: Bytes, at: int, end: int) -> int:
    """Return 1 for ``infinity``, -1 for ``-infinity``, 0 for anything else."""
    sign = 1
    if at < end and load8(data, at) == 0x2D:
        sign = -1
        at += 1
    if end - at != 8:
        return 0
    word = 0
    for index in range(8):
        word = word << 8 | load8(data, at + index)
    return sign if word == 0x696E66696E697479 else 0


@inner
def _time_of_day(data: Bytes, at: int, end: int) -> int:
    """Parse a time ``hh:mm:ss`` that may have up to six decimals, and return it in microseconds. A negative result
    means that the text is not a time."""
    if end - at < 8 or load8(data, at + 2) != 0x3A or load8(data, at + 5) != 0x3A:
        return -1
    hour, minute, second = _two_digits(data, at), _two_digits(data, at + 3), _two_digits(data, at + 6)
    if hour < 0 or minute < 0 or second < 0 or hour > 24 or minute > 59 or second > 59:
        return -1
    at += 8
    fraction = 0
    if at < end:
        digits = end - at - 1
        if load8(data, at) != 0x2E or digits < 1 or digits > 6:
            return -1
        for index in range(6):
            digit = load8(data, at + 1 + index) - 0x30 if index < digits else 0
            if digit < 0 or digit > 9:
                return -1
            fraction = fraction * 10 + digit
    micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    return micros if micros <= DAY_MICROS else -1


@kernel
def _parse_times(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        value = 0
        if start >= 0:
            value = _time_of_day(data, start, start + int(lengths[row]))
            if value < 0:
                return row
        out[row] = value
    return ALL_GOOD


@kernel
def _parse_dates(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, kind: int, out: Int64s) -> int:
    for row in range(rows):
        at = int(starts[row])
        if at < 0:
            out[row] = 0
            continue
        end = at + int(lengths[row])
        sign = _infinity(data, at, end)
        if sign != 0:
            if kind == _DATE:
                out[row] = INFINITE_DAY if sign > 0 else MINUS_INFINITE_DAY
            else:
                out[row] = INFINITE_MICRO if sign > 0 else MINUS_INFINITE_MICRO
            continue
        before_christ = (
            end - at > 3
            and load8(data, end - 1) == 0x43
            and load8(data, end - 2) == 0x42
            and load8(data, end - 3) == 0x20
        )
        if before_christ:
            end -= 3
        year = 0
        digits = 0
        while at < end and digits < 8 and load8(data, at) != 0x2D:
            digit = load8(data, at) - 0x30
            if digit < 0 or digit > 9:
                return row
            year = year * 10 + digit
            digits += 1
            at += 1
        if digits < 4 or digits > 7 or year < 1 or end - at < 6 or load8(data, at + 3) != 0x2D:
            return row
        if before_christ:
            year = 1 - year
        month, day = _two_digits(data, at + 1), _two_digits(data, at + 4)
        if month < 1 or month > 12 or day < 1 or day > month_days(year, month):
            return row
        at += 6
        value = days_of(year, month, day)
        if kind != _DATE:
            if kind == _TIMESTAMP_UTC:
                if end - at < 3 or load8(data, end - 3) != 0x2B or _two_digits(data, end - 2) != 0:
                    return row
                end -= 3
            if digits > 6 or at >= end or load8(data, at) != 0x20:
                return row
            time = _time_of_day(data, at + 1, end)
            if time < 0 or time >= DAY_MICROS:
                return row
            # If the result is beyond the range of Arrow, it wraps around, as in ADBC.
            value = wrapping_add(wrapping_multiply(value, DAY_MICROS), time)
        elif at != end:
            return row
        out[row] = value
    return ALL_GOOD
