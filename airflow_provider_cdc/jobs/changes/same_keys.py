"""Groups changes by table and key, and finds the first and the last change of each group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import Bytes, Int32s, Int64s, bytes_of, inner, kernel, same_bytes
from airflow_provider_cdc.sources.log.netting import hash_key

_LOW_HALF = (1 << 32) - 1
_FEWEST_SLOTS = 16


class KeyChanges(NamedTuple):
    """One entry for each table and key, in the order of their first occurrence.

    ``first`` and ``last`` are the row numbers of the first and the last change, and ``counts`` is the sum of the
    counts. All are ``int64``."""

    first: Int64s
    last: Int64s
    counts: Int64s


def same_keys(rows: pa.Table) -> KeyChanges:
    """Group the changes by table and key.

    :param rows: changes of `DELTA_SCHEMA`, none of them pending. ``order`` and ``suborder`` determine which change is
        first. If two changes have the same ``order`` and ``suborder``, their places in ``rows`` determine which change
        is first.
    """
    size = rows.num_rows
    first, last, counts = np.empty((3, size), np.int64)
    if not size:
        return KeyChanges(first, last, counts)
    # The keys of all rows may exceed the capacity of one `pa.binary` array.
    keys = rows["key"].cast(pa.large_binary()).combine_chunks()
    offsets: Int64s = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + size + 1].copy()
    slots: Int64s = np.zeros(max(_FEWEST_SLOTS, 1 << (2 * size - 1).bit_length()), np.int64)
    group_count = _group(
        bytes_of(keys.buffers()[2]),
        offsets,
        _numbers(rows["table"], np.int32),
        _numbers(rows["order"], np.int64),
        _numbers(rows["suborder"], np.int64),
        _numbers(rows["count"], np.int64),
        slots,
        first,
        last,
        counts,
    )
    return KeyChanges(first[:group_count], last[:group_count], counts[:group_count])


def _numbers(column: pa.ChunkedArray, kind: npt.DTypeLike) -> npt.NDArray[np.signedinteger]:
    # Copy the values, because kernels are compiled for writable arrays, and would be compiled again for read-only
    # arrays.
    return np.array(column.to_numpy(), kind)


@inner
def _earlier(orders: Int64s, suborders: Int64s, one: int, other: int) -> bool:
    """Return whether the change ``one`` is ordered before ``other``."""
    return bool(orders[one] < orders[other] or (orders[one] == orders[other] and suborders[one] < suborders[other]))


@kernel
def _group(
    data: Bytes,
    offsets: Int64s,
    tables: Int32s,
    orders: Int64s,
    suborders: Int64s,
    counts: Int64s,
    slots: Int64s,
    first: Int64s,
    last: Int64s,
    sums: Int64s,
) -> int:
    """Fill ``first``, ``last`` and ``sums``, and return the number of their entries.

    :param offsets: the offsets of the keys in ``data``.
    :param slots: an array of zeros. The number of slots is a power of two, and at least twice the number of rows. A
        used slot has the upper half of a key's hash in its upper half, and the number of the key's entry plus one in
        its lower half.
    """
    group_count = 0
    mask = len(slots) - 1
    for row in range(len(tables)):
        at = offsets[row]
        size = offsets[row + 1] - at
        hashed = hash_key(data, at, size, tables[row])
        tag = hashed & ~_LOW_HALF
        slot = hashed & mask
        one = -1
        while slots[slot] != 0:
            if (slots[slot] & ~_LOW_HALF) == tag:
                one = (slots[slot] & _LOW_HALF) - 1
                other = first[one]
                if (
                    tables[other] == tables[row]
                    and offsets[other + 1] - offsets[other] == size
                    and same_bytes(data, offsets[other], data, at, size)
                ):
                    break
            slot = (slot + 1) & mask
        if slots[slot] == 0:
            slots[slot] = tag | (group_count + 1)
            first[group_count] = last[group_count] = row
            sums[group_count] = counts[row]
            group_count += 1
            continue
        sums[one] += counts[row]
        if _earlier(orders, suborders, row, first[one]):
            first[one] = row
        if not _earlier(orders, suborders, row, last[one]):
            last[one] = row
    return group_count
