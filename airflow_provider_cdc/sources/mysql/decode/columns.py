"""Builds Arrow arrays from cells, in the same way for rows of a SELECT and for images of the log."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import Bytes, Int32s, Int64s, kernel
from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, note
from airflow_provider_cdc.sources.mysql.decode.calendar import (
    DATE_SHIFT,
    DAY_MICROS,
    NO_DATE,
    days_of,
    micros_of_day,
    text_of,
)
from airflow_provider_cdc.sources.mysql.decode.cells import ALL_GOOD, Cells
from airflow_provider_cdc.sources.mysql.decode.no_dates import printed, without_no_dates
from airflow_provider_cdc.sources.mysql.decode.text import no_text, text_array, to_utf8, value_at, with_bytes_shown
from airflow_provider_cdc.sources.mysql.decode.wide_decimals import fitting
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family


def finish(
    table: str,
    column: ColumnType,
    cells: Cells,
    nulled: dict[str, int] | None = None,
    odd: list[OddValue] | None = None,
) -> pa.Array:
    """Return the Arrow array of type ``column.arrow`` for ``cells``.

    :param table: the table's name, for messages.
    :param nulled: for each column name, the number of values that the policy made null. This call adds to these
        numbers.
    :param odd: with the policy ``error``, receives the values that the Arrow type cannot hold. In the array, 1970-01-01
        or the empty text replaces such a value. Text that cannot be decoded is also added to ``odd`` with the policy
        ``string``.
    :raises ValueNotRepresentable: the policy is ``error``, ``odd`` is None, and the Arrow type cannot hold a value,
        such as a zero date.
    :raises DecodeError: a NULL in a NOT NULL column, an enum or set value that is not a member, or a vector whose size
        is not a whole number of floats.
    """
    where = f"{table}.{column.name}"
    if cells.nulls and not column.nullable:
        raise DecodeError("NULL in a NOT NULL column", where=where)
    stored = cells.nulls
    array = _array(where, column, cells, odd)
    if nulled is not None and array.null_count > stored:
        nulled[column.name] = nulled.get(column.name, 0) + array.null_count - stored
    return array


def _array(where: str, column: ColumnType, cells: Cells, odd: list[OddValue] | None) -> pa.Array:
    match column.family:
        case Family.NUMBER | Family.YEAR | Family.DECIMAL | Family.TIME:
            return _fixed(column.arrow, cells, cells.values)
        case Family.WIDE_DECIMAL:
            if column.policy == "string":
                return _strings(column.arrow, cells)
            cells = fitting(column, cells)
            return _fixed(column.arrow, cells, cells.values)
        case Family.DATE | Family.DATETIME | Family.TIMESTAMP if column.policy == "string":
            return _strings(column.arrow, printed(column, cells))
        case Family.DATE | Family.DATETIME | Family.TIMESTAMP:
            return _moments(where, column, cells, odd)
        case Family.BITS:
            return _bits(column, cells)
        case Family.ENUM:
            return _enum(where, column, cells)
        case Family.SET:
            return _set(where, column, cells)
        case Family.BYTES:
            return _strings(column.arrow, cells)
        case Family.VECTOR:
            return _vectors(where, column, cells)
        case Family.TEXT | Family.JSON:
            return _strings(column.arrow, _text(where, column, cells, odd))


def _fixed(arrow: pa.DataType, cells: Cells, values: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(arrow, cells.rows, [cells.validity, values], cells.nulls)


def _strings(arrow: pa.DataType, cells: Cells) -> pa.Array:
    return pa.Array.from_buffers(arrow, cells.rows, [cells.validity, cells.offsets, cells.values], cells.nulls)


def _text(where: str, column: ColumnType, cells: Cells, odd: list[OddValue] | None) -> Cells:
    """Convert the values to UTF-8, and apply the policy to values that cannot be decoded."""
    offsets, stored = cells.offsets, cells.values
    assert offsets is not None
    undecodable: Bytes = np.zeros(cells.rows, np.uint8)
    decoded = to_utf8(where, column.charset, cells.rows, offsets, stored, undecodable, apart=column.apart)
    if not undecodable.any():
        return Cells(cells.rows, cells.nulls, cells.validity, decoded[1], decoded[0])
    if column.policy == "null":
        validity = cells.own_validity() & ~np.packbits(undecodable, bitorder="little")
        nulls = cells.nulls + int(np.count_nonzero(undecodable))
        return Cells(cells.rows, nulls, pa.py_buffer(validity), decoded[1], decoded[0])
    if column.policy == "string":
        decoded = with_bytes_shown(where, offsets, stored, undecodable, decoded)
        note(odd, column.name, undecodable, None)
    else:
        note(
            odd,
            column.name,
            undecodable,
            lambda row: no_text(where, column.charset, value_at(offsets, stored, row), apart=column.apart),
        )
    return Cells(cells.rows, cells.nulls, cells.validity, decoded[1], decoded[0])


def _moments(where: str, column: ColumnType, cells: Cells, odd: list[OddValue] | None) -> pa.Array:
    values, bad = _counted(column, cells)
    if bad != ALL_GOOD:
        cleared = without_no_dates(cells)
        if column.policy == "null":
            cells = cleared
        else:
            packed = cells.int64()

            def error(row: int) -> ValueNotRepresentable:
                text = text_of(int(packed[row]))
                return _no_date(where, column, text[:10] if column.family is Family.DATE else text)

            note(odd, column.name, _bits_of(cells) & (_bits_of(cleared) ^ 1), error)
        # For a row without a valid value, the kernel writes 1970-01-01.
        values, _ = _counted(column, cleared)
    return _fixed(column.arrow, cells, values)


def _bits_of(cells: Cells) -> Bytes:
    """Return one byte per row: 1 if the row has a value, 0 if the value is NULL."""
    return np.unpackbits(cells.own_validity(), count=cells.rows, bitorder="little")


def _counted(column: ColumnType, cells: Cells) -> tuple[pa.Buffer, int]:
    """Return the days or microseconds since 1970 of each row, and the first row whose date is not in the calendar."""
    if column.family is Family.DATE:
        values = pa.allocate_buffer(cells.rows * 4)
        return values, _to_days(cells.int64(), cells.valid(), np.frombuffer(values, np.int32))
    values = pa.allocate_buffer(cells.rows * 8)
    return values, _to_micros(cells.int64(), cells.valid(), np.frombuffer(values, np.int64))


def _no_date(where: str, column: ColumnType, value: str) -> ValueNotRepresentable:
    return ValueNotRepresentable(
        f"the {column.family.value} {value} is not a calendar date, so no {column.arrow} can hold it",
        where=where,
        hint="set the option `unrepresentable` to `string`. `null` is also possible, unless the column is part of a "
        f"key or its table has no key. Or correct the rows where {column.select} is {value!r}, or leave the "
        "table out",
    )


def _bits(column: ColumnType, cells: Cells) -> pa.Array:
    if column.precision > 1:
        return _fixed(column.arrow, cells, cells.values)
    bits = np.packbits(cells.int64() != 0, bitorder="little")
    return _fixed(column.arrow, cells, pa.py_buffer(bits))


def _enum(where: str, column: ColumnType, cells: Cells) -> pa.Array:
    indices = cells.int64()
    if len(indices) and int(indices.max()) > len(column.labels):
        raise DecodeError(
            f"the value is member {int(indices.max())} of an enum with {len(column.labels)} members", where=where
        )
    narrow = indices.astype(np.int16 if column.arrow.index_type == pa.int16() else np.int32)
    # The server numbers the members from 1. The number 0 is the empty text, which the server stores instead of an
    # invalid value.
    labels = text_array(["", *column.labels])
    return pa.DictionaryArray.from_arrays(_fixed(column.arrow.index_type, cells, pa.py_buffer(narrow)), labels)


def _set(where: str, column: ColumnType, cells: Cells) -> pa.Array:
    masks, places = np.unique(cells.int64().view(np.uint64), return_inverse=True)
    if len(masks) and int(masks[-1]) >> len(column.labels):
        raise DecodeError(
            f"the value has the members {int(masks[-1]):#x} of a set with {len(column.labels)} members", where=where
        )
    texts = text_array(
        [",".join(label for bit, label in enumerate(column.labels) if int(mask) >> bit & 1) for mask in masks]
    )
    place = Cells(cells.rows, cells.nulls, cells.validity, pa.py_buffer(places.astype(np.int64)))
    return texts.take(_fixed(pa.int64(), place, place.values))


def _vectors(where: str, column: ColumnType, cells: Cells) -> pa.Array:
    assert cells.offsets is not None
    ends = np.frombuffer(cells.offsets, np.int32, cells.rows + 1)
    if (ends & 3).any():
        raise DecodeError("the length of a vector is not a whole number of floats", where=where)
    numbers = pa.Array.from_buffers(pa.float32(), int(ends[-1]) // 4, [None, cells.values])
    offsets = pa.py_buffer(ends >> 2)
    return pa.Array.from_buffers(column.arrow, cells.rows, [cells.validity, offsets], cells.nulls, children=[numbers])


@kernel
def _to_days(packed: Int64s, valid: Bytes, out: Int32s) -> int:
    for row in range(len(packed)):
        days = days_of(packed[row])
        if days == NO_DATE:
            if len(valid) == 0 or (valid[row >> 3] >> (row & 7)) & 1:
                return row
            days = 0
        out[row] = days
    return ALL_GOOD


@kernel
def _to_micros(packed: Int64s, valid: Bytes, out: Int64s) -> int:
    # Keep the last converted date: neighbouring rows often have the same date, and converting the date takes most of
    # the time.
    date, days = -1, NO_DATE
    for row in range(len(packed)):
        value = packed[row]
        if value >> DATE_SHIFT != date:
            date, days = value >> DATE_SHIFT, days_of(value)
        if days != NO_DATE:
            out[row] = days * DAY_MICROS + micros_of_day(value)
        elif len(valid) == 0 or (valid[row >> 3] >> (row & 7)) & 1:
            return row
        else:
            out[row] = 0
    return ALL_GOOD
