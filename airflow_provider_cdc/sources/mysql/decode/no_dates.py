"""Converts dates that are not in the calendar to text or null, depending on the policy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import Bytes, Int32s, Int64s, inner, kernel, store8
from airflow_provider_cdc.sources.mysql.decode.calendar import NO_DATE, days_of
from airflow_provider_cdc.sources.mysql.decode.cells import Cells
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family

_MINUS, _POINT, _ZERO, _COLON, _SPACE = 45, 46, 48, 58, 32


def printed(column: ColumnType, cells: Cells) -> Cells:
    """Return packed dates as the texts that SELECT prints, in the form of Arrow offsets and bytes.

    For example ``2024-02-31``, or ``2024-00-15 12:00:00.50`` with as many fractional digits as the column has.
    """
    offsets = pa.allocate_buffer((cells.rows + 1) * 4)
    clock = column.family is not Family.DATE
    size = 10 if not clock else 20 + column.scale if column.scale else 19
    values = pa.allocate_buffer((cells.rows - cells.nulls) * size)
    _print(
        cells.int64(),
        cells.valid(),
        clock,
        column.scale,
        np.frombuffer(offsets, np.int32),
        np.frombuffer(values, np.uint8),
    )
    return Cells(cells.rows, cells.nulls, cells.validity, values, offsets)


def without_no_dates(cells: Cells) -> Cells:
    """Return the packed dates, with nulls instead of dates that are not in the calendar."""
    validity = cells.own_validity()
    nulled = _clear_no_dates(cells.int64(), validity)
    return Cells(cells.rows, cells.nulls + nulled, pa.py_buffer(validity), cells.values)


@inner
def _put(out: Bytes, at: int, value: int, digits: int, before: int) -> int:
    """Write the character ``before`` (unless it is 0) and ``value`` in ``digits`` decimal digits. Return the offset
    after the digits."""
    if before:
        store8(out, at, before)
        at += 1
    for index in range(digits):
        store8(out, at + digits - 1 - index, _ZERO + value % 10)
        value //= 10
    return at + digits


@kernel
def _print(packed: Int64s, valid: Bytes, clock: bool, digits: int, offsets: Int32s, out: Bytes) -> None:
    at = 0
    offsets[0] = 0
    for row in range(len(packed)):
        if len(valid) == 0 or (valid[row >> 3] >> (row & 7)) & 1:
            value = packed[row]
            months = value >> 46
            at = _put(out, at, months // 13, 4, 0)
            at = _put(out, at, months % 13, 2, _MINUS)
            at = _put(out, at, (value >> 41) & 31, 2, _MINUS)
            if clock:
                at = _put(out, at, (value >> 36) & 31, 2, _SPACE)
                at = _put(out, at, (value >> 30) & 63, 2, _COLON)
                at = _put(out, at, (value >> 24) & 63, 2, _COLON)
                if digits:
                    fraction = value & 0xFF_FFFF
                    for _ in range(6 - digits):
                        fraction //= 10
                    at = _put(out, at, fraction, digits, _POINT)
        offsets[row + 1] = at


@kernel
def _clear_no_dates(packed: Int64s, validity: Bytes) -> int:
    nulled = 0
    for row in range(len(packed)):
        bit = 1 << (row & 7)
        if validity[row >> 3] & bit and days_of(packed[row]) == NO_DATE:
            validity[row >> 3] &= ~bit & 0xFF
            nulled += 1
    return nulled
