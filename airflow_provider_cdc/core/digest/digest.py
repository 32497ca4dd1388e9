"""Order-independent digests of whole rows.

The digest of some rows is their number, and the sum modulo 2**128 of a 128-bit hash of each row. So digests can be
added and subtracted, as the multisets of rows can. Two different multisets have equal digests with a chance of about
2**-128.

The hash of a row depends on the names of the columns and on the values, but not on the order of the columns or on
Arrow's layout: chunks, slices, dictionaries, or the width of offsets and integers. All arithmetic is modulo 2**64.

1. The **words** of a value are 64-bit integers, numbered from 1:

   - integer, boolean (0 or 1), date (days since 1970), timestamp, time and duration (microseconds), decimal (its
     unscaled integer): the words of its two's complement, the lowest word first, as few as possible, at least one.
   - float of any width: one word, the bits of the value as a double. Every NaN has the bits ``7ff8000000000000``.
   - text (UTF-8) and binary: the bytes, eight to a little-endian word; zeros fill up the last word.
   - list: the lanes (see below) of its elements, each as a value of its own with the keys of the column.
   - null: no words numbered from 1, but the word 0, which is 2**64 - 1.

2. ``mix`` is the last step of the generator splitmix64, a bijection::

       x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9
       x = (x ^ x >> 27) * 0x94d049bb133111eb
       mix(x) = x ^ x >> 31

3. A column has two keys, K and F: the bytes 0 to 7 and 8 to 15 of the SHA-256 of its name in UTF-8, as little-endian
   integers. The **lanes** L and H of a value are sums over its words w with the number i::

       d = i * 0x9e3779b97f4a7c15 + length * 0xd1b54a32d192ed03
       L = sum of mix(w ^ (K + d))
       H = sum of mix(w ^ (K + d)) * (F + d)

   ``length`` is the number of bytes of text and binary, and the number of elements of a list; 0 for other values. A
   list has other words for each lane: for L the lanes L of its elements, and for H their lanes H. The lanes of a row
   are the sums of the lanes of its values.

4. From the lanes L and H of a row, the hash is ``L + H * 2**64`` after ``L ^= mix(H + g)``, ``H ^= mix(L + g)``,
   ``L ^= mix(H + g)``, where g = 0x9e3779b97f4a7c15.

Why this is a good hash: ``mix`` changes each of its output bits with a chance of one half when one input bit changes,
and is linear neither for XOR nor for addition. Each word is mixed with a key of its own, for its column, its place and
the length. Rows that differ in one word always have different lanes L, because ``mix`` is a bijection. For rows that
differ in more words, equal lanes are two linear equations for the differences of the mixed words: one with the factors
1, one with the factors F + d. Mixed words are as good as random, so the chance is about 2**-128; it is up to 2**t
larger if the difference of two factors is divisible by 2**t. Step 4 is a bijection of both lanes (a Feistel network of
three rounds). Without step 4, the sum over the rows would be a sum over the columns, and values exchanged between rows
would not be found.

The hash protects against errors, not against values that are chosen to make two digests equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_cdc.core.digest.totals import NAME, Digest
from airflow_provider_cdc.core.kernels import Bytes, Int64s, bytes_of, inner, kernel, load64, load_le

# Kernels that hash rows, column by column, by the definition above.
#
# Each function adds what one column contributes to the two lanes of each row. All arithmetic is modulo 2**64, on
# ``uint64``: unlike ``int64``, these operations may wrap around.


UInt64s = npt.NDArray[np.uint64]

STEP = np.uint64(0x9E3779B97F4A7C15)
"""The distance of the keys of two consecutive words of one value: 2**64 divided by the golden ratio, and odd."""
LENGTH = np.uint64(0xD1B54A32D192ED03)
"""The distance of the keys of two values whose lengths differ by one. It is odd."""
NULL = np.uint64(0xFFFFFFFFFFFFFFFF)
"""The word 0 of a null. The word 0 of another value is its length, or missing."""
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _63 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(63)
_0, _1 = np.uint64(0), np.uint64(1)


@inner
def mix(word: np.uint64) -> np.uint64:
    """Return the bijection of 64-bit words with which the generator splitmix64 ends."""
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@kernel
def add_words(valid: Bytes, words: UInt64s, one: UInt64s, other: UInt64s, keys: UInt64s) -> None:
    """Add values of one word each.

    :param valid: a byte for each value, 0 for a null; empty if no value is null.
    """
    key, factor = keys[0] + STEP, keys[1] + STEP
    if len(valid) == 0:
        for row in range(len(words)):
            hashed = mix(words[row] ^ key)
            one[row] += hashed
            other[row] += hashed * factor
        return
    null, null_factor = NULL ^ keys[0], keys[1]
    for row in range(len(words)):
        is_null = valid[row] == 0
        hashed = mix(null if is_null else words[row] ^ key)
        one[row] += hashed
        other[row] += hashed * (null_factor if is_null else factor)


@kernel
def add_wide(valid: Bytes, words: UInt64s, width: int, one: UInt64s, other: UInt64s, keys: UInt64s) -> None:
    """Add integers of ``width`` words each, the lowest word first. Only as many words count as the integer needs in
    two's complement."""
    null = mix(NULL ^ keys[0])
    for row in range(len(one)):
        if len(valid) and valid[row] == 0:
            one[row] += null
            other[row] += null * keys[1]
            continue
        start = row * width
        key, factor = keys[0] + STEP, keys[1] + STEP
        hashed = mix(words[start] ^ key)
        one[row] += hashed
        other[row] += hashed * factor
        count = width
        # A word is needed unless it only repeats the sign of the word below it.
        while count > 1 and words[start + count - 1] == _0 - (words[start + count - 2] >> _63):
            count -= 1
        for index in range(1, count):
            key += STEP
            factor += STEP
            hashed = mix(words[start + index] ^ key)
            one[row] += hashed
            other[row] += hashed * factor


