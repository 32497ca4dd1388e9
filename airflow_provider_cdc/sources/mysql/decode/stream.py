"""Receives the result of a statement from the socket into one large, reused buffer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import pymysql
from pymysql import err
from pymysql.constants import CR, SERVER_STATUS

from airflow_provider_cdc.core.kernels.compile import Bytes, Int64s
from airflow_provider_cdc.errors import DecodeError, SchemaChanged
from airflow_provider_cdc.sources.mysql.decode import packets
from airflow_provider_cdc.sources.mysql.server.session import Connection
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType

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
        self.state: Int64s = np.zeros(packets.STATE_SIZE, np.int64)
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
        self.state[packets.STATE_SEQUENCE] = 1
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
        position, filled = self.state[packets.STATE_POSITION], self.state[packets.STATE_FILLED]
        if position:
            self.buffer[: filled - position] = self.buffer[position:filled]
            self.state[packets.STATE_POSITION], self.state[packets.STATE_FILLED] = 0, filled - position

    def receive(self) -> bool:
        """Receive more bytes. Return False if the buffer is full.

        :raises pymysql.OperationalError: the server closed the connection.
        :raises OSError: the connection broke, or nothing was received for too long.
        """
        filled = int(self.state[packets.STATE_FILLED])
        if filled == self._size:
            return False
        count = self._socket.recv_into(self._view[filled:])
        if not count:
            raise err.OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
        self.state[packets.STATE_FILLED] = filled + count
        return True

    def grow(self) -> None:
        """Double the buffer, because a row does not fit.

        :raises DecodeError: a row has 2 GiB or more.
        """
        if self._size == _LARGEST:
            raise DecodeError("a row has 2 GiB or more, but an Arrow array holds less", where=self._where)
        filled = self.state[packets.STATE_FILLED]
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
        if self.state[packets.STATE_POSITION] != self.state[packets.STATE_FILLED]:
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
            code, end, following, number = packets.next_payload(self.buffer, position, filled, sequence)
            if code == packets.FOUND:
                self.state[packets.STATE_POSITION], self.state[packets.STATE_SEQUENCE] = following, number
                return self.buffer[position + 4 : end].tobytes()
            if code != packets.NEEDS_BYTES:
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
