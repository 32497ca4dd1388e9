"""Receives the result of a statement from the socket into one large, reused buffer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import pymysql
from pymysql import err
from pymysql.constants import CR, SERVER_STATUS

from airflow_provider_cdc.core.kernels import (
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
from airflow_provider_cdc.errors import DecodeError, SchemaChanged
from airflow_provider_cdc.sources.mysql.server.session import Connection
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType

# Parses the packets of a statement's result in the buffer that receives the bytes from the socket.
#
# A packet is a header of four bytes (three for the length, one for the sequence number) and a payload. A payload of
# 2^24 - 1 bytes or more continues in the next packets. The payload of a row is a zero byte, a bitmap of NULLs in which
# column ``c`` has bit ``c + 2``, and the values. Source: MySQL's "Client/Server Protocol", pages "MySQL Packets" and
# "Binary Protocol Resultset Row".


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
    function fills, see ``sources.log.netting.Located``.

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


_BUFFER = 4 << 20
_LARGEST = 2**31 - 1
"""Offsets in the buffer are stored in 32 bits."""
_SLACK = 32
"""The buffer has this many extra bytes at the end: a kernel copies short values in words, so it may read past the
received bytes."""
_UNSIGNED_FLAG = 32
_SMALL = 1 << 20
"""The maximum size in bytes of packets other than rows."""
MOST_WARNINGS = 65_535


class ResultStream:
    """Receives the packets of a session's results from the socket, one result after another.

    The kernels of ``packets`` use ``buffer`` and ``state``. ``ended``: the server will send nothing more. ``warnings``:
    the number of warnings of the last complete result. The server counts at most `MOST_WARNINGS` warnings.
    """

    def __init__(self, connection: Connection, where: str) -> None:
        self._connection = connection
        self._socket = connection.bare_socket()
        self._where = where
        self._size = _BUFFER
        self._allocate()
        self.state: Int64s = np.zeros(STATE_SIZE, np.int64)
        self.ended = True
        self.warnings = 0

    def _allocate(self) -> None:
        self.buffer: Bytes = np.empty(self._size + _SLACK, np.uint8)
        self._view = memoryview(self.buffer.data)[: self._size]

    def open(self, columns: Sequence[ColumnType]) -> None:
        """Start to receive the result of the statement that was just sent, and check that the result has these columns.

        :raises pymysql.MySQLError: the server answered with an error, or the session broke.
        :raises SchemaChanged: the result has other columns.
        :raises DecodeError: the answer is not a result.
        """
        self._socket = self._connection.bare_socket()
        self.state[:] = 0
        self.state[STATE_SEQUENCE] = 1
        self.ended = False
        head = self._payload(_SMALL)
        if head[:1] == b"\xff":
            self._raise_error(head)
        try:
            definitions = [_definition(self._payload(_SMALL)) for _ in range(_count(head))]
        except (ValueError, IndexError, struct.error) as error:
            raise DecodeError(
                f"the server's answer is not the result of a statement: {error}",
                where=self._where,
                hint="check for a proxy between this machine and the server",
            ) from error
        self._payload(_SMALL)  # the EOF packet (the driver does not set CLIENT_DEPRECATE_EOF)
        if definitions != [_expected(column) for column in columns]:
            raise SchemaChanged(
                "the columns of the statement's result differ from the recorded columns of the table",
                where=self._where,
                hint="the table changed since the run began: trigger a new run",
            )

    def make_room(self) -> None:
        """Move the unused bytes to the front of the buffer. This makes the locations of earlier rows invalid."""
        position, filled = self.state[STATE_POSITION], self.state[STATE_FILLED]
        if position:
            self.buffer[: filled - position] = self.buffer[position:filled]
            self.state[STATE_POSITION], self.state[STATE_FILLED] = 0, filled - position

    def receive(self) -> bool:
        """Receive more bytes. Return False if the buffer is full.

        :raises pymysql.OperationalError: the server closed the connection.
        :raises OSError: the connection broke, or nothing was received for too long.
        """
        filled = int(self.state[STATE_FILLED])
        if filled == self._size:
            return False
        count = self._socket.recv_into(self._view[filled:])
        if not count:
            raise err.OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
        self.state[STATE_FILLED] = filled + count
        return True

    def grow(self) -> None:
        """Double the buffer, because a row does not fit.

        :raises DecodeError: a row has 2 GiB or more.
        """
        if self._size == _LARGEST:
            raise DecodeError("a row has 2 GiB or more, but an Arrow array holds less", where=self._where)
        filled = self.state[STATE_FILLED]
        self._size = min(2 * self._size, _LARGEST)
        old = self.buffer
        self._allocate()
        self.buffer[:filled] = old[:filled]

    def finish(self) -> None:
        """Read the packet at which the kernel stopped, which must be the last packet of the result.

        :raises pymysql.MySQLError: the packet reports that the statement failed halfway.
        :raises DecodeError: the packet is of another kind.
        """
        last = self._payload(_SMALL)
        if last[:1] == b"\xff":
            self._raise_error(last)
        # A SELECT of a table has only one result, so no EOF packet may announce another result.
        is_end = last[:1] == b"\xfe" and len(last) == 5
        if not is_end or int.from_bytes(last[3:5], "little") & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
            raise DecodeError(
                f"the server sent neither a row nor the end of the rows: x'{last[:16].hex()}'", where=self._where
            )
        if self.state[STATE_POSITION] != self.state[STATE_FILLED]:
            raise DecodeError("bytes after the end of the rows", where=self._where)
        self.ended = True
        self.warnings = int.from_bytes(last[1:3], "little")

    def _raise_error(self, payload: bytes) -> NoReturn:
        try:
            err.raise_mysql_exception(payload)
        except struct.error as error:
            raise DecodeError(
                f"the server's error packet is malformed: x'{payload[:16].hex()}'", where=self._where
            ) from error
        except pymysql.MySQLError:
            self.ended = True
            raise

    def _payload(self, largest: int) -> bytes:
        """Return the payload of the next packet.

        :raises DecodeError: the packet is larger than ``largest``, or out of sequence.
        """
        while True:
            position, filled, sequence = self.state[:3].tolist()
            code, end, following, number = next_payload(self.buffer, position, filled, sequence)
            if code == FOUND:
                self.state[STATE_POSITION], self.state[STATE_SEQUENCE] = following, number
                return self.buffer[position + 4 : end].tobytes()
            if code != NEEDS_BYTES:
                raise DecodeError("a packet is out of sequence", where=self._where)
            if filled - position > largest:
                raise DecodeError(f"a packet of more than {largest:,} bytes that is not a row", where=self._where)
            if not self.receive():
                self.make_room()


def _count(head: bytes) -> int:
    """Return the number of columns in a result, from its first packet. A table has at most 4096 columns."""
    if len(head) == 3 and head[0] == 0xFC:
        return int.from_bytes(head[1:], "little")
    if len(head) != 1 or not 0 < head[0] < 0xFB:
        raise ValueError(f"x'{head[:16].hex()}'")
    return head[0]


def _definition(payload: bytes) -> tuple[int, bool]:
    """Return the type code of a column definition, and whether it is unsigned.

    Source: MySQL's "Client/Server Protocol", page "Column Definition Packet".
    """
    position = 0
    for _ in range(6):  # six names, each of at most 250 bytes
        position += 1 + payload[position]
    code, flags = struct.unpack_from("<BH", payload, position + 7)
    return code, bool(flags & _UNSIGNED_FLAG)


def _expected(column: ColumnType) -> tuple[int, bool]:
    return column.row_code, column.row_unsigned
