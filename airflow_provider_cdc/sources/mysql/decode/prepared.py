"""Prepared statements on a PyMySQL connection (PyMySQL has no API for them). Parameters are sent in binary, not as SQL.

Source: MySQL's "Client/Server Protocol", pages COM_STMT_PREPARE, COM_STMT_EXECUTE and COM_STMT_CLOSE."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.mysql.server.session import Connection

_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19


_LONGLONG, _BLOB, _VAR_STRING = 8, 252, 253


_UNSIGNED = 0x80


_HEAD_BYTES = 9


class PreparedStatement:
    """A prepared statement on the server. ``sql`` has a ``?`` for each parameter.

    :raises pymysql.MySQLError: the server rejects the statement, or the session broke.
    :raises DecodeError: the server's answer is malformed.
    """

    def __init__(self, connection: Connection, sql: str) -> None:
        connection.send(_PREPARE, sql)
        head = connection.packet().get_all_data()
        if len(head) < _HEAD_BYTES or head[0] != 0:
            raise DecodeError(
                f"the server did not prepare the statement: x'{head[:16].hex()}'",
                hint="check for a proxy between this machine and the server",
            )
        self._id, columns, self._parameters = struct.unpack_from("<IHH", head, 1)
        for definitions in (self._parameters, columns):
            if definitions:
                for _ in range(definitions + 1):  # and the EOF packet after them
                    connection.packet()
        self._connection = connection

    def execute(self, params: Sequence[KeyValue]) -> None:
        """Send the statement with its parameters. The caller receives the result.

        :raises ValueError: the number of parameters does not match the marks, or an integer has more than 64 bits.
        """
        if len(params) != self._parameters:
            raise ValueError(f"{len(params)} parameters for {self._parameters} marks")
        no_cursor, iterations = 0, 1
        message = struct.pack("<IBI", self._id, no_cursor, iterations)
        if params:
            nulls = bytes((len(params) + 7) // 8)
            bound = [_bind(value) for value in params]
            types = b"".join(kind for kind, _ in bound)
            message += nulls + b"\x01" + types + b"".join(value for _, value in bound)
        self._connection.send(_EXECUTE, message)

    def value(self, params: Sequence[KeyValue]) -> bytes:
        """Execute a statement whose result is a single string (text or binary, not NULL). Return this string."""
        self.execute(params)
        (columns,) = self._connection.packet().get_all_data()
        for _ in range(columns + 1):  # and the EOF packet after them
            self._connection.packet()
        row = self._connection.packet()
        row.advance(2)  # the first byte, which is 0, and the bitmap of NULLs
        data = row.read_length_coded_string()
        self._connection.packet()
        if data is None:
            raise ValueError("the value is NULL")
        return bytes(data)

    def close(self) -> None:
        """Deallocate the statement on the server. The server does not answer."""
        self._connection.send(_CLOSE, struct.pack("<I", self._id))


def _bind(value: KeyValue) -> tuple[bytes, bytes]:
    """Return the type (two bytes) and the value of a parameter."""
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"{value} has more than 64 bits")
        unsigned = value >= 2**63
        return bytes([_LONGLONG, _UNSIGNED if unsigned else 0]), struct.pack("<Q" if unsigned else "<q", value)
    if isinstance(value, str):
        return bytes([_VAR_STRING, 0]), _length_encoded(value.encode())
    return bytes([_BLOB, 0]), _length_encoded(value)


def _length_encoded(data: bytes) -> bytes:
    size = len(data)
    if size < 251:
        return bytes([size]) + data
    if size < 2**16:
        return b"\xfc" + size.to_bytes(2, "little") + data
    if size < 2**24:
        return b"\xfd" + size.to_bytes(3, "little") + data
    return b"\xfe" + size.to_bytes(8, "little") + data
