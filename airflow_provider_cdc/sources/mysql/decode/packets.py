"""Parses the packets of a statement's result in the buffer that receives the bytes from the socket.

A packet is a header of four bytes (three for the length, one for the sequence number) and a payload. A payload of
2^24 - 1 bytes or more continues in the next packets. The payload of a row is a zero byte, a bitmap of NULLs in which
column ``c`` has bit ``c + 2``, and the values. Source: MySQL's "Client/Server Protocol", pages "MySQL Packets" and
"Binary Protocol Resultset Row".
"""

from __future__ import annotations

from airflow_provider_cdc.core.kernels.compile import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    inner,
    kernel,
    load8,
    load32,
    load_le,
    store32,
)

# Return codes of the kernels.
FOUND = 0
NEEDS_BYTES = 1
"""All complete packets are processed."""
NEEDS_ROOM = 2
"""The arrays have no room to locate more rows."""
AT_LAST = 3
"""The next packet is not a row: it is the last packet of the result."""
BAD_SEQUENCE = -1
BAD_ROW = -2

STATE_POSITION = 0
"""Offset of the next packet."""
STATE_FILLED = 1
"""Offset of the end of the received bytes."""
STATE_SEQUENCE = 2
"""Sequence number of the next packet."""
STATE_ROWS = 3
"""Number of located rows."""
STATE_SIZE = 4

_MOST = 0xFF_FFFF
"""The length in a packet's header if the payload continues in the next packet."""


@kernel
def next_payload(buffer: Bytes, position: int, filled: int, sequence: int) -> tuple[int, int, int, int]:
    """Find the whole payload of the packet at ``position``.

    A payload that spans several packets is joined in place: the headers inside it are removed from the buffer.

    :param filled: the end of the received bytes; nothing after it is read.
    :param sequence: the sequence number that the packet must have.
    :returns: a code. With ``FOUND``, also the end of the payload (the payload starts at ``position + 4``), and the
        offset and the sequence number of the next packet. With ``NEEDS_BYTES`` and ``BAD_SEQUENCE``, nothing was
        changed.
    """
    packet, number, length = position, sequence, _MOST
    while length == _MOST:
        if filled - packet < 4:
            return NEEDS_BYTES, 0, 0, 0
        header = load32(buffer, packet)
        length = header & _MOST
        if header >> 24 != number:
            return BAD_SEQUENCE, 0, 0, 0
        if length > filled - packet - 4:
            return NEEDS_BYTES, 0, 0, 0
        packet += 4 + length
        number = (number + 1) & 0xFF
    end = packet
    if end - position - 4 > _MOST:
        end = _join(buffer, position)
    return FOUND, end, packet, number


@inner
def _join(buffer: Bytes, position: int) -> int:
    """Join the pieces of a long payload. Return its end."""
    packet, end, length = position, position + 4, _MOST
    while length == _MOST:
        length = load32(buffer, packet) & _MOST
        if packet > position:
            copy_bytes(buffer, end, buffer, packet + 4, length)
        end += length
        packet += 4 + length
    return end


@kernel
def locate_rows(
    buffer: Bytes, state: Int64s, widths: Int32s, starts: Int32s, lengths: Int32s, nulls: Int64s, totals: Int64s
) -> int:
    """Locate the values of all complete rows between ``STATE_POSITION`` and ``STATE_FILLED``.

    Nothing outside this range is read. Call this function again after receiving more bytes. For the arrays that this
    function fills, see ``cells.Located``.

    :param widths: ``ColumnType.row_width`` of each column.
    :returns: one of the codes above. After the call, the state points to the packet that was not used or is malformed.
    """
    columns, capacity = len(widths), starts.shape[1]
    bitmap = (columns + 9) >> 3
    # Use one dimension instead of two, because this loop takes most of the time of a row.
    flat_starts, flat_lengths = starts.reshape(-1), lengths.reshape(-1)
    packet, filled, sequence = state[STATE_POSITION], state[STATE_FILLED], state[STATE_SEQUENCE]
    row = state[STATE_ROWS]
    code = NEEDS_ROOM
    while row < capacity:
        code = NEEDS_BYTES
        if filled - packet < 4:
            break
        header = load32(buffer, packet)
        end = packet + 4 + (header & _MOST)
        following, number = end, (sequence + 1) & 0xFF
        if header & _MOST == _MOST:
            code, end, following, number = next_payload(buffer, packet, filled, sequence)
            if code != FOUND:
                break
        elif end > filled:
            break
        elif header >> 24 != sequence:
            code = BAD_SEQUENCE
            break
        bits = packet + 5
        position = bits + bitmap
        if bits > end or load8(buffer, packet + 4) != 0:
            code = AT_LAST
            break
        code = BAD_ROW
        if position > end:
            break
        any_null = 0
        for byte in range(bits, position):
            any_null |= load8(buffer, byte)
        slot = row
        for column in range(columns):
            bit = column + 2
            if any_null != 0 and (load8(buffer, bits + (bit >> 3)) >> (bit & 7)) & 1:
                store32(flat_starts, slot, -1)
                nulls[column] += 1
                slot += capacity
                continue
            length = int(widths[column])
            if length <= 0:
                if position >= end:
                    position = -1
                    break
                temporal = length < 0
                length = load8(buffer, position)
                position += 1
                if length > 250 and not temporal:
                    # In a length-encoded integer, the byte 252, 253 or 254 means that an integer of 2, 3 or 8 bytes
                    # follows.
                    size = 2 if length == 252 else 3 if length == 253 else 8 if length == 254 else 0
                    if size == 0 or size > end - position:
                        position = -1
                        break
                    length = load_le(buffer, position, size)
                    position += size
                if length < 0 or length > end - position:
                    position = -1
                    break
                store32(flat_lengths, slot, length)
                totals[column] += length
            store32(flat_starts, slot, position)
            position += length
            slot += capacity
        # Check the bounds of all values of fixed width here at once; this is early enough because none of them has been
        # read yet.
        if position != end:
            break
        packet, sequence = following, number
        row += 1
        code = NEEDS_ROOM
    state[STATE_ROWS], state[STATE_POSITION], state[STATE_SEQUENCE] = row, packet, sequence
    return code
