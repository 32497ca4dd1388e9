"""Converts arrays to the published Arrow types. This is the last step of decoding.

The step is the same for rows from a SELECT and for row images from the log, because both arrive in arrays of ADBC's
types. It applies the policy for values that Arrow cannot represent. It also replaces every NaN by the same NaN, because
the bits of NaNs can differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    bytes_of,
    inner,
    kernel,
    load8,
    multiply_add_128,
    negative_128,
    store8,
)
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import DecodeError, SchemaChanged, ValueNotRepresentable
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, check_noted, naming_key, note
from airflow_provider_cdc.sources.log.netting import ALL_GOOD, NULL, Located
from airflow_provider_cdc.sources.postgres.catalog.types import ColumnType, Family, arrow_schema, column_types
from airflow_provider_cdc.sources.postgres.decode.image_cells import (
    DAY_MICROS,
    FIRST_DAY,
    FIRST_MICRO,
    image_array,
    text_of_day,
    text_of_micro,
    text_of_time,
)

# Splits the texts of arrays into their elements.
#
# array_out writes an array as ``{1,NULL,3}``. Elements with special characters are in double quotes, with backslashes
# before quotes and backslashes. An array of several dimensions has braces inside braces. If a lower bound is not 1, the
# bounds precede the array: ``[0:1]={7,8}``. A list has neither dimensions nor bounds, so it cannot represent such
# arrays.


_COMMA = 0x2C


@dataclass(frozen=True)
class SplitArrays:
    """The elements of a batch of arrays.

    ``elements`` has the texts of all elements, as column 0. ``ends`` are the numbers of elements before each array, and
    the number of all elements. ``odd`` has the arrays that no list represents, one byte each; their elements are left
    out.
    """

    elements: Located
    ends: Int32s
    odd: np.ndarray[Any, Any]


def split_arrays(where: str, texts: pa.StringArray) -> SplitArrays:
    """Split the texts of arrays.

    :param where: the column's name, for messages.
    :raises DecodeError: a text is not the text of an array.
    """
    rows = len(texts)
    _, offsets, values = texts.buffers()
    places = bytes_of(offsets).view(np.int32)[texts.offset : texts.offset + rows + 1]
    data = bytes_of(values) if values is not None else np.zeros(0, np.uint8)
    used = data[int(places[0]) : int(places[-1])] if rows else data[:0]
    most = int(np.count_nonzero(used == _COMMA)) + rows
    starts, lengths = np.empty((2, 1, most), np.int32)
    ends: Int32s = np.zeros(rows + 1, np.int32)
    out: Bytes = np.empty(len(used), np.uint8)
    odd: Bytes = np.zeros(rows, np.uint8)
    sums: Int64s = np.zeros(2, np.int64)
    valid: Bytes = np.asarray(texts.is_valid()).astype(np.uint8)
    bad = _split(data, places, valid, starts[0], lengths[0], ends, out, odd, sums)
    if bad != ALL_GOOD:
        raise DecodeError(f"the value in row {bad} of the batch is not the text of an array", where=where)
    nulls, total = int(sums[0]), int(sums[1])
    elements = Located(out, starts, lengths, np.array([nulls]), np.array([total]), int(ends[-1]))
    return SplitArrays(elements, ends, odd.view(np.bool_))


@kernel
def _split(
    data: Bytes,
    places: Int32s,
    valid: Bytes,
    starts: Int32s,
    lengths: Int32s,
    ends: Int32s,
    out: Bytes,
    odd: Bytes,
    sums: Int64s,
) -> int:
    """Fill the fields of `SplitArrays`. Return the number of the first malformed text, or ALL_GOOD."""
    count = filled = nulls = 0
    for row in range(len(valid)):
        ends[row] = count
        if not valid[row]:
            continue
        at, end = int(places[row]), int(places[row + 1])
        if end - at < 2 or load8(data, end - 1) != 0x7D:
            return row
        first = load8(data, at)
        if first == 0x5B:
            odd[row] = 1
            continue
        if first != 0x7B:
            return row
        at += 1
        if load8(data, at) == 0x7B:
            odd[row] = 1
            continue
        end -= 1
        while at < end:
            start = filled
            is_null = False
            if load8(data, at) == 0x22:
                at += 1
                while at < end and load8(data, at) != 0x22:
                    if load8(data, at) == 0x5C:
                        at += 1
                        if at >= end:
                            return row
                    store8(out, filled, load8(data, at))
                    filled += 1
                    at += 1
                if at >= end:
                    return row
                at += 1
            else:
                begin = at
                while at < end and load8(data, at) != _COMMA:
                    letter = load8(data, at)
                    if letter == 0x22 or letter == 0x5C or letter == 0x7B or letter == 0x7D:
                        return row
                    store8(out, filled, letter)
                    filled += 1
                    at += 1
                if at == begin:
                    return row
                is_null = (
                    at - begin == 4
                    and load8(data, begin) == 0x4E
                    and load8(data, begin + 1) == 0x55
                    and load8(data, begin + 2) == 0x4C
                    and load8(data, begin + 3) == 0x4C
                )
            if is_null:
                filled = start
                starts[count] = NULL
                lengths[count] = 0
                nulls += 1
            else:
                starts[count] = start
                lengths[count] = filled - start
            count += 1
            if at < end:
                if load8(data, at) != _COMMA or at + 1 == end:
                    return row
                at += 1
    ends[len(valid)] = count
    sums[0] = nulls
    sums[1] = filled
    return ALL_GOOD


_UUID_BYTES, _UUID_LETTERS = 16, 36
_NEW_RUN = "do not change the definitions of copied tables during a run; trigger a new run"
_CHUNK = 10**18
_SHOWN = 60
"""The maximum number of characters of an array in a message."""

NO_NUMBER = -(2**63)
"""The high half of a decimal that is NaN or infinite. No other decimal has this high half. The low half of a NaN or
infinite decimal is the sign field that numeric_send writes."""
_NO_NUMBERS = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


def finish_batch(
    table: Table, batch: pa.RecordBatch, nulled: dict[str, int] | None = None, odd: list[OddValue] | None = None
) -> pa.RecordBatch:
    """Convert arrays from ADBC or `row_cells`, in the order of ``types.select_list``, to rows with
    ``types.arrow_schema``.

    :param nulled: for each column, the number of values that the policy replaced by null. This call increases the
        numbers.
    :param odd: collects values that the Arrow type cannot represent, if the policy is ``error``. A placeholder replaces
        each of these values. Values that must stop the run at once are not collected
        (`sources.api.unrepresentable.check_noted`).
    :raises ValueNotRepresentable: the Arrow type cannot represent a value, the policy is ``error``, and the value was
        not collected.
    :raises SchemaChanged: the columns have other types than in ``table``, or there is a NULL in a NOT NULL column.
    """
    columns = column_types(table)
    if batch.schema.names != [column.name for column in columns]:
        raise SchemaChanged(f"the columns are {', '.join(batch.schema.names)}", where=str(table.name), hint=_NEW_RUN)
    noted: list[OddValue] = []
    arrays = [
        finish(str(table.name), column, array, nulled, noted)
        for column, array in zip(columns, batch.columns, strict=True)
    ]
    finished = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(table))
    if odd is None and noted:
        raise naming_key(table, finished, noted, noted[0])
    check_noted(table, finished, noted)
    if odd is not None:
        odd += noted
    return finished


def finish(
    table: str,
    column: ColumnType,
    array: pa.Array,
    nulled: dict[str, int] | None = None,
    odd: list[OddValue] | None = None,
) -> pa.Array:
    """Convert ``array`` to the type ``column.arrow``.

    :param table: the table's name, for messages.
    :param nulled: for each column, the number of values that became null. This call increases the numbers.
    :param odd: collects values that the Arrow type cannot hold, if the policy is ``error``.
    :raises ValueNotRepresentable: the Arrow type cannot hold a value, the policy is ``error``, and the value was not
        collected.
    :raises SchemaChanged: the array's type is not ADBC's type for the column, or a NOT NULL column has a NULL.
    """
    where = f"{table}.{column.name}"
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.null_count and not column.stored_nulls:
        raise SchemaChanged("a NULL in a column that was NOT NULL", where=where, hint=_NEW_RUN)
    if column.family is Family.UUID and array.type == pa.binary(_UUID_BYTES):
        return _uuids(array)
    text = column.family is Family.LIST or (column.family is Family.DECIMAL and array.type == pa.utf8())
    expected = pa.utf8() if text else column.arrow
    if array.type != expected:
        raise SchemaChanged(f"the values are of type {array.type}, not {expected}", where=where, hint=_NEW_RUN)
    match column.family:
        case Family.FLOAT:
            return _floats(array)
        case Family.DECIMAL if not text:
            halves = _values(array, np.int64)
            strange = halves[1::2] == NO_NUMBER
            return _without(where, column, array, strange, lambda row: _NO_NUMBERS[int(halves[2 * row])], nulled, odd)
        case Family.DECIMAL:
            decimals, strange = _decimals(where, column, array)
            return _without(where, column, decimals, strange, lambda row: str(array[row]), nulled, odd)
        case Family.DATE:
            values = _values(array, np.int32)
            strange = values < FIRST_DAY
            return _without(where, column, array, strange, lambda row: text_of_day(int(values[row])), nulled, odd)
        case Family.TIMESTAMP:
            values = _values(array, np.int64)
            strange = values < FIRST_MICRO
            return _without(where, column, array, strange, lambda row: text_of_micro(int(values[row])), nulled, odd)
        case Family.TIME:
            values = _values(array, np.int64)
            strange = values >= DAY_MICROS
            return _without(where, column, array, strange, lambda row: text_of_time(int(values[row])), nulled, odd)
        case Family.LIST:
            lists, strange = _lists(table, column, array)
            return _without_lists(where, column, lists, strange, lambda row: _cut(str(array[row])), nulled, odd)
    return array


def _values(array: pa.Array, kind: type[Any]) -> np.ndarray[Any, Any]:
    """Return the values of a fixed-width array as numbers of ``kind``, with two numbers for each decimal. For a null,
    the numbers are arbitrary."""
    numbers: np.ndarray[Any, Any] = bytes_of(array.buffers()[1]).view(kind)
    each = int(array.type.bit_width) // (8 * numbers.itemsize)
    return numbers[each * array.offset : each * (array.offset + len(array))]


def _without(
    where: str,
    column: ColumnType,
    array: pa.Array,
    strange: np.ndarray[Any, Any],
    text: Callable[[int], str],
    nulled: dict[str, int] | None,
    odd: list[OddValue] | None,
) -> pa.Array:
    """Return ``array`` without the ``strange`` values, or raise an error that names the first strange value."""
    if not strange.any():
        return array
    strange &= np.asarray(array.is_valid())
    count = int(np.count_nonzero(strange))
    if not count:
        return array
    width = array.type.byte_width
    values = array.buffers()[1].slice(array.offset * width, len(array) * width)
    if column.policy == "error":
        note(odd, column.name, strange, _refusal(where, column, text))
        placeholders = np.frombuffer(values, np.uint8).reshape(len(array), width).copy()
        placeholders[strange] = 0
        return pa.Array.from_buffers(array.type, len(array), [_validity(array), pa.py_buffer(placeholders)])
    if nulled is not None:
        nulled[column.name] = nulled.get(column.name, 0) + count
    valid = np.packbits(np.asarray(array.is_valid()) & ~strange, bitorder="little")
    return pa.Array.from_buffers(array.type, len(array), [pa.py_buffer(valid), values])


def _without_lists(
    where: str,
    column: ColumnType,
    lists: pa.ListArray,
    strange: np.ndarray[Any, Any],
    text: Callable[[int], str],
    nulled: dict[str, int] | None,
    odd: list[OddValue] | None,
) -> pa.Array:
    """Do what `_without` does, for lists."""
    count = int(np.count_nonzero(strange))
    if not count:
        return lists
    if column.policy == "error":
        note(odd, column.name, strange, _refusal(where, column, text))
    elif nulled is not None:
        nulled[column.name] = nulled.get(column.name, 0) + count
    placeholder = pa.scalar([] if column.policy == "error" else None, lists.type)
    return pc.if_else(pa.array(strange), placeholder, lists)


def _lists(table: str, column: ColumnType, array: pa.StringArray) -> tuple[pa.ListArray, np.ndarray[Any, Any]]:
    """Parse the texts of arrays. Return the lists, and which of the arrays no list of the column's type represents."""
    assert column.element is not None
    where = f"{table}.{column.name}"
    arrays = split_arrays(where, array)
    parsed = image_array(where, column.element, arrays.elements, 0)
    elements = finish(table, column.element, parsed)
    strange = arrays.odd
    if elements.null_count != parsed.null_count:
        unfit = np.flatnonzero(np.asarray(parsed.is_valid()) & ~np.asarray(elements.is_valid()))
        strange = strange.copy()
        strange[np.searchsorted(arrays.ends, unfit, side="right") - 1] = True
    buffers = [_validity(array), pa.py_buffer(arrays.ends)]
    lists = pa.Array.from_buffers(column.arrow, len(array), buffers, array.null_count, children=[elements])
    return lists, strange


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _refusal(where: str, column: ColumnType, text: Callable[[int], str]) -> Callable[[int], ValueNotRepresentable]:
    """Return the function that creates the error for the value in a row."""

    def error(row: int) -> ValueNotRepresentable:
        value = text(row)
        return ValueNotRepresentable(
            f"the {column.family.value} {value} does not fit into {column.arrow}",
            where=where,
            hint="set `On.unrepresentable` to `string`, which publishes the column as text. `null` is also "
            "possible, unless the column is part of a key or its table has no key. Or correct the rows in which "
            f"{column.name} is {value!r}, or leave the table out",
        )

    return error


