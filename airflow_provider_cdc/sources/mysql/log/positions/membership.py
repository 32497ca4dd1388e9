"""Lays out GTID sets as arrays, so that kernels can look up transactions in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from airflow_provider_cdc.core.kernels import Bytes, Int64s, inner, kernel, load8, load64
from airflow_provider_cdc.core.positions.gtid import GtidSet

TSID_BYTES = 56
"""Size in bytes of the array entry for a source of transactions (a TSID). The entry contains the UUID (16 bytes), the
length of the tag (one byte), the tag, and zeros as padding."""

_TAG_AT = 17


class SetArrays(NamedTuple):
    """GTID sets, numbered in the order in which they were given.

    ``tsids``
        ``uint8[TSID_BYTES * n]``, all sources that occur in any of the sets.
    ``ranges``
        ``int64[2 * n * sets]``. For set ``s`` and source ``t``, the entry ``2 * (n * s + t)`` is the index of their
        first bound in ``bounds``. The next entry is the index after their last bound.
    ``bounds``
        ``int64``, in increasing order: the start and the exclusive end of each interval.
    """

    tsids: Bytes
    ranges: Int64s
    bounds: Int64s


def set_arrays(sets: Sequence[GtidSet]) -> SetArrays:
    """Lay out ``sets`` for ``contains``."""
    tsids = sorted({tsid_bytes(uuid, tag) for gtid_set in sets for uuid, tag, _ in gtid_set.items()})
    ranges: list[int] = []
    bounds: list[int] = []
    for gtid_set in sets:
        intervals_by_tsid = {tsid_bytes(uuid, tag): intervals for uuid, tag, intervals in gtid_set.items()}
        for tsid in tsids:
            ranges.append(len(bounds))
            bounds.extend(bound for interval in intervals_by_tsid.get(tsid, ()) for bound in interval)
            ranges.append(len(bounds))
    return SetArrays(
        np.frombuffer(b"".join(tsids), np.uint8).copy(), np.array(ranges, np.int64), np.array(bounds, np.int64)
    )


def tsid_bytes(uuid: bytes, tag: str) -> bytes:
    """Return a source as ``TSID_BYTES`` bytes."""
    return (uuid + bytes([len(tag)]) + tag.encode("ascii")).ljust(TSID_BYTES, b"\0")


def tsid_parts(tsid: bytes) -> tuple[bytes, str]:
    """Return the UUID and the tag of a source."""
    return tsid[:16], tsid[_TAG_AT : _TAG_AT + tsid[16]].decode("ascii", "replace")


@inner
def find_tsid(tsids: Bytes, tsid: Bytes, hint: int) -> int:
    """Return the index of the source ``tsid`` (``uint8[TSID_BYTES]``) in ``tsids``, or -1. ``hint`` is the likely
    index, or -1."""
    count = len(tsids) // TSID_BYTES
    for index in range(-1, count):
        candidate = hint if index < 0 else index
        if candidate < 0:
            continue
        same = True
        for word in range(0, TSID_BYTES, 8):
            if load64(tsids, candidate * TSID_BYTES + word) != load64(tsid, word):
                same = False
                break
        if same:
            return candidate
    return -1


@inner
def contains(sets: SetArrays, which: int, source: int, number: int) -> bool:
    """Return whether the set with index ``which`` contains the transaction ``number`` of ``source``. The source -1 is
    in no set."""
    if source < 0:
        return False
    entry = 2 * (len(sets.tsids) // TSID_BYTES * which + source)
    start = low = sets.ranges[entry]
    high = sets.ranges[entry + 1]
    # Count the bounds that are not greater than the number. An odd count means that the number is inside an interval.
    while low < high:
        middle = (low + high) >> 1
        if sets.bounds[middle] <= number:
            low = middle + 1
        else:
            high = middle
    return bool((low - start) & 1)


@inner
def set_untagged(tsid: Bytes, data: Bytes, uuid_at: int) -> None:
    """Write a source without a tag into ``tsid``. Its UUID is at ``data[uuid_at]``."""
    for word in range(16, TSID_BYTES, 8):
        for byte in range(8):
            tsid[word + byte] = 0
    for byte in range(16):
        tsid[byte] = load8(data, uuid_at + byte)


@kernel
def in_set(sets: SetArrays, which: int, source: int, number: int) -> bool:
    """Like ``contains``, for callers in Python."""
    return contains(sets, which, source, number)
