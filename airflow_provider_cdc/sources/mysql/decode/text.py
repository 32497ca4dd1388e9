"""Converts text from a column's own character set to UTF-8.

Rows of a SELECT and images of the log both bring text as it is stored, so both are converted here, with the result that
the server's own conversion has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernel import Bytes, Int32s, bytes_of, inner, kernel, load8, load16be, store8
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.sources.mysql.charsets import CHARSETS, GB18030_EDITION, UTF8, Charset

_UNDEFINED = -1
_LEAD = -2
_LEAD_OF_TWO = -3
_SINGLE_SHIFT_3 = 0x8F
"""The byte of EUC that begins a character of three bytes."""
_ALL_GOOD = -1


def to_utf8(where: str, charset: str, rows: int, offsets: pa.Buffer, values: pa.Buffer) -> tuple[pa.Buffer, pa.Buffer]:
    """``rows`` values of a column in ``charset``, as Arrow offsets (int32) and bytes, in UTF-8.

    :param where: table and column, for messages.
    :raises ValueNotRepresentable: a value holds a code that stands for no character.
    """
    known = CHARSETS[charset]
    ends = np.frombuffer(offsets, np.int32, rows + 1)
    data = bytes_of(values)[: ends[-1]]
    if known.unit == 1 and known.ascii and (len(data) == 0 or int(data.max()) < 0x80):
        return offsets, values
    if known.codec == UTF8:
        try:
            pa.StringArray.from_buffers(rows, offsets, values).validate(full=True)
        except pa.ArrowInvalid:
            raise _no_text(where, charset, _first_bad(ends, data)) from None
        return offsets, values
    if charset == "gb18030":
        return _by_codec(where, ends, data)
    out_offsets = pa.allocate_buffer((rows + 1) * 4)
    out_ends = np.frombuffer(out_offsets, np.int32)
    # At most, one byte becomes three, two or three become three, and four become four.
    size = len(data) * (3 if known.unit == 1 else 2 if known.unit == 2 else 1)
    if size > 2**31 - 1:
        raise ValueNotRepresentable("a batch has more text than one Arrow array holds", where=where)
    out = pa.allocate_buffer(size)
    out_data = bytes_of(out)
    if known.unit == 1:
        bad = _decode_by_table(ends, data, *_tables(charset), out_ends, out_data)
    else:
        little = charset == "utf16le"
        bad = _decode_units(ends, data, known.unit, little, charset != "ucs2", out_ends, out_data)
    if bad != _ALL_GOOD:
        raise _no_text(where, charset, data[ends[bad] : ends[bad + 1]].tobytes())
    return out_offsets, out


def text_array(texts: Sequence[str]) -> pa.StringArray:
    """An Arrow array of texts. ``pa.array`` would import pandas, which takes longer than reading a small table."""
    encoded = [text.encode() for text in texts]
    ends = np.array([0, *accumulate(map(len, encoded))], np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def _no_text(where: str, charset: str, value: bytes) -> ValueNotRepresentable:
    shown = value[:40].hex() + ("…" if len(value) > 40 else "")
    return ValueNotRepresentable(
        f"the stored bytes x'{shown}' hold a code that stands for no character of {charset}",
        where=where,
        hint="correct the rows, or make the column a binary one",
    )


def _first_bad(ends: Int32s, data: Bytes) -> bytes:
    values = (data[start:end].tobytes() for start, end in pairwise(ends))
    return next(value for value in values if not _is_utf8(value))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _by_codec(where: str, ends: Int32s, data: Bytes) -> tuple[pa.Buffer, pa.Buffer]:
    texts = []
    for start, end in pairwise(ends):
        value = data[start:end].tobytes()
        try:
            texts.append(value.decode("gb18030").translate(GB18030_EDITION))
        except UnicodeDecodeError:
            raise _no_text(where, "gb18030", value) from None
    array = text_array(texts)
    return array.buffers()[1], array.buffers()[2]


@lru_cache
def _tables(charset: str) -> tuple[Int32s, Int32s, Int32s]:
    """Three tables of code points: by a single byte; by two bytes (high byte first), where the first one's entry is
    ``_LEAD``; and by the last two bytes of three, where the first one's entry is ``_LEAD_OF_TWO``. A table that no
    entry leads to is empty."""
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
    return single, double, triple


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
    """Write one code point in UTF-8; returns the place after it."""
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
    ends: Int32s, data: Bytes, single: Int32s, double: Int32s, triple: Int32s, out_ends: Int32s, out: Bytes
) -> Any:
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
                return row
            at = _put(out, at, point)
        out_ends[row + 1] = at
    return _ALL_GOOD


@kernel
def _decode_units(ends: Int32s, data: Bytes, unit: int, little: bool, pairs: bool, out_ends: Int32s, out: Bytes) -> Any:
    at = 0
    out_ends[0] = 0
    for row in range(len(ends) - 1):
        position, end = int(ends[row]), int(ends[row + 1])
        if (end - position) % unit:
            return row
        while position < end:
            point = _unit(data, position, unit, little)
            position += unit
            if unit == 2 and pairs and 0xD800 <= point < 0xDC00 and position < end:
                low = _unit(data, position, unit, little)
                if 0xDC00 <= low < 0xE000:
                    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
                    position += unit
            if 0xD800 <= point < 0xE000 or point > 0x10FFFF:
                return row
            at = _put(out, at, point)
        out_ends[row + 1] = at
    return _ALL_GOOD


@inner
def _unit(data: Bytes, position: int, unit: int, little: bool) -> int:
    value = 0
    for index in range(unit):
        byte = load8(data, position + index)
        value = value | byte << (8 * index) if little else value << 8 | byte
    return value