@kernel
def narrow(words: UInt64s, width: int, lowest: UInt64s) -> bool:
    """Write the lowest word of integers of ``width`` words each to ``lowest``. Return whether all integers fit into one
    word."""
    fit = True
    for row in range(len(lowest)):
        start = row * width
        lowest[row] = words[start]
        for index in range(1, width):
            fit &= words[start + index] == _0 - (words[start] >> _63)
    return fit


@kernel
def add_bytes(valid: Bytes, ends: Int64s, data: Bytes, one: UInt64s, other: UInt64s, keys: UInt64s) -> None:
    """Add strings of bytes. ``ends`` has one offset more than there are values."""
    null = mix(NULL ^ keys[0])
    last = len(data) - 8
    for row in range(len(one)):
        if len(valid) and valid[row] == 0:
            one[row] += null
            other[row] += null * keys[1]
            continue
        at, end = ends[row], ends[row + 1]
        shift = np.uint64(end - at) * LENGTH
        key, factor = keys[0] + shift, keys[1] + shift
        low, high = _0, _0
        while at + 8 <= end:
            key += STEP
            factor += STEP
            hashed = mix(np.uint64(load64(data, at)) ^ key)
            low += hashed
            high += hashed * factor
            at += 8
        if at < end:
            left = end - at
            if at <= last:
                word = np.uint64(load64(data, at)) & ((_1 << np.uint64(8 * left)) - _1)
            else:
                word = np.uint64(load_le(data, at, left))
            hashed = mix(word ^ (key + STEP))
            low += hashed
            high += hashed * (factor + STEP)
        one[row] += low
        other[row] += high


@kernel
def add_lists(
    valid: Bytes,
    ends: Int64s,
    elements: UInt64s,
    other_elements: UInt64s,
    one: UInt64s,
    other: UInt64s,
    keys: UInt64s,
) -> None:
    """Add lists, from the lanes of their elements. ``ends`` has one offset more than there are lists."""
    null = mix(NULL ^ keys[0])
    for row in range(len(one)):
        if len(valid) and valid[row] == 0:
            one[row] += null
            other[row] += null * keys[1]
            continue
        shift = np.uint64(ends[row + 1] - ends[row]) * LENGTH
        key, factor = keys[0] + shift, keys[1] + shift
        for at in range(ends[row], ends[row + 1]):
            key += STEP
            factor += STEP
            one[row] += mix(elements[at] ^ key)
            other[row] += mix(other_elements[at] ^ key) * factor


@kernel
def add_indexed(
    valid: Bytes,
    indices: Int64s,
    values: UInt64s,
    other_values: UInt64s,
    one: UInt64s,
    other: UInt64s,
    keys: UInt64s,
) -> None:
    """Add values of a dictionary, from the lanes of the dictionary's values."""
    null = mix(NULL ^ keys[0])
    null_factor = null * keys[1]
    if len(valid) == 0:
        for row in range(len(one)):
            one[row] += values[indices[row]]
            other[row] += other_values[indices[row]]
        return
    for row in range(len(one)):
        if valid[row] == 0:
            one[row] += null
            other[row] += null_factor
        else:
            one[row] += values[indices[row]]
            other[row] += other_values[indices[row]]


