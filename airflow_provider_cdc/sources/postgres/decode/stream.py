"""Reads the result of a COPY from the socket into one large buffer, which is reused."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import psycopg

from airflow_provider_cdc.core.kernels import Bytes, Int32s, Int64s, kernel, load8, load16be, load32be
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

# Locates the messages of a COPY, and the values in them, in the buffer into which the socket was read.
#
# A message has a byte for its kind, four bytes for its length (including these four bytes), and a payload. A CopyData
# message (``d``) holds one row: two bytes for the number of fields and then, for each field, four bytes for its length
# (-1: NULL), and its bytes. The first CopyData message begins with a header. The last CopyData message has the number
# -1 instead of a row. All numbers are big-endian. Sources: PostgreSQL's "Message Formats" and, under COPY, "Binary
# Format" (https://www.postgresql.org/docs/current/sql-copy.html).


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
    """Write the locations of the values of rows, as described in ``sources.log.netting.Located``. Return the code of
    the reason for stopping.

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


_BUFFER = 4 << 20
_LARGEST = 2**31 - 64
"""The maximum size of the buffer, in bytes. Positions in the buffer are 32-bit numbers."""
SILENT_SECONDS = 900
"""If the server sends nothing for this many seconds, the session counts as lost. Every statement of this package gets a
response in less time."""
ANSWER_BYTES = 1 << 26
"""The maximum size, in bytes, of the result of `CopyStream.ask`, and of a message that is not a row of a COPY."""
_PER_ROW = 100
_SLACK = 32
"""The number of bytes beyond the received bytes that a kernel may read. This lets the kernel copy short values in whole
words."""

# Messages of the server: https://www.postgresql.org/docs/current/protocol-message-formats.html
_TERMINATE = b"X\0\0\0\4"
_COPY_OUT, _COPY_DONE, _READY, _ERROR, _ROW = b"H", b"c", b"Z", b"E", b"D"
_OF_NO_CONCERN = frozenset({b"N", b"S", b"A", b"C", b"I", b"T", _ROW})
"""Messages that are ignored: notices, parameters, notifications, command tags, and rows of statements whose result the
caller does not need."""
_UNASKED = frozenset({b"N", b"S", b"A"})
"""Messages that a server may send between two statements: notices, parameters, notifications. (It may also send the
error with which it ends the session.)"""


def is_plain(connection: Connection) -> bool:
    """Return whether a session's socket is unencrypted. It is unencrypted if the session uses neither TLS nor
    GSSAPI."""
    encrypted = query(connection, "SELECT FROM pg_stat_gssapi WHERE pid = pg_backend_pid() AND encrypted")
    return not (connection.pgconn.ssl_in_use or encrypted)


def socket_of(connection: Connection) -> socket.socket:
    """Return a duplicate of a session's socket, with a separate file descriptor. The session must be unencrypted
    (`is_plain`).

    libpq would return a COPY row by row, and allocate memory for each row. Between two statements, libpq has nothing
    buffered, because the server sends data only in response to statements. So the caller can read from the socket
    itself. After that, the caller may use libpq only to close the session.
    """
    return socket.socket(fileno=os.dup(connection.fileno()))


