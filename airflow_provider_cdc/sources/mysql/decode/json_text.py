"""Converts the binary JSON in row images of the log to the text that a SELECT of the column prints.

The kernel of `json_texts` converts the values of a column. This module raises an error for a value that the kernel
rejects.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import bytes_of, inner, kernel, load16, load32, load64
from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.mysql.decode import json_values

# Kernels that parse MySQL's binary JSON and write the text that a SELECT of the column prints.
#
# A value consists of a type byte and a body. An *opaque* value is a value of another SQL type (DECIMAL, DATE, BLOB, …),
# with that type's code. A container consists of its number of elements, its size in bytes, the key entries (of an
# object), the value entries, and the data. The entries point to the data by offsets from the start of the container.
# Only the offsets say where values are, because an in-place UPDATE leaves gaps between the values. Offsets have 2 bytes
# in small containers and 4 bytes in large containers. A value that fits into its entry is stored in the entry.
#
# The format is described in MySQL's source, sql-common/json_binary.h. The printed text is defined by
# sql-common/json_dom.cc (``wrapper_to_string``) and strings/dtoa.cc (``my_gcvt``).


MAX_DEPTH = 100
"""The server's limit for the nesting of containers (JSON_DOCUMENT_MAX_DEPTH)."""

_FRAME = 6

_OBJECT, _LARGE_OBJECT, _ARRAY, _LARGE_ARRAY = range(4)
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(4, 13)
_OPAQUE = 15

# For each type: the size of a value in bytes. 0: the type has no fixed size.
_SIZES = np.array([0, 0, 0, 0, 1, 2, 2, 4, 4, 8, 8, 8])

_NULL = np.frombuffer(b"null", np.uint8)
_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)
_COMMA = np.frombuffer(b", ", np.uint8)
_COLON = np.frombuffer(b": ", np.uint8)
_OPEN_OBJECT, _CLOSE_OBJECT = ord("{"), ord("}")
_OPEN_ARRAY, _CLOSE_ARRAY = ord("["), ord("]")


@kernel
def write_documents(data: Any, offsets: Any, valid: Any, first: int, out: Any, ends: Any, status: Any) -> int:
    """Write the texts of the values from `first` on, and the end of each text. Stop at a value that cannot be written.

    Return the index of the value that could not be written. In this case, `status` has the error code and the offset of
    the byte within the value. If all values were written, return the number of values.
    """
    stack = np.empty((MAX_DEPTH, _FRAME), np.int64)
    for index in range(first, len(valid)):
        pos = ends[index]
        if valid[index]:
            begin = np.int64(offsets[index])
            pos = _write_document(data, begin, np.int64(offsets[index + 1]), stack, out, pos, status)
            if pos < 0:
                status[0] = pos
                status[1] -= begin
                return index
        ends[index + 1] = pos
    return len(valid)


