"""Canonical bytes of rows. Two keys, or two whole rows, are equal if and only if their bytes are equal.

The bytes of a row are the bytes of the given columns, one column after the other. A column begins with a marker byte
(0: null, without a value; 1: a value follows). The value has this form:

===========================  =====================================================================
Arrow type                   value
===========================  =====================================================================
bool                         one byte, 0 or 1
fixed width (all numbers,    the bytes that Arrow stores, little-endian: floats by their bits, so
dates, times, decimals)      -0.0 is not 0.0 and a NaN equals itself
string, binary               their length (u32, little-endian) and their bytes
dictionary                   the value at the index, encoded as above
list of fixed width whose    the length of all its values in bytes (u32, little-endian) and the bytes that Arrow stores
elements cannot be null
any other list               the length (u32, little-endian) of the bytes of its elements, and these bytes: for each
                             element a marker byte and the value, encoded as above
===========================  =====================================================================

The bytes of each part show where the part ends. So for columns of given types, the encoding is injective: two rows have
equal bytes if and only if their values are bit-equal. Values are not normalized: the bytes of the key columns are the
key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_cdc.core.kernels import Bytes, Int64s, bytes_of, inner, kernel
from airflow_provider_cdc.core.tables.table import Table

_LARGEST = 2**31 - 1


def encode(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.BinaryArray:
    """Return the bytes of ``columns`` of each row, in the given order.

    :raises TypeError: a column has an Arrow type that is not in the table above.
    :raises OverflowError: the result would need 2 GiB or more; encode fewer rows at once.
    """
    arrays = [_plain(batch.column(name)) for name in columns]
    lengths: Int64s = np.zeros(batch.num_rows, np.int64)
    for array in arrays:
        _add_lengths(array, lengths)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total > _LARGEST:
        raise OverflowError(f"{batch.num_rows} rows need {total} bytes, which is more than an Arrow array can hold")
    offsets = np.zeros(batch.num_rows + 1, np.int32)
    offsets[1:] = ends
    out: Bytes = np.empty(total, np.uint8)
    cursor: Int64s = offsets[:-1].astype(np.int64)
    for array in arrays:
        _append(array, cursor, out)
    return pa.BinaryArray.from_buffers(pa.binary(), batch.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def first_values(encoded: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Decode the values of the first column from the result of `encode`.

    :param kind: the Arrow type of the first column: an integer, a date, a timestamp, ``string`` or ``binary``.
    """
    data = bytes_of(encoded.buffers()[2])
    at = _offsets(encoded)[:-1]
    valid = data[at] == 1
    if _is_variable(kind):
        return _first_variable(data, at, valid, kind)
    # For a null, read byte 0, because a null has no value bytes, and its marker may be the last byte of the buffer.
    source = np.where(valid, at + 1, 0)[:, np.newaxis] + np.arange(kind.byte_width)
    values = data[np.minimum(source, max(0, len(data) - 1))]
    validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(at), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def _first_variable(data: Bytes, at: Int64s, valid: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    lengths = np.zeros(len(at), np.int64)
    for byte in range(4):
        lengths[valid] |= data[at[valid] + 1 + byte].astype(np.int64) << (8 * byte)
    ends = np.zeros(len(at) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    out = np.empty(int(ends[-1]), np.uint8)
    _gather(data, at + 5, ends, out)
    validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.large_binary(), len(at), buffers).cast(pa.binary()).cast(kind)


def buckets(encoded: pa.BinaryArray, count: int) -> Bytes:
    """Return a bucket from 0 to ``count`` - 1 (``count`` is at most 256) for each row, by a hash of its bytes.

    Equal bytes have the same bucket on every machine.
    """
    out: Bytes = np.empty(len(encoded), np.uint8)
    _hash(bytes_of(encoded.buffers()[2]), _offsets(encoded), count, out)
    return out


def _plain(array: pa.Array) -> pa.Array:
    """Return ``array`` with values in place of dictionary indices, and bytes in place of booleans."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_list(array.type):
        array = _flat(array)
    if not (_is_variable(array.type) or _is_fixed(array.type)):
        raise TypeError(f"rows with a column of Arrow type {array.type} have no canonical bytes")
    return array


def _flat(array: pa.ListArray) -> pa.LargeBinaryArray:
    """Return the bytes of each list's elements."""
    field, values = array.type.value_field, array.values
    if field.nullable or not _is_fixed(field.type):
        encoded = encode(pa.record_batch([values], ["element"]), ["element"])
        offsets, data = _offsets(encoded).astype(np.int64)[_offsets(array)], encoded.buffers()[2]
    else:
        offsets, data = (_offsets(array) + values.offset) * values.type.byte_width, values.buffers()[1]
    if array.null_count:
        valid = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        validity = pa.py_buffer(valid)
    else:
        validity = None
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(array), [validity, pa.py_buffer(np.ascontiguousarray(offsets)), data]
    )


