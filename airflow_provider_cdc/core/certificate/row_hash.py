"""Kernels that hash rows, column by column (`digest` has the definition).

Each function adds what one column contributes to the two lanes of each row. All arithmetic is modulo 2**64, on
``uint64``: unlike ``int64``, these operations may wrap around.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from airflow_provider_cdc.core.kernels.compile import Bytes, Int64s, inner, kernel, load64, load_le

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
