"""Kernels that sum the hashes of rows by bucket. `core.certificate.digest` defines the hash."""

from __future__ import annotations

import numpy as np

from airflow_provider_cdc.core.certificate.row_hash import UInt64s
from airflow_provider_cdc.core.kernels.compile import Int64s, kernel

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