@kernel
def row_sum(one: UInt64s, other: UInt64s, total: UInt64s) -> None:
    """Finish the hash of each row, in place, and write the sum of all hashes to ``total``: the low and the high 64
    bits."""
    for row in range(len(one)):
        left, right = one[row], other[row]
        left ^= mix(right + STEP)
        right ^= mix(left + STEP)
        one[row] = left ^ mix(right + STEP)
        other[row] = right
    low, high = _0, _0
    for row in range(len(one)):
        low += one[row]
        high += other[row] + (_1 if low < one[row] else _0)
    total[0], total[1] = low, high


Lanes = tuple[UInt64s, UInt64s]

__all__ = ["NAME", "Digest", "digest", "row_hashes"]

_BLOCK_ROWS = 65_536
"""Rows that are hashed together, so that their lanes stay in the processor's cache."""
_ALL_VALID: Bytes = np.empty(0, np.uint8)
_NAN = np.uint64(0x7FF8000000000000)


def digest(rows: pa.RecordBatch | pa.Table) -> Digest:
    """Return the digest of rows.

    :raises TypeError: the definition does not cover the type of a column.
    :raises pyarrow.ArrowInvalid: a time has digits below a microsecond.
    """
    total = Digest()
    for batch in rows.to_batches(max_chunksize=_BLOCK_ROWS) if isinstance(rows, pa.Table) else [rows]:
        total += _digest(batch)
    return total


def row_hashes(batch: pa.RecordBatch) -> Lanes:
    """Return the low and the high 64 bits of the hash of each row.

    :raises TypeError, pyarrow.ArrowInvalid: for the same reasons as `digest`.
    """
    return _hashed(batch)[0]


def _digest(batch: pa.RecordBatch) -> Digest:
    _, total = _hashed(batch)
    return Digest(batch.num_rows, int(total[0]) | int(total[1]) << 64)


def _hashed(batch: pa.RecordBatch) -> tuple[Lanes, UInt64s]:
    """Return the hashes of the rows, and their sum."""
    lanes = _no_lanes(batch.num_rows)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        _add(column, _keys(name), lanes)
    total = np.zeros(2, np.uint64)
    row_sum(*lanes, total)
    return lanes, total


@lru_cache(maxsize=4096)
def _keys(name: str) -> UInt64s:
    return np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], "<u8").astype(np.uint64)


def _no_lanes(count: int) -> Lanes:
    return np.zeros(count, np.uint64), np.zeros(count, np.uint64)


def _lanes(array: pa.Array, keys: UInt64s) -> Lanes:
    lanes = _no_lanes(len(array))
    _add(array, keys, lanes)
    return lanes


def _add(array: pa.Array, keys: UInt64s, lanes: Lanes) -> None:
    """Add the lanes of the values of one column."""
    _adder(array.type)(array, keys, lanes)


