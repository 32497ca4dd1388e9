"""Cells, the intermediate form of values between MySQL's two binary formats and Arrow.

First, the *locate* kernel of a format (``rows``, ``images``) finds every value of a batch of rows. Then, for each
column, a kernel converts the values to cells. ``columns.finish`` builds the Arrow array, in the same way for both
formats.

===============  ===========================================================================================
family           cell
===============  ===========================================================================================
NUMBER           the number, little-endian, as wide as its Arrow type
YEAR             int16
DECIMAL          128-bit integer: the value times 10^scale
WIDE_DECIMAL     int32 offsets, and the text that MySQL prints
BITS, SET        uint64
ENUM             int64: index into the members, from 1
DATE DATETIME    int64: ``calendar.pack_datetime``, which also represents dates that are not in the calendar
TIMESTAMP        the same, in UTC
TIME             int64: microseconds
BYTES TEXT JSON  int32 offsets, and the bytes as they are stored
VECTOR           the same
===============  ===========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    kernel,
    load8,
    load16,
    load32,
    load64,
    load_be,
    load_le,
    store8,
    store16,
    store32,
    store64,
)
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.log.located_values import ALL_GOOD as ALL_GOOD
from airflow_provider_cdc.sources.log.located_values import LARGEST, OVERRUN, copy_values
from airflow_provider_cdc.sources.log.located_values import Located as Located
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType


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
