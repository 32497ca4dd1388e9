"""The places of the values in a batch of rows. Locating the values, without decoding them, is the first step of the log
decoders of all sources."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import Bytes, Int32s, Int64s, copy_bytes, kernel, load64, store64

NULL = -1
"""The entry of ``Located.starts`` for a NULL."""

ALL_GOOD = -1
"""Return code of a kernel that decoded all values. If a value is malformed, the kernel returns the number of the row
instead."""

LARGEST = 2**31 - 1
"""Maximum size in bytes of all values of a column in one batch."""

OVERRUN = 32
"""The number of bytes after the last value that ``copy_values`` may overwrite."""


@dataclass(frozen=True)
class Located:
    """The places of the values of a batch of rows.

    ``data``
        ``uint8[::1]``; contains every located value.
    ``starts``, ``lengths``
        ``int32[columns, capacity]``. For each column, only the first ``rows`` elements count. An element of ``starts``
        is the place of the value, or ``NULL``. An element of ``lengths`` is the size of the value in bytes. The lengths
        of fixed-width values are undefined.
    ``nulls``, ``totals``
        ``int64[columns]``: for each column, the number of NULLs, and the sum of the lengths of all other values.
    """

    data: Bytes
    starts: Int32s
    lengths: Int32s
    nulls: Int64s
    totals: Int64s
    rows: int

    def validity(self, index: int) -> pa.Buffer | None:
        """Return the validity bitmap of column ``index``. None: no value of the column is NULL."""
        if not self.nulls[index]:
            return None
        validity = pa.allocate_buffer((self.rows + 7) // 8)
        _fill_validity(self.starts[index], self.rows, np.frombuffer(validity, np.uint8))
        return validity

    def array(self, index: int, arrow: pa.DataType, values: object) -> pa.Array:
        """Return column ``index`` as an Arrow array. ``values`` has the fixed-width values or bits of the column, in
        Arrow's format."""
        buffers = [self.validity(index), pa.py_buffer(values)]
        return pa.Array.from_buffers(arrow, self.rows, buffers, int(self.nulls[index]))


@kernel
def _fill_validity(starts: Int32s, rows: int, validity: Bytes) -> None:
    for byte in range(len(validity)):
        bits = 0
        for row in range(8 * byte, min(8 * byte + 8, rows)):
            if starts[row] >= 0:
                bits |= 1 << (row & 7)
        validity[byte] = bits


@kernel
def copy_values(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, offsets: Int32s, out: Bytes) -> None:
    """Copy the values, one after the other, to ``out``. The buffer ``out`` must have ``OVERRUN`` more bytes than the
    values."""
    at = 0
    offsets[0] = 0
    last = len(data) - OVERRUN
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            length = int(lengths[row])
            # Most values are short. For a short value, copying some additional bytes is faster than a call of memcpy.
            if length <= 16 and start <= last:
                store64(out, at, load64(data, start))
                store64(out, at + 8, load64(data, start + 8))
            elif length <= 32 and start <= last:
                store64(out, at, load64(data, start))
                store64(out, at + 8, load64(data, start + 8))
                store64(out, at + 16, load64(data, start + 16))
                store64(out, at + 24, load64(data, start + 24))
            else:
                copy_bytes(out, at, data, start, length)
            at += length
        offsets[row + 1] = at