class CopyStream:
    """Runs the statements and COPY commands of one session, directly on its socket.

    ``buffer`` and ``state`` are for the kernel of ``packets``.

    :param own: the session's socket, plain or encrypted. The session must stay open while the socket is used.
    :param received: bytes that were already received from the socket, but not processed.
    """

    def __init__(self, own: socket.socket, where: str, received: bytes = b"") -> None:
        self._socket = own
        if isinstance(own, ssl.SSLSocket):
            own.settimeout(SILENT_SECONDS)
        else:
            own.settimeout(None)
            # Use a timeout of the operating system. Python's timeout would cost an additional system call for each
            # call that receives bytes.
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SILENT_SECONDS, 0))
        self.where = where
        self._size = max(_BUFFER, len(received))
        self._allocate()
        self.state: Int64s = np.zeros(STATE_SIZE, np.int64)
        self._view[: len(received)] = received
        self.state[STATE_FILLED] = len(received)

    def _allocate(self) -> None:
        self.buffer: Bytes = np.empty(self._size + _SLACK, np.uint8)
        self._view = memoryview(self.buffer.data)[: self._size]

    def run(self, sql: str) -> None:
        """Run one statement, and ignore its result.

        :raises psycopg.Error: the server rejected the statement, or the connection was lost.
        """
        self._send(sql)
        for kind, _ in self._messages():
            if kind not in _OF_NO_CONCERN:
                raise self._unexpected(kind)

    def ask(self, sql: str) -> list[tuple[str | None, ...]]:
        """Return the rows of a query, with each value in the server's text format.

        :raises psycopg.Error: the server rejected the query, or the connection was lost.
        """
        self._send(sql)
        rows, bytes_left = [], ANSWER_BYTES
        for kind, payload in self._messages():
            if kind == _ROW:
                bytes_left -= len(payload) + _PER_ROW
                if bytes_left < 0:
                    raise self._too_large()
                try:
                    rows.append(_row_values(payload))
                except (ValueError, struct.error) as error:
                    raise DecodeError(f"a malformed row: {error}", where=self.where) from error
            elif kind not in _OF_NO_CONCERN:
                raise self._unexpected(kind)
        return rows

    def copy(self, sql: str) -> None:
        """Start a COPY of the result of a query.

        :raises psycopg.Error: the server rejected the query, or the connection was lost.
        """
        self._send(f"COPY ({sql}) TO STDOUT (FORMAT binary)")
        self.state[STATE_BEGUN] = self.state[STATE_ENDED] = 0
        for kind, _ in self._messages():
            if kind == _COPY_OUT:
                return
            if kind not in _OF_NO_CONCERN:
                raise self._unexpected(kind)
        raise self._unexpected(_READY)

    def at_other(self) -> bool:
        """Handle the message at which the kernel stopped. Return True if the COPY has ended successfully.

        :raises psycopg.Error: the COPY failed, or the connection was lost.
        :raises DecodeError: the COPY ended, but the end of the rows was not marked.
        """
        kind, payload = self._message()
        if kind == _ERROR:
            failure = self._error(payload)
            for _ in self._messages(failure):
                pass
            raise failure
        if kind == _COPY_DONE:
            if not self.state[STATE_ENDED]:
                raise DecodeError("the server ended the rows without a CopyDone message", where=self.where)
            for also, _ in self._messages():
                if also not in _OF_NO_CONCERN:
                    raise self._unexpected(also)
            return True
        if kind not in _OF_NO_CONCERN:
            raise self._unexpected(kind)
        return False

    def make_room(self) -> None:
        """Move the unused bytes to the front of the buffer. Located values are invalid afterwards."""
        position, filled = int(self.state[STATE_POSITION]), int(self.state[STATE_FILLED])
        if position:
            self.buffer[: filled - position] = self.buffer[position:filled]
            self.state[STATE_POSITION], self.state[STATE_FILLED] = 0, filled - position

    def receive(self) -> bool:
        """Receive more bytes. Return False if the buffer is full.

        :raises psycopg.OperationalError: the connection was lost.
        """
        filled = int(self.state[STATE_FILLED])
        if filled == self._size:
            return False
        try:
            count = self._socket.recv_into(self._view[filled:])
        except (BlockingIOError, TimeoutError) as error:
            raise psycopg.OperationalError(f"the server sent nothing for {SILENT_SECONDS} s") from error
        except OSError as error:
            raise psycopg.OperationalError(f"the connection was lost: {error}") from error
        if not count:
            raise psycopg.OperationalError("the server closed the connection")
        self.state[STATE_FILLED] = filled + count
        return True

    def grow(self) -> None:
        """Double the size of the buffer. The caller needs this if a row does not fit into the buffer.

        :raises DecodeError: a row has 2 GiB or more.
        """
        if self._size == _LARGEST:
            raise DecodeError("a row has 2 GiB or more, but an Arrow array holds less", where=self.where)
        filled = int(self.state[STATE_FILLED])
        self._size = min(2 * self._size, _LARGEST)
        old = self.buffer
        self._allocate()
        self.buffer[:filled] = old[:filled]

    def end(self) -> None:
        """Tell the server that the session ends. This is for sessions that libpq does not close."""
        with suppress(OSError):
            self._socket.sendall(_TERMINATE)

    def close(self) -> None:
        self._socket.close()

    def _send(self, sql: str) -> None:
        while self.state[STATE_POSITION] != self.state[STATE_FILLED]:
            kind, payload = self._message()
            if kind == _ERROR:
                raise self._error(payload)
            if kind not in _UNASKED:
                raise self._unexpected(kind)
        self.state[STATE_POSITION] = self.state[STATE_FILLED] = 0
        text = sql.encode() + b"\0"
        try:
            self._socket.sendall(b"Q" + (len(text) + 4).to_bytes(4, "big") + text)
        except OSError as error:
            raise psycopg.OperationalError(f"the connection was lost: {error}") from error

    def _messages(self, failure: psycopg.Error | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the messages until the server is ready for the next statement. Then raise the error that the server
        sent, if any.

        :param failure: an error that the server has already sent.
        """
        while True:
            try:
                kind, payload = self._message()
            except psycopg.OperationalError as error:
                if failure is None:
                    raise
                raise psycopg.OperationalError(f"{error}; before that, the server sent: {failure}") from error
            if kind == _ERROR:
                failure = self._error(payload)
            elif kind == _READY:
                if failure is not None:
                    raise failure
                return
            else:
                yield kind, payload

    def _message(self) -> tuple[bytes, bytes]:
        """Return the next message."""
        while True:
            position, filled = int(self.state[STATE_POSITION]), int(self.state[STATE_FILLED])
            if filled - position >= HEAD:
                head = self.buffer[position : position + HEAD].tobytes()
                end = position + 1 + int.from_bytes(head[1:], "big")
                if end < position + HEAD:
                    raise DecodeError("a message is shorter than its header", where=self.where)
                if end - position > ANSWER_BYTES:
                    raise self._too_large()
                if end <= filled:
                    self.state[STATE_POSITION] = end
                    return head[:1], self.buffer[position + HEAD : end].tobytes()
            if not self.receive():
                self.make_room()
                if int(self.state[STATE_FILLED]) == self._size:
                    self.grow()

    def _too_large(self) -> DecodeError:
        return DecodeError(
            f"the server's response has more than {ANSWER_BYTES:,} bytes",
            where=self.where,
            hint="check whether there is a proxy between this machine and the server",
        )

    def _unexpected(self, kind: bytes) -> DecodeError:
        return DecodeError(f"unexpected message of kind {kind!r}", where=self.where)

    @staticmethod
    def _error(payload: bytes) -> psycopg.Error:
        fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in payload.split(b"\0") if part}
        message = "\n".join(fields[kind] for kind in (b"M", b"D", b"H") if kind in fields)
        try:
            return psycopg.errors.lookup(fields.get(b"C", ""))(message)
        except KeyError:
            return psycopg.DatabaseError(f"{message} (SQLSTATE {fields.get(b'C')})")


def _row_values(payload: bytes) -> tuple[str | None, ...]:
    values: list[str | None] = []
    (count,), at = struct.unpack_from(">H", payload), 2
    for _ in range(count):
        (size,) = struct.unpack_from(">i", payload, at)
        at += 4
        values.append(None if size < 0 else payload[at : at + size].decode())
        at += max(size, 0)
    if at != len(payload):
        raise ValueError(f"the fields have {at} bytes, but the message has {len(payload)}")
    return tuple(values)