def _is_variable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))


def _add_lengths(array: pa.Array, lengths: Int64s) -> None:
    valid = _validity(array)
    if _is_variable(array.type):
        _add_variable_lengths(valid, array.offset, _offsets(array), lengths)
    else:
        _add_fixed_lengths(valid, array.offset, array.type.byte_width, lengths)


def _append(array: pa.Array, cursor: Int64s, out: Bytes) -> None:
    valid = _validity(array)
    data = bytes_of(array.buffers()[-1])
    if _is_variable(array.type):
        _append_variable(valid, array.offset, _offsets(array), data, cursor, out)
    else:
        _append_fixed(valid, array.offset, array.type.byte_width, data, cursor, out)


def _validity(array: pa.Array) -> Bytes:
    return bytes_of(array.buffers()[0] if array.null_count else None)


def _offsets(array: pa.Array) -> Int64s:
    """Return the offsets of the values, in bytes. There is one more offset than there are values."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    start, stop = array.offset, array.offset + len(array) + 1
    buffer = array.buffers()[1]
    if not len(array):
        return np.zeros(1, np.int64)
    return bytes_of(buffer).view(np.int64 if large else np.int32)[start:stop].astype(np.int64)


@inner
def _is_valid(valid: Bytes, at: int) -> bool:
    return len(valid) == 0 or (valid[at >> 3] >> (at & 7)) & 1 != 0


@kernel
def _add_fixed_lengths(valid: Bytes, offset: int, width: int, lengths: Int64s) -> None:
    for row in range(len(lengths)):
        lengths[row] += 1 + (width if _is_valid(valid, offset + row) else 0)


@kernel
def _add_variable_lengths(valid: Bytes, offset: int, ends: Int64s, lengths: Int64s) -> None:
    for row in range(len(lengths)):
        lengths[row] += 1
        if _is_valid(valid, offset + row):
            lengths[row] += 4 + ends[row + 1] - ends[row]


@kernel
def _append_fixed(valid: Bytes, offset: int, width: int, data: Bytes, cursor: Int64s, out: Bytes) -> None:
    for row in range(len(cursor)):
        at = cursor[row]
        if _is_valid(valid, offset + row):
            out[at] = 1
            source = (offset + row) * width
            for byte in range(width):
                out[at + 1 + byte] = data[source + byte]
            cursor[row] = at + 1 + width
        else:
            out[at] = 0
            cursor[row] = at + 1


@kernel
def _append_variable(valid: Bytes, offset: int, ends: Int64s, data: Bytes, cursor: Int64s, out: Bytes) -> None:
    for row in range(len(cursor)):
        at = cursor[row]
        if _is_valid(valid, offset + row):
            start = ends[row]
            length = ends[row + 1] - start
            out[at] = 1
            for byte in range(4):
                out[at + 1 + byte] = (length >> (8 * byte)) & 0xFF
            for byte in range(length):
                out[at + 5 + byte] = data[start + byte]
            cursor[row] = at + 5 + length
        else:
            out[at] = 0
            cursor[row] = at + 1


@kernel
def _gather(data: Bytes, starts: Int64s, ends: Int64s, out: Bytes) -> None:
    for row in range(len(starts)):
        for byte in range(ends[row + 1] - ends[row]):
            out[ends[row] + byte] = data[starts[row] + byte]


@kernel
def _hash(data: Bytes, offsets: Int64s, count: int, out: Bytes) -> None:
    # FNV-1a, 32 bits (http://www.isthe.com/chongo/tech/comp/fnv/), folded so that the high bits also affect the result.
    for row in range(len(out)):
        value = np.uint32(2166136261)
        for at in range(offsets[row], offsets[row + 1]):
            value = np.uint32((value ^ np.uint32(data[at])) * np.uint32(16777619))
        out[row] = ((value >> np.uint32(16)) ^ value) % np.uint32(count)


def published_keys(table: Table, rows: pa.RecordBatch) -> pa.BinaryArray:
    """Return the canonical bytes of the published rows of a keyless table. All columns together identify a row of a
    keyless table."""
    return encode(rows, table.published_columns)