@lru_cache(maxsize=4096)
def _adder(kind: pa.DataType) -> Callable[[pa.Array, UInt64s, Lanes], None]:
    """Return the function that adds the lanes of a column of the type ``kind``."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return lambda array, keys, lanes: _add(array.storage, keys, lanes)
    if types.is_dictionary(kind):
        return _add_dictionary
    if types.is_null(kind):
        return lambda array, keys, lanes: _add(pa.nulls(len(array), pa.int64()), keys, lanes)
    if types.is_uint64(kind):
        return _add_unsigned
    if types.is_decimal(kind):
        return _add_decimals if kind.bit_width >= 128 else _after_cast(pa.decimal128(kind.precision, kind.scale))
    if types.is_floating(kind):
        return _add_floats
    if types.is_fixed_size_list(kind):
        return _after_cast(pa.large_list(kind.value_field))
    if types.is_list(kind) or types.is_large_list(kind):
        return _add_lists
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return _add_bytes
    if types.is_fixed_size_binary(kind) or str(kind) in ("string_view", "binary_view"):
        return _after_cast(pa.large_binary())
    if types.is_boolean(kind):
        return _after_cast(pa.uint8())
    if types.is_date64(kind):
        return _after_cast(pa.date32())
    if types.is_timestamp(kind) and kind.unit != "us":
        return _after_cast(pa.timestamp("us", kind.tz))
    if types.is_time(kind) and kind.unit != "us":
        return _after_cast(pa.time64("us"))
    if types.is_duration(kind) and kind.unit != "us":
        return _after_cast(pa.duration("us"))
    if types.is_integer(kind) or types.is_temporal(kind):
        sign = "u" if types.is_unsigned_integer(kind) else "i"
        return _add_integers(f"{sign}{kind.bit_width // 8}")
    raise TypeError(f"the digest of rows is not defined for columns of the type {kind}")


def _after_cast(kind: pa.DataType) -> Callable[[pa.Array, UInt64s, Lanes], None]:
    return lambda array, keys, lanes: _add(array.cast(kind), keys, lanes)


def _validity(array: pa.Array, bitmap: pa.Buffer | None) -> Bytes:
    """Return a byte for each value, 0 for a null; empty if no value is null."""
    if not array.null_count:
        return _ALL_VALID
    offset = array.offset
    start = offset & 7
    return np.unpackbits(bytes_of(bitmap)[offset >> 3 :], count=start + len(array), bitorder="little")[start:]


def _fixed(array: pa.Array, buffer: pa.Buffer, kind: Any) -> Any:
    """Return the values of an array of fixed width, including what is stored in place of nulls."""
    return bytes_of(buffer).view(kind)[array.offset : array.offset + len(array)]


def _add_integers(kind: str) -> Callable[[pa.Array, UInt64s, Lanes], None]:
    def add(array: pa.Array, keys: UInt64s, lanes: Lanes) -> None:
        bitmap, data = array.buffers()
        words = _fixed(array, data, kind).astype(np.int64, copy=False).view(np.uint64)
        add_words(_validity(array, bitmap), words, *lanes, keys)

    return add


def _add_floats(array: pa.Array, keys: UInt64s, lanes: Lanes) -> None:
    kind = {16: np.float16, 32: np.float32, 64: np.float64}[array.type.bit_width]
    bitmap, data = array.buffers()
    values = _fixed(array, data, kind).astype(np.float64, copy=False)
    words = values.view(np.uint64)
    wrong = np.isnan(values)
    words = np.where(wrong, _NAN, words) if wrong.any() else words
    add_words(_validity(array, bitmap), words, *lanes, keys)


def _add_unsigned(array: pa.Array, keys: UInt64s, lanes: Lanes) -> None:
    bitmap, data = array.buffers()
    words = np.zeros(2 * len(array), np.uint64)
    words[::2] = _fixed(array, data, np.uint64)
    _add_wide(_validity(array, bitmap), words, 2, lanes, keys)


def _add_decimals(array: pa.Array, keys: UInt64s, lanes: Lanes) -> None:
    bitmap, data = array.buffers()
    width = array.type.bit_width // 64
    words = bytes_of(data).view(np.uint64)[array.offset * width : (array.offset + len(array)) * width]
    _add_wide(_validity(array, bitmap), words, width, lanes, keys)


def _add_wide(valid: Bytes, words: UInt64s, width: int, lanes: Lanes, keys: UInt64s) -> None:
    lowest: UInt64s = np.empty(len(lanes[0]), np.uint64)
    if narrow(words, width, lowest):
        add_words(valid, lowest, *lanes, keys)
    else:
        add_wide(valid, words, width, *lanes, keys)


def _add_bytes(array: pa.Array, keys: UInt64s, lanes: Lanes) -> None:
    bitmap, ends, data = array.buffers()
    add_bytes(_validity(array, bitmap), _offsets(array, ends), bytes_of(data), *lanes, keys)


def _add_dictionary(array: pa.Array, keys: UInt64s, lanes: Lanes) -> None:
    indices = array.indices
    values = _lanes(array.dictionary, keys)
    bitmap, data = indices.buffers()
    sign = "u" if pa.types.is_unsigned_integer(indices.type) else "i"
    places = _fixed(indices, data, f"{sign}{indices.type.bit_width // 8}").astype(np.int64, copy=False)
    add_indexed(_validity(indices, bitmap), places, *values, *lanes, keys)


def _add_lists(array: pa.Array, keys: UInt64s, lanes: Lanes) -> None:
    bitmap, offsets = array.buffers()[:2]
    ends = _offsets(array, offsets)
    first = int(ends[0])
    elements = array.values.slice(first, int(ends[-1]) - first)
    add_lists(_validity(array, bitmap), ends - first, *_lanes(elements, keys), *lanes, keys)


def _offsets(array: pa.Array, buffer: pa.Buffer) -> Int64s:
    """Return the offsets of the values of text, binary or lists. There is one more offset than there are values."""
    if not len(array):
        return np.zeros(1, np.int64)
    large = str(array.type).startswith("large_")
    stored = bytes_of(buffer).view(np.int64 if large else np.int32)
    return stored[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)
