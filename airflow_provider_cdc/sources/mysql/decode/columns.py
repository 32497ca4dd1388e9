"""Builds Arrow arrays from cells, in the same way for rows of a SELECT and for images of the log."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    bytes_of,
    copy_bytes,
    inner,
    kernel,
    load8,
    load16be,
    store8,
)
from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, note
from airflow_provider_cdc.sources.mysql.decode.cells import (
    ALL_GOOD,
    DATE_SHIFT,
    DAY_MICROS,
    NO_DATE,
    Cells,
    days_of,
    fitting,
    micros_of_day,
    text_of,
)
from airflow_provider_cdc.sources.mysql.tables.charsets import CHARSETS, GB18030_EDITION, UTF8, Charset
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family

# Converts text from the character set of the column to UTF-8.
#
# Rows of a SELECT and images of the log both contain text in its stored form. So both are converted here, with the same
# result as the server's own conversion.


_UNDEFINED = -1
_LEAD = -2
_LEAD_OF_TWO = -3
_SINGLE_SHIFT_3 = 0x8F
"""In EUC, a character of three bytes begins with this byte."""
_BEYOND_UTF8 = {1: 0x80, 3: 0xF0, 4: 0x100}
"""Maps the maximum size of a character, in bytes, to a byte value. This value and greater values do not occur in
characters of at most this size."""


def to_utf8(
    where: str,
    charset: str,
    rows: int,
    offsets: pa.Buffer,
    values: pa.Buffer,
    undecodable: Bytes | None = None,
    *,
    apart: bool = False,
) -> tuple[pa.Buffer, pa.Buffer]:
    """Convert ``rows`` values of a column in ``charset``, given as Arrow offsets (int32) and bytes, to UTF-8.

    :param where: table and column, for messages.
    :param undecodable: one byte per row, initially 0. The byte is set to 1 if the value has a code that is not assigned
        to a character; the result then has the empty text for this row. None: such a value is an error.
    :param apart: if several codes are assigned to one character, accept only one of them, so that no two values become
        the same text. The other codes are treated as unassigned.
    :raises ValueNotRepresentable: a value has a code that is not assigned to a character.
    """
    marks: Bytes = np.zeros(rows, np.uint8) if undecodable is None else undecodable
    ends = np.frombuffer(offsets, np.int32, rows + 1)
    data = bytes_of(values)[: ends[-1]]
    decoded = _decoded(where, charset, ends, data, marks, apart=apart)
    if undecodable is None and marks.any():
        raise no_text(where, charset, value_at(offsets, values, int(np.argmax(marks))), apart=apart)
    return decoded or (offsets, values)


def value_at(offsets: pa.Buffer, values: pa.Buffer, row: int) -> bytes:
    """Return the bytes of the value in a row."""
    start, end = np.frombuffer(offsets, np.int32, row + 2)[-2:]
    return bytes_of(values)[start:end].tobytes()


def no_text(where: str, charset: str, value: bytes, *, apart: bool = False) -> ValueNotRepresentable:
    """Return the error for a value with a code that is not assigned to a character.

    :param apart: see `to_utf8`.
    """
    or_not_alone = ", or is a character that also has another code" if apart else ""
    shown = value[:40].hex() + ("…" if len(value) > 40 else "")
    return ValueNotRepresentable(
        f"the stored bytes x'{shown}' contain a code that is not a character of {charset}{or_not_alone}",
        where=where,
        hint="set `On.unrepresentable` to `string` (the stored bytes as 0x…). `null` is also possible, "
        "unless the column is part of a key or its table has no key. Or correct the rows, change the column to "
        "a binary type, or leave the column out with `Table.columns`",
    )


def with_bytes_shown(
    where: str, offsets: pa.Buffer, values: pa.Buffer, undecodable: Bytes, decoded: tuple[pa.Buffer, pa.Buffer]
) -> tuple[pa.Buffer, pa.Buffer]:
    """Return the result of `to_utf8` for ``offsets`` and ``values``, with each ``undecodable`` value replaced by ``0x``
    and the hexadecimal digits of its stored bytes."""
    rows = len(undecodable)
    ends, decoded_ends = (np.frombuffer(offset_buffer, np.int32, rows + 1) for offset_buffer in (offsets, decoded[0]))
    lengths = np.where(undecodable != 0, 2 + 2 * np.diff(ends.astype(np.int64)), np.diff(decoded_ends))
    size = int(lengths.sum())
    _check_size(where, size)
    out_offsets, out = pa.allocate_buffer((rows + 1) * 4), pa.allocate_buffer(size)
    _show_bytes(
        ends, bytes_of(values), undecodable, decoded_ends, bytes_of(decoded[1]),
        np.frombuffer(out_offsets, np.int32), bytes_of(out),
    )  # fmt: skip
    return out_offsets, out


def _decoded(
    where: str, charset: str, ends: Int32s, data: Bytes, marks: Bytes, *, apart: bool
) -> tuple[pa.Buffer, pa.Buffer] | None:
    """Return the result of `to_utf8`. None: the values are already UTF-8."""
    known, rows = CHARSETS[charset], len(ends) - 1
    if known.unit == 1 and known.ascii and (len(data) == 0 or int(data.max()) < 0x80):
        return None
    if known.codec == UTF8:
        return _validated(known.size, ends, data, marks)
    if charset == "gb18030":
        return _by_codec(ends, data, marks)
    out_offsets = pa.allocate_buffer((rows + 1) * 4)
    out_ends = np.frombuffer(out_offsets, np.int32)
    # A character that is stored in one to three bytes takes at most three bytes in UTF-8. A character that is stored in
    # four bytes takes at most four bytes in UTF-8.
    size = len(data) * (3 if known.unit == 1 else 2 if known.unit == 2 else 1)
    _check_size(where, size)
    out = pa.allocate_buffer(size)
    out_data = bytes_of(out)
    if known.unit == 1:
        _decode_by_table(ends, data, *_tables(charset, apart), out_ends, out_data, marks)
    else:
        little = charset == "utf16le"
        _decode_units(ends, data, known.unit, little, charset != "ucs2", out_ends, out_data, marks)
    return out_offsets, out


def _check_size(where: str, size: int) -> None:
    if size > 2**31 - 1:
        raise ValueNotRepresentable("a batch has more text than one Arrow array holds", where=where)


def text_array(texts: Sequence[str]) -> pa.StringArray:
    """Return an Arrow array of texts. ``pa.array`` would import pandas, which takes longer than reading a small
    table."""
    encoded = [text.encode() for text in texts]
    ends = np.array([0, *accumulate(map(len, encoded))], np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def _validated(size: int, ends: Int32s, data: Bytes, marks: Bytes) -> tuple[pa.Buffer, pa.Buffer] | None:
    """Validate text that is already UTF-8, with characters of up to ``size`` bytes."""
    buffers = [pa.py_buffer(ends), pa.py_buffer(data)]
    rows = len(ends) - 1
    try:
        pa.StringArray.from_buffers(rows, *buffers).validate(full=True)
    except pa.ArrowInvalid:
        pass
    else:
        if int(data.max()) < _BEYOND_UTF8[size]:
            return None
    for row, (start, end) in enumerate(pairwise(ends.tolist())):
        value = data[start:end].tobytes()
        marks[row] = not _is_utf8(value) or (len(value) > 0 and max(value) >= _BEYOND_UTF8[size])
    values = pa.BinaryArray.from_buffers(pa.binary(), rows, [None, *buffers])
    _, offsets, out = pc.if_else(pa.array(marks.view(np.bool_)), pa.scalar(b""), values).buffers()
    return offsets, out


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _by_codec(ends: Int32s, data: Bytes, marks: Bytes) -> tuple[pa.Buffer, pa.Buffer]:
    texts = []
    for row, (start, end) in enumerate(pairwise(ends.tolist())):
        try:
            texts.append(data[start:end].tobytes().decode("gb18030").translate(GB18030_EDITION))
        except UnicodeDecodeError:
            texts.append("")
            marks[row] = 1
    array = text_array(texts)
    return array.buffers()[1], array.buffers()[2]


@lru_cache
def _tables(charset: str, apart: bool) -> tuple[Int32s, Int32s, Int32s]:
    """Return three tables of code points. The first is indexed by a single byte. The second is indexed by two bytes
    (high byte first), for a first byte with the entry ``_LEAD``. The third is indexed by the last two of three bytes,
    for a first byte with the entry ``_LEAD_OF_TWO``. A table that is not needed is empty.

    :param apart: see `to_utf8`.
    """
    known = CHARSETS[charset]
    single, double, triple = _points(known, 0, 1), np.empty(0, np.int32), np.empty(0, np.int32)
    if known.size >= 2:
        double = np.full(65536, _UNDEFINED, np.int32)
        for lead in np.flatnonzero(single == _UNDEFINED):
            first = int(lead) << 8
            double[first : first + 256] = _points(known, first, 2)
            if double[first : first + 256].max() != _UNDEFINED:
                single[lead] = _LEAD
    if known.size == 3:
        triple = np.full(65536, _UNDEFINED, np.int32)
        for first in range(0, 65536, 256):
            triple[first : first + 256] = _points(known, _SINGLE_SHIFT_3 << 16 | first, 3)
        single[_SINGLE_SHIFT_3] = _LEAD_OF_TWO
    if apart:
        _keep_one_code_each(known, single, double, triple)
    return single, double, triple


def _keep_one_code_each(known: Charset, *tables: Int32s) -> None:
    """Keep only one code per character in all ``tables``: the ASCII code if the character has an ASCII code, otherwise
    the code that the codec writes, otherwise the first code.

    ASCII bytes are copied unchanged (`_decoded`), so only these bytes may stand for ASCII characters. The server itself
    converts a backslash to the two bytes 815F of sjis.
    """
    places: dict[int, list[tuple[int, int]]] = {}
    for width, table in enumerate(tables, 1):
        for code in np.flatnonzero(table >= 0):
            places.setdefault(int(table[code]), []).append((width, int(code)))
    for point, codes in places.items():
        if len(codes) == 1:
            continue
        written = chr(point).encode(known.codec, "ignore")
        preferred = len(written), int.from_bytes(written[-2:], "big")
        kept = codes[0] if codes[0][0] == 1 or preferred not in codes else preferred
        for place in codes:
            if place != kept:
                tables[place[0] - 1][place[1]] = _UNDEFINED


def _points(known: Charset, first: int, width: int) -> Int32s:
    return np.array([_code_point(known, code, width) for code in range(first, first + 256)], np.int32)


def _code_point(known: Charset, code: int, width: int) -> int:
    if code in known.corrections:
        corrected = known.corrections[code]
        return _UNDEFINED if corrected is None else corrected
    try:
        text = code.to_bytes(width, "big").decode(known.codec)
    except UnicodeDecodeError:
        return _UNDEFINED
    return ord(text) if len(text) == 1 else _UNDEFINED


@inner
def _put(out: Bytes, at: int, point: int) -> int:
    """Write one code point in UTF-8. Return the offset after it."""
    if point < 0x80:
        store8(out, at, point)
        return at + 1
    if point < 0x800:
        store8(out, at, 0xC0 | point >> 6)
        store8(out, at + 1, 0x80 | point & 0x3F)
        return at + 2
    if point < 0x10000:
        store8(out, at, 0xE0 | point >> 12)
        store8(out, at + 1, 0x80 | point >> 6 & 0x3F)
        store8(out, at + 2, 0x80 | point & 0x3F)
        return at + 3
    store8(out, at, 0xF0 | point >> 18)
    store8(out, at + 1, 0x80 | point >> 12 & 0x3F)
    store8(out, at + 2, 0x80 | point >> 6 & 0x3F)
    store8(out, at + 3, 0x80 | point & 0x3F)
    return at + 4


@kernel
def _decode_by_table(
    ends: Int32s,
    data: Bytes,
    single: Int32s,
    double: Int32s,
    triple: Int32s,
    out_ends: Int32s,
    out: Bytes,
    undecodable: Bytes,
) -> None:
    at = 0
    out_ends[0] = 0
    for row in range(len(ends) - 1):
        position, end = int(ends[row]), int(ends[row + 1])
        while position < end:
            code = load8(data, position)
            point = int(single[code])
            position += 1
            if point == _LEAD and position < end:
                point = int(double[code << 8 | load8(data, position)])
                position += 1
            elif point == _LEAD_OF_TWO and position + 1 < end:
                point = int(triple[load16be(data, position)])
                position += 2
            if point < 0:
                undecodable[row] = 1
                at = int(out_ends[row])
                break
            at = _put(out, at, point)
        out_ends[row + 1] = at


@kernel
def _decode_units(
    ends: Int32s,
    data: Bytes,
    unit: int,
    little: bool,
    pairs: bool,
    out_ends: Int32s,
    out: Bytes,
    undecodable: Bytes,
) -> None:
    at = 0
    out_ends[0] = 0
    for row in range(len(ends) - 1):
        position, end = int(ends[row]), int(ends[row + 1])
        if (end - position) % unit:
            undecodable[row] = 1
            position = end
        while position < end:
            point = _unit(data, position, unit, little)
            position += unit
            if unit == 2 and pairs and 0xD800 <= point < 0xDC00 and position < end:
                low = _unit(data, position, unit, little)
                if 0xDC00 <= low < 0xE000:
                    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
                    position += unit
            if 0xD800 <= point < 0xE000 or point > 0x10FFFF:
                undecodable[row] = 1
                at = int(out_ends[row])
                break
            at = _put(out, at, point)
        out_ends[row + 1] = at


@inner
def _unit(data: Bytes, position: int, unit: int, little: bool) -> int:
    value = 0
    for index in range(unit):
        byte = load8(data, position + index)
        value = value | byte << (8 * index) if little else value << 8 | byte
    return value


@inner
def _digit(value: int) -> int:
    return value + (0x30 if value < 10 else 0x37)


@kernel
def _show_bytes(
    ends: Int32s,
    data: Bytes,
    undecodable: Bytes,
    decoded_ends: Int32s,
    decoded: Bytes,
    out_ends: Int32s,
    out: Bytes,
) -> None:
    at = 0
    out_ends[0] = 0
    for row in range(len(undecodable)):
        if undecodable[row]:
            store8(out, at, 0x30)
            store8(out, at + 1, 0x78)
            at += 2
            for position in range(ends[row], ends[row + 1]):
                byte = load8(data, position)
                store8(out, at, _digit(byte >> 4))
                store8(out, at + 1, _digit(byte & 15))
                at += 2
        else:
            length = int(decoded_ends[row + 1]) - int(decoded_ends[row])
            copy_bytes(out, at, decoded, decoded_ends[row], length)
            at += length
        out_ends[row + 1] = at


# Converts dates that are not in the calendar to text or null, depending on the policy.


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
def _put_digits(out: Bytes, at: int, value: int, digits: int, before: int) -> int:
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
            at = _put_digits(out, at, months // 13, 4, 0)
            at = _put_digits(out, at, months % 13, 2, _MINUS)
            at = _put_digits(out, at, (value >> 41) & 31, 2, _MINUS)
            if clock:
                at = _put_digits(out, at, (value >> 36) & 31, 2, _SPACE)
                at = _put_digits(out, at, (value >> 30) & 63, 2, _COLON)
                at = _put_digits(out, at, (value >> 24) & 63, 2, _COLON)
                if digits:
                    fraction = value & 0xFF_FFFF
                    for _ in range(6 - digits):
                        fraction //= 10
                    at = _put_digits(out, at, fraction, digits, _POINT)
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
        hint="set `On.unrepresentable` to `string`. `null` is also possible, unless the column is part of a "
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