def _floats(array: pa.Array) -> pa.Array:
    """Give every NaN the same bits as a NaN that is parsed from a text."""
    values = _values(array, np.float32 if array.type == pa.float32() else np.float64)
    odd = np.isnan(values)
    if not odd.any():
        return array
    values = np.where(odd, values.dtype.type("nan"), values)
    return pa.Array.from_buffers(array.type, len(array), [_validity(array), pa.py_buffer(values)], array.null_count)


def _uuids(array: pa.Array) -> pa.Array:
    stored = array.buffers()[1].slice(array.offset * _UUID_BYTES, len(array) * _UUID_BYTES)
    rows = len(array)
    letters: Bytes = np.empty(rows * _UUID_LETTERS, np.uint8)
    _print_uuids(bytes_of(stored), rows, letters)
    offsets = np.arange(0, (rows + 1) * _UUID_LETTERS, _UUID_LETTERS, dtype=np.int32)
    buffers = [_validity(array), pa.py_buffer(offsets), pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.utf8(), rows, buffers, array.null_count)


def _decimals(where: str, column: ColumnType, array: pa.Array) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Parse the texts of decimals. Return the numbers, and which of them are NaN or infinite."""
    rows = len(array)
    _, offsets, data = array.buffers()
    ends = bytes_of(offsets).view(np.int32)[array.offset : array.offset + rows + 1]
    values: Int64s = np.zeros(2 * rows, np.int64)
    odd: Bytes = np.zeros(rows, np.uint8)
    valid: Bytes = np.asarray(array.is_valid()).astype(np.uint8)
    bad = _parse_decimals(bytes_of(data), ends, valid, column.precision - column.scale, column.scale, values, odd)
    if bad != ALL_GOOD:
        raise DecodeError(f"{str(array[bad])!r} is not a {column.arrow}", where=where)
    buffers = [_validity(array), pa.py_buffer(values)]
    return pa.Array.from_buffers(column.arrow, rows, buffers, array.null_count), odd.view(np.bool_)


def _validity(array: pa.Array) -> pa.Buffer | None:
    """Return the validity bitmap, starting at bit 0."""
    if not array.null_count:
        return None
    return pa.py_buffer(np.packbits(np.asarray(array.is_valid()), bitorder="little"))


@kernel
def _print_uuids(stored: Bytes, rows: int, out: Bytes) -> None:
    at = 0
    for row in range(rows):
        for index in range(16):
            if index == 4 or index == 6 or index == 8 or index == 10:
                out[at] = 0x2D
                at += 1
            value = load8(stored, 16 * row + index)
            high, low = value >> 4, value & 15
            out[at] = high + (0x30 if high < 10 else 0x57)
            out[at + 1] = low + (0x30 if low < 10 else 0x57)
            at += 2


@inner
def _is_number(data: Bytes, at: int, end: int) -> bool:
    """Return whether the text of a numeric is a number, and not ``NaN``, ``Infinity`` or ``-Infinity``."""
    size = end - at
    if size == 3:
        return not (load8(data, at) == 0x4E and load8(data, at + 1) == 0x61 and load8(data, at + 2) == 0x4E)
    if size == 9 and load8(data, at) == 0x2D:
        at += 1
    elif size != 8:
        return True
    word = 0
    for index in range(8):
        word = word << 8 | load8(data, at + index)
    return word != 0x496E66696E697479


@kernel
def _parse_decimals(
    data: Bytes, ends: Int32s, valid: Bytes, whole_digits: int, scale: int, out: Int64s, odd: Bytes
) -> int:
    """Multiply the values by 10^scale and write them as 128-bit integers. Return the index of the first malformed text,
    or ALL_GOOD."""
    for row in range(len(valid)):
        at, end = int(ends[row]), int(ends[row + 1])
        if not valid[row]:
            continue
        if not _is_number(data, at, end):
            odd[row] = 1
            continue
        negative = at < end and load8(data, at) == 0x2D
        if negative:
            at += 1
        low = high = part = 0
        power = 1
        whole = seen = 0
        fraction = -1
        while at < end or fraction < scale:
            digit = 0
            if at < end:
                letter = load8(data, at)
                at += 1
                if letter == 0x2E:
                    if fraction >= 0 or seen == 0 or at == end:
                        return row
                    fraction = 0
                    continue
                digit = letter - 0x30
                if digit < 0 or digit > 9:
                    return row
                seen += 1
            elif fraction < 0:
                fraction = 0
                continue
            if fraction >= 0:
                fraction += 1
                if fraction > scale:
                    return row
            elif whole > 0 or digit > 0:
                whole += 1
                if whole > whole_digits:
                    return row
            part = part * 10 + digit
            power *= 10
            if power == _CHUNK:
                low, high = multiply_add_128(low, high, power, part)
                part = 0
                power = 1
        if seen == 0:
            return row
        low, high = multiply_add_128(low, high, power, part)
        if negative:
            low, high = negative_128(low, high)
        out[2 * row] = low
        out[2 * row + 1] = high
    return ALL_GOOD