@inner
def _write_document(data: Any, begin: int, end: int, stack: Any, out: Any, pos: int, status: Any) -> int:
    """Write the text of the value in ``data[begin:end]``. If the result is negative, it is an error code, and `status`
    has the position of the error."""
    status[1] = begin
    if begin == end:
        return json_values.write_ascii(_NULL, out, pos)
    # The value to write: its type, the start of its body, and the limit for its end.
    kind, at, bound = np.int64(data[begin]), begin + 1, end
    is_inlined = False
    # The container that holds the value: its type, start and end, the end of its entries, and its number of elements.
    # The last variable is the number of elements that are left to write.
    holder, base, limit, bodies, count, left = kind, at, at, at, at, at
    depth = 0
    # Count the unread bytes, to reject documents in which values share bytes. The text of such a document could be
    # exponentially long. The server never stores such documents.
    unread = end - begin
    while True:
        status[1] = at
        if kind <= _LARGE_ARRAY:
            if depth == MAX_DEPTH:
                return json_values.TOO_DEEP
            if depth:
                _save(stack, depth - 1, holder, base, limit, bodies, count, left)
            depth += 1
            width = _offset_width(kind)
            if at + 2 * width > bound:
                return json_values.CUT_OFF
            count = left = _offset(data, at, width)
            size = _offset(data, at + width, width)
            entry = width + 1 + (width + 2 if kind <= _LARGE_OBJECT else 0)
            holder, base, limit, bodies = kind, at, at + size, at + 2 * width + count * entry
            if limit > bound or bodies > limit:
                return json_values.CUT_OFF
            unread -= bodies - base
            if pos == len(out):
                return json_values.FULL
            out[pos] = _OPEN_OBJECT if kind <= _LARGE_OBJECT else _OPEN_ARRAY
            pos += 1
        elif kind in (_STRING, _OPAQUE):
            start, length = _sized(data, at + (kind == _OPAQUE), bound)
            if length < 0:
                return length
            unread -= start + length - at
            if unread < 0:
                return json_values.OVERLAP
            if kind == _STRING:
                pos = json_values.write_string(data, start, length, out, pos)
            else:
                pos = json_values.write_opaque(data, np.int64(data[at]), start, length, out, pos)
        elif kind <= _DOUBLE:
            size = _SIZES[kind]
            if at + size > bound:
                return json_values.CUT_OFF
            if not is_inlined:
                unread -= size
            pos = _write_fixed(kind, data, at, out, pos)
        else:
            return json_values.UNKNOWN_TYPE
        if unread < 0:
            return json_values.OVERLAP
        if pos < 0:
            return pos

        while depth and left == 0:
            if pos == len(out):
                return json_values.FULL
            out[pos] = _CLOSE_OBJECT if holder <= _LARGE_OBJECT else _CLOSE_ARRAY
            pos += 1
            depth -= 1
            if depth:
                holder, base, limit, bodies, count, left = _saved(stack, depth - 1)
        if depth == 0:
            return pos

        width = _offset_width(holder)
        if left < count:
            pos = json_values.write_ascii(_COMMA, out, pos)
            if pos < 0:
                return pos
        if holder <= _LARGE_OBJECT:
            entry = base + 2 * width + (count - left) * (width + 2)
            start = base + _offset(data, entry, width)
            length = load16(data, entry + width)
            status[1] = entry
            if start < bodies:
                return json_values.BAD_OFFSET
            if start + length > limit:
                return json_values.CUT_OFF
            unread -= length
            if unread < 0:
                return json_values.OVERLAP
            pos = json_values.write_string(data, start, length, out, pos)
            if pos < 0:
                return pos
            pos = json_values.write_ascii(_COLON, out, pos)
            if pos < 0:
                return pos
        entry = bodies - left * (width + 1)
        left -= 1
        kind = np.int64(data[entry])
        is_inlined = kind >= _LITERAL and kind <= (_UINT32 if width == 4 else _UINT16)
        if is_inlined:
            at, bound = entry + 1, entry + 1 + width
        else:
            at, bound = base + _offset(data, entry + 1, width), limit
            if at < bodies:
                status[1] = entry
                return json_values.BAD_OFFSET


@inner
def _write_fixed(kind: int, data: Any, at: int, out: Any, pos: int) -> int:
    """Write a literal, an integer or a double."""
    if kind == _LITERAL:
        literal = data[at]
        if literal > 2:
            return json_values.BAD_LITERAL
        return json_values.write_ascii(_NULL if literal == 0 else _TRUE if literal == 1 else _FALSE, out, pos)
    if kind == _DOUBLE:
        return json_values.write_double(np.uint64(load64(data, at)), out, pos)
    if kind == _UINT64:
        return json_values.write_integer(load64(data, at), False, out, pos)
    if kind == _INT16:
        value = np.int64(np.int16(load16(data, at)))
    elif kind == _INT32:
        value = np.int64(np.int32(load32(data, at)))
    elif kind == _INT64:
        value = load64(data, at)
    else:
        value = _offset(data, at, _SIZES[kind])
    return json_values.write_integer(value, True, out, pos)


