"""Computes the CRC-32 of binary log events. It uses zlib's polynomial, and covers an event without its last four bytes.

The tables allow the loop to process sixteen bytes per step ("slicing", Kounavis and Berry, 2005). Each step depends on
the previous step. So longer events are divided into pairs of strands, and the steps of the two strands alternate. At
the end of the strands, the two CRCs are combined. This is possible because the CRC is linear: the CRC of the first
strand can be shifted past the second strand (as in zlib's crc32_combine). The kernel exists because most events are so
short that a call from Python to zlib would cost more than the computation.
"""

from __future__ import annotations

import numpy as np

from airflow_provider_cdc.core.kernels.compile import Bytes, inner, load8, load32, load64

_POLYNOMIAL = 0xEDB88320
_SLICES = 16
_STRAND_BYTES = 256


def _make_tables() -> Bytes:
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ _POLYNOMIAL, first >> 1).astype(np.uint32)
    tables = [first]
    for _ in range(_SLICES - 1):
        tables.append(tables[-1] >> 8 ^ first[tables[-1] & 0xFF])
    # Zero bytes that follow a CRC have the same effect on a byte of this CRC as on one of the last four bytes of data.
    moved = list(reversed(tables[:4]))
    for _ in range(_STRAND_BYTES - 4):
        moved = [table >> 8 ^ first[table & 0xFF] for table in moved]
    tables += moved
    return np.concatenate(tables).astype("<u4").view(np.uint8)


TABLES = _make_tables()
"""``uint8[20 * 256 * 4]``, little-endian words. For ``s`` up to 15, word ``256 * s + b`` is the CRC of byte ``b``
followed by ``s`` zero bytes. For ``s`` from 16 on, take a CRC whose byte ``s - 16`` is ``b`` and whose other bytes are
0: the word is this CRC after one strand of zero bytes."""


@inner
def _step(tables: Bytes, data: Bytes, at: int, crc: int) -> int:
    """Return ``crc`` updated with the sixteen bytes of ``data`` from ``at``."""
    low = load64(data, at) ^ crc
    high = load64(data, at + 8)
    crc = 0
    for byte in range(8):
        crc ^= load32(tables, 1024 * (15 - byte) + 4 * (low >> 8 * byte & 0xFF))
        crc ^= load32(tables, 1024 * (7 - byte) + 4 * (high >> 8 * byte & 0xFF))
    return crc


@inner
def crc32(tables: Bytes, data: Bytes, at: int, end: int) -> int:
    """Return the CRC-32 of ``data[at:end]``. The caller guarantees that the range is inside the array."""
    crc = 0xFFFFFFFF
    while at + 2 * _STRAND_BYTES <= end:
        following = 0
        for _ in range(_STRAND_BYTES // 16):
            crc = _step(tables, data, at, crc)
            following = _step(tables, data, at + _STRAND_BYTES, following)
            at += 16
        for byte in range(4):
            following ^= load32(tables, 1024 * (_SLICES + byte) + 4 * (crc >> 8 * byte & 0xFF))
        crc = following
        at += _STRAND_BYTES
    while at + 16 <= end:
        crc = _step(tables, data, at, crc)
        at += 16
    while at + 4 <= end:
        word = load32(data, at) ^ crc
        crc = 0
        for byte in range(4):
            crc ^= load32(tables, 1024 * (3 - byte) + 4 * (word >> 8 * byte & 0xFF))
        at += 4
    while at < end:
        crc = load32(tables, 4 * ((crc ^ load8(data, at)) & 0xFF)) ^ crc >> 8
        at += 1
    return crc ^ 0xFFFFFFFF
