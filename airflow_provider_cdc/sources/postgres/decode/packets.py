"""Locates the messages of a COPY, and the values in them, in the buffer into which the socket was read.

A message has a byte for its kind, four bytes for its length (including these four bytes), and a payload. A CopyData
message (``d``) holds one row: two bytes for the number of fields and then, for each field, four bytes for its length
(-1: NULL), and its bytes. The first CopyData message begins with a header. The last CopyData message has the number -1
instead of a row. All numbers are big-endian. Sources: PostgreSQL's "Message Formats" and, under COPY, "Binary Format"
(https://www.postgresql.org/docs/current/sql-copy.html).
"""

from __future__ import annotations

from airflow_provider_cdc.core.kernels.compile import Bytes, Int32s, Int64s, kernel, load8, load16be, load32be

# Return codes of the kernel.
NEEDS_BYTES = 1
"""All complete messages are processed."""
NEEDS_ROOM = 2
"""There is no room for the locations of more rows."""
AT_OTHER = 3
"""The next message is not a row, or it marks the end of the rows."""
BAD_ROW = -1

STATE_POSITION = 0
"""Position of the next message."""
STATE_FILLED = 1
"""End of the received bytes."""
STATE_ROWS = 2
"""Number of located rows."""
STATE_BEGUN = 3
"""Whether the header has been read."""
STATE_ENDED = 4
"""Whether the end of the rows has been read."""
STATE_SIZE = 5

HEAD = 5
"""Bytes of a message before its payload."""

_COPY_DATA = 0x64
_SIGNATURE_BYTES = 11
_HEADER_BYTES = 19


@kernel
def locate_rows(
    buffer: Bytes, state: Int64s, widths: Int32s, starts: Int32s, lengths: Int32s, nulls: Int64s, totals: Int64s
) -> int:
    """Write the locations of the values of rows, as described in ``sources.located.Located``. Return the code of the
    reason for stopping.

    :param widths: for each column, the size in bytes that each of its values has, or -1 if the sizes differ.
    """
    columns, capacity = starts.shape
    position, filled, row = state[STATE_POSITION], state[STATE_FILLED], state[STATE_ROWS]
    code = NEEDS_BYTES
    while position + HEAD <= filled:
        if load8(buffer, position) != _COPY_DATA:
            code = AT_OTHER
            break
        size = load32be(buffer, position + 1)
        if size < 4 or size > 0x7FFFFFFF:
            code = BAD_ROW
            break
        end = position + 1 + size
        if end > filled:
            break
        at = position + HEAD
        if not state[STATE_BEGUN]:
            if end - at < _HEADER_BYTES:
                code = BAD_ROW
                break
            extension = load32be(buffer, at + _HEADER_BYTES - 4)
            flags = load32be(buffer, at + _SIGNATURE_BYTES)
            if flags != 0 or extension != 0:
                code = BAD_ROW
                break
            at += _HEADER_BYTES
            if at == end:
                state[STATE_BEGUN] = 1
                position = end
                continue
        if state[STATE_ENDED] or end - at < 2:
            code = BAD_ROW
            break
        fields = load16be(buffer, at)
        at += 2
        if fields == 0xFFFF:
            if at != end:
                code = BAD_ROW
                break
            state[STATE_BEGUN] = state[STATE_ENDED] = 1
            position = end
            continue
        if fields != columns:
            code = BAD_ROW
            break
        if row == capacity:
            code = NEEDS_ROOM
            break
        good = True
        for column in range(columns):
            if at + 4 > end:
                good = False
                break
            length = load32be(buffer, at)
            at += 4
            if length == 0xFFFFFFFF:
                starts[column, row] = -1
                continue
            if length > end - at or (widths[column] >= 0 and length != widths[column]):
                good = False
                break
            starts[column, row] = at
            lengths[column, row] = length
            at += length
        if not good or at != end:
            code = BAD_ROW
            break
        for column in range(columns):
            if starts[column, row] < 0:
                nulls[column] += 1
            else:
                totals[column] += lengths[column, row]
        state[STATE_BEGUN] = 1
        row += 1
        position = end
    state[STATE_POSITION], state[STATE_ROWS] = position, row
    return code
