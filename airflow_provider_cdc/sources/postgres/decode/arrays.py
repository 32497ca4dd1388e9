"""Splits the texts of arrays into their elements.

array_out writes an array as ``{1,NULL,3}``. Elements with special characters are in double quotes, with backslashes
before quotes and backslashes. An array of several dimensions has braces inside braces. If a lower bound is not 1, the
bounds precede the array: ``[0:1]={7,8}``. A list has neither dimensions nor bounds, so it cannot represent such arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import Bytes, Int32s, Int64s, bytes_of, kernel, load8, store8
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.log.located_values import ALL_GOOD, NULL, Located

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
