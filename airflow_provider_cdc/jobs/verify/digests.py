"""Digests of the rows of a table, by bucket: a bucket has the keys whose hash has the same last bits.

If all buckets of two tables have equal digests, the tables have the same rows. Otherwise, the differing buckets show
where to search for the differing rows. If they have too many rows to search, their rows are divided again, by the next
bits of the hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_cdc.core.certificate.digest import Digest, row_hashes
from airflow_provider_cdc.core.certificate.row_hash import UInt64s
from airflow_provider_cdc.core.kernels.compile import Int64s, kernel

# Kernels that sum the hashes of rows by bucket. `core.certificate.digest` defines the hash.


_1 = np.uint64(1)


@kernel
def add(buckets: Int64s, low: UInt64s, high: UInt64s, counts: Int64s, lows: UInt64s, highs: UInt64s) -> None:
    """Add the hashes ``low`` + 2**64 ``high`` of rows to the sums of their buckets, modulo 2**128."""
    for row in range(len(buckets)):
        bucket = buckets[row]
        counts[bucket] += 1
        total = lows[bucket] + low[row]
        highs[bucket] += high[row]
        if total < low[row]:
            highs[bucket] += _1
        lows[bucket] = total


@kernel
def add_sums(lows: UInt64s, highs: UInt64s, low: UInt64s, high: UInt64s) -> None:
    """Add the sums ``low`` + 2**64 ``high`` to the sums of the same buckets, modulo 2**128."""
    for bucket in range(len(lows)):
        total = lows[bucket] + low[bucket]
        highs[bucket] += high[bucket]
        if total < low[bucket]:
            highs[bucket] += _1
        lows[bucket] = total


BoolArray = npt.NDArray[np.bool_]
_BITS = 12
BUCKETS = 1 << _BITS


@dataclass(frozen=True)
class BucketPlaces:
    """The rows whose bucket at each level is one of the given buckets. Without levels: all rows."""

    levels: tuple[tuple[int, ...], ...] = ()

    def mask(self, hashes: UInt64s) -> BoolArray:
        """Return which rows are in these places, from the hashes of their keys."""
        found = np.ones(len(hashes), np.bool_)
        for level, buckets in enumerate(self.levels):
            found &= np.isin(buckets_of(hashes, level), buckets)
        return found

    def divided(self, buckets: Sequence[int]) -> BucketPlaces:
        """Return the rows of these places in some buckets of the next level."""
        return BucketPlaces((*self.levels, tuple(buckets)))


ALL = BucketPlaces()


def _zeros() -> UInt64s:
    return np.zeros(BUCKETS, np.uint64)


@dataclass
class BucketDigests:
    """The number of rows and the sum of their hashes, for each bucket. ``left_out`` counts the rows that were left out
    because their keys were touched."""

    counts: Int64s = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    lows: UInt64s = field(default_factory=_zeros)
    highs: UInt64s = field(default_factory=_zeros)
    left_out: int = 0

    def add(self, rows: pa.RecordBatch, key: Sequence[str], places: BucketPlaces = ALL) -> None:
        """Add the rows that are in ``places``, by their buckets of the next level.

        :param key: the columns of the key; empty: the table has no key.
        """
        if not rows.num_rows:
            return
        low, high = row_hashes(rows)
        keys = key_hashes(rows, key, low)
        if places.levels:
            wanted = places.mask(keys)
            low, high, keys = low[wanted], high[wanted], keys[wanted]
        buckets = buckets_of(keys, len(places.levels))
        add(buckets, low, high, self.counts, self.lows, self.highs)

    def merge(self, other: BucketDigests) -> None:
        """Add the rows of ``other``."""
        self.counts += other.counts
        add_sums(self.lows, self.highs, other.lows, other.highs)
        self.left_out += other.left_out

    def differing(self, other: BucketDigests) -> list[int]:
        """Return the buckets whose rows differ."""
        differ = (self.counts != other.counts) | (self.lows != other.lows) | (self.highs != other.highs)
        return [int(bucket) for bucket in np.flatnonzero(differ)]

    @property
    def total(self) -> Digest:
        """The digest of all rows."""
        sums = (int(low) | int(high) << 64 for low, high in zip(self.lows, self.highs, strict=True))
        return Digest(int(self.counts.sum()), sum(sums) % (1 << 128))


def key_hashes(rows: pa.RecordBatch, key: Sequence[str], low: UInt64s) -> UInt64s:
    """Return the hash of the key of each row.

    :param key: the columns of the key. If the table has no key, the whole row is its key.
    :param low: the low 64 bits of the hash of each row.
    """
    return row_hashes(rows.select(list(key)))[0] if key else low


def buckets_of(hashes: UInt64s, level: int) -> Int64s:
    """Return the bucket of each key at a level, from the hashes of the keys."""
    return (hashes >> np.uint64(_BITS * level) & np.uint64(BUCKETS - 1)).astype(np.int64)