@inner
def _sized(data: Any, at: int, bound: int) -> tuple[int, int]:
    """Return the start and the length of a body. The length is stored before the body, in groups of 7 bits, the lowest
    group first. If the length is not valid, return a negative code instead of the length."""
    length = 0
    for index in range(5):
        if at + index >= bound:
            return at, json_values.CUT_OFF
        byte = np.int64(data[at + index])
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            start = at + index + 1
            return start, length if length <= bound - start else json_values.CUT_OFF
    return at, json_values.BAD_LENGTH


@inner
def _save(stack: Any, at: int, holder: int, base: int, limit: int, bodies: int, count: int, left: int) -> None:
    stack[at, 0] = holder
    stack[at, 1] = base
    stack[at, 2] = limit
    stack[at, 3] = bodies
    stack[at, 4] = count
    stack[at, 5] = left


@inner
def _saved(stack: Any, at: int) -> tuple[int, int, int, int, int, int]:
    return stack[at, 0], stack[at, 1], stack[at, 2], stack[at, 3], stack[at, 4], stack[at, 5]


@inner
def _offset_width(kind: int) -> int:
    return 4 if kind & 1 else 2


@inner
def _offset(data: Any, at: int, width: int) -> int:
    return load32(data, at) if width == 4 else load16(data, at)


_LARGEST = 2**31 - 1

_REASONS = {
    json_values.UNKNOWN_TYPE: "an unsupported type",
    json_values.CUT_OFF: "a value that extends beyond the end of its container",
    json_values.BAD_OFFSET: "an offset that points into the entries of its container",
    json_values.OVERLAP: "values that overlap",
    json_values.TOO_DEEP: f"more than {MAX_DEPTH} levels",
    json_values.BAD_LENGTH: "a length of more than five bytes",
    json_values.BAD_LITERAL: "a literal other than null, true and false",
    json_values.BAD_DOUBLE: "a double that is not a number",
    json_values.BAD_DECIMAL: "a decimal of impossible size or digits",
    json_values.BAD_TIME: "an impossible date or time",
}


def json_text(data: bytes) -> str:
    """Return the text that MySQL prints for a binary JSON value. An empty value is null, as on the server.

    :raises DecodeError: `data` does not follow the format.
    """
    text: str = json_texts(pa.array([data], pa.binary()))[0].as_py()
    return text


def json_texts(values: pa.BinaryArray) -> pa.StringArray:
    """Return `json_text` of every value of a column. Nulls remain null.

    :raises DecodeError: a value does not follow the format. ``where`` has the index of the value and the offset of the
        byte within the value.
    :raises ValueNotRepresentable: the total size of the texts is more than the maximum of an Arrow array (2 GiB).
    """
    count = len(values)
    if count == 0:
        return pa.array([], pa.string())
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = bytes_of(offsets_buffer).view(np.int32)[values.offset : values.offset + count + 1]
    data = bytes_of(data_buffer)
    valid = bytes_of(values.is_valid().cast(pa.uint8()).buffers()[1])[:count]

    # A text is usually about as long as its binary form. If it is longer, the buffer grows.
    out = np.empty(int(offsets[-1] - offsets[0]) * 2 + 1024, np.uint8)
    ends = np.zeros(count + 1, np.int64)
    status = np.zeros(2, np.int64)
    done = 0
    while (done := write_documents(data, offsets, valid, done, out, ends, status)) < count:
        code, at = status.tolist()
        if code != json_values.FULL:
            raise DecodeError(f"binary JSON holds {_REASONS[code]}", where=f"value {done}, byte {at}")
        grown = np.empty(2 * len(out), np.uint8)
        grown[: ends[done]] = out[: ends[done]]
        out = grown
    if ends[-1] > _LARGEST:
        raise ValueNotRepresentable(
            f"{count} JSON values take {ends[-1]} bytes as text, which is more than an Arrow array can hold",
            hint="read fewer rows at once",
        )
    nulls = pa.py_buffer(np.packbits(valid, bitorder="little")) if values.null_count else None
    texts = pa.StringArray.from_buffers(
        count, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out[: ends[-1]]), nulls
    )
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"binary JSON holds text that is not UTF-8: {error}") from error
    return texts
