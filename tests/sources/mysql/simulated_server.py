"""Simulates another version of MySQL, or a managed service, in front of a newer server.

It answers from the table of versions (`sources.mysql.server.dialect`). It sends another version in its greeting, in
``@@version`` and in the log, hides the variables of other versions, and rejects, with the error of the server:

- commands and statements that the table lacks, or whose version is another one;
- variables, catalog tables and columns that the table lacks, or whose version is another one.

Features that the table calls uncertain are missing. What the statements of both versions return is the answer of the
newer server, except for the variables in ``shows``.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import zlib
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from airflow_provider_cdc.sources.mysql.server.dialect import (
    COMMANDS,
    FEATURES,
    RETENTION_HOURS,
    SIGNS_OF_SERVICES,
    TABLES,
    VARIABLES,
    Feature,
    Subject,
    service_of,
)
from harness.mysql_server import MysqlServer

_QUERY, _PREPARE, _DUMPS = 0x03, 0x16, (0x12, 0x1E)
_FORMAT_DESCRIPTION = 15
_TABLE = re.compile(r"\b(?:information_schema|performance_schema|mysql|sys)\.\w+", re.IGNORECASE)
_VARIABLE = re.compile(r"@@(?:(?:global|session)\.)?(\w+)|\bSESSION (\w+) =|\bSET_VAR\((\w+)", re.IGNORECASE)
_RDS_TABLE = "mysql.rds_configuration"

_SIGNS = {
    "GTIDs with tags": r"-\w{12}:[a-z_]\w*:\d",
    "the type VECTOR": r"\bSTRING_TO_VECTOR\b",
    "versioned comments with six digits": r"/\*!\d{6} ",
    "TOTAL_ROW_VERSIONS": r"\bTOTAL_ROW_VERSIONS\b",
}
"""Regular expressions of statements that use a column or rely on a behaviour, by the feature."""
_ERRORS = {
    Subject.COLUMN: (1054, "42S22", "Unknown column '{}' in 'field list'"),
    "GTIDs with tags": (1772, "HY000", "Malformed GTID set specification: {}"),
    "the type VECTOR": (1305, "42000", "FUNCTION {} does not exist"),
}
_SYNTAX = (1064, "42000", "You have an error in your SQL syntax near '{}'")
_NO_TABLE = (1146, "42S02", "Table '{}' doesn't exist")
_NO_VARIABLE = (1193, "HY000", "Unknown system variable '{}'")
_NO_COMMAND = (1047, "08S01", "Unknown command {}")
Refusal = tuple[int, str, str]


class SimulatedServer:
    """Listens on ``port``, and passes connections on to ``server``. ``refused`` are the statements that it rejected.

    :param version: the version in the greeting, such as ``8.0.36-google``.
    :param shows: global variables that the simulated server has, with the values that it shows for them.
    """

    def __init__(self, server: MysqlServer, version: str, shows: Mapping[str, str] | None = None) -> None:
        major, minor, patch = (int(number) for number in re.findall(r"\d+", version)[:3])
        self.refused: list[str] = []
        self._server = server
        self._version = version
        self._numbers = (major, minor, patch)
        self._shows = {**(shows or {}), "version": version}
        self._signs = [
            (feature, re.compile(_SIGNS[feature.name]))
            for feature in FEATURES
            if feature.name in _SIGNS and not self._has(feature)
        ]
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listening.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # To close it would not wake the thread that waits for a connection.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _has(self, feature: Feature) -> bool:
        return feature.certain and feature.known_to(self._numbers)

    def _has_variable(self, name: str) -> bool:
        return name in self._shows or (name in VARIABLES and self._has(VARIABLES[name]))

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            there = socket.create_connection((self._server.host, self._server.port))
            threading.Thread(target=self._serve, args=(client, there), daemon=True).start()

    def _serve(self, client: socket.socket, there: socket.socket) -> None:
        with client, there:
            _, greeting = _packet(there)
            rest = greeting[greeting.index(0) :]
            _send(client, 0, b"\x0a" + self._version.encode() + rest)
            dumping = threading.Event()
            threading.Thread(target=self._pass_on, args=(there, client, dumping), daemon=True).start()
            with contextlib.suppress(OSError):
                while True:
                    sequence, data = _packet(client)
                    # The login has other sequence numbers than commands.
                    if sequence == 0 and (refusal := self._refusal(data)) is not None:
                        self.refused.append(data[1:].decode("utf-8", "replace"))
                        code, state, message = refusal
                        text = message.format(self.refused[-1][:80]).encode()
                        _send(client, 1, b"\xff" + code.to_bytes(2, "little") + b"#" + state.encode() + text)
                        continue
                    if sequence == 0 and data[0] in (_QUERY, _PREPARE):
                        data = data[:1] + self._translated(data[1:].decode()).encode()
                    if sequence == 0 and data[0] in _DUMPS:
                        dumping.set()
                    _send(there, sequence, data)

    def _refusal(self, data: bytes) -> Refusal | None:
        if data[0] not in COMMANDS:
            return _NO_COMMAND
        if data[0] not in (_QUERY, _PREPARE):
            return None
        text = data[1:].decode("utf-8", "replace").strip()
        words = [one for one in FEATURES if one.subject is Subject.STATEMENT and text.startswith(one.name)]
        if not words or not all(map(self._has, words)):
            return _SYNTAX
        for feature, sign in self._signs:
            if sign.search(text):
                return _ERRORS.get(feature.name) or _ERRORS.get(feature.subject) or _SYNTAX
        for name in _TABLE.findall(text):
            of_amazon = name == _RDS_TABLE and service_of(self._version, self._shows).keep == RETENTION_HOURS
            if not of_amazon and (name.lower() not in TABLES or not self._has(TABLES[name.lower()])):
                return _NO_TABLE
        if text.startswith("SHOW GLOBAL VARIABLES"):
            # A server answers without the variables that it lacks. But the table of versions must have all of them.
            asked = set(re.findall(r"'(\w+)'", text)) - self._shows.keys() - {*SIGNS_OF_SERVICES}
            return None if asked <= VARIABLES.keys() else _NO_VARIABLE
        names = {name for found in _VARIABLE.findall(text) for name in found if name}
        return None if all(map(self._has_variable, names)) else _NO_VARIABLE

    def _translated(self, text: str) -> str:
        """Return the statement that makes the newer server answer like the simulated one."""
        if text.startswith("SHOW MASTER STATUS"):
            return "SHOW BINARY LOG STATUS"
        if text.startswith("SHOW GLOBAL VARIABLES"):
            asked = re.findall(r"'(\w+)'", text)
            real = [name for name in asked if name not in self._shows and self._has_variable(name)]
            selects = [
                f"SELECT '{name}' AS name, '{self._shows[name]}' AS value" for name in asked if name in self._shows
            ]
            names = ", ".join(f"'{name}'" for name in ["", *real])
            selects.append(
                "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM performance_schema.global_variables "
                f"WHERE VARIABLE_NAME IN ({names})"
            )
            return " UNION ALL ".join(selects)
        return re.sub(r"@@(global\.)?version\b", f"'{self._version}'", text)

    def _pass_on(self, source: socket.socket, sink: socket.socket, dumping: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if dumping.is_set():
                    # The server is silent between two commands, so a packet of the log begins here.
                    self._pass_log_on(_Buffered(data, source), sink)
                    break
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _pass_log_on(self, source: _Buffered, sink: socket.socket) -> None:
        while True:
            sequence, data = _packet(source)
            # After the marker of success: time, type.
            if data[0] == 0 and data[5] == _FORMAT_DESCRIPTION:
                data = self._as_logged_by_this_version(data)
            _send(sink, sequence, data)

    def _as_logged_by_this_version(self, packet: bytes) -> bytes:
        event = bytearray(packet[1:])
        event[21:71] = self._version.encode()[:50].ljust(50, b"\0")
        event[-4:] = struct.pack("<I", zlib.crc32(event[:-4]))
        return packet[:1] + bytes(event)


class _Buffered:
    """A socket of which some data was read already."""

    def __init__(self, data: bytes, sock: socket.socket) -> None:
        self._data = data
        self._sock = sock

    def recv(self, size: int) -> bytes:
        if not self._data:
            return self._sock.recv(size)
        data, self._data = self._data[:size], self._data[size:]
        return data


def _packet(sock: socket.socket | _Buffered) -> tuple[int, bytes]:
    header = _exactly(sock, 4)
    return header[3], _exactly(sock, int.from_bytes(header[:3], "little"))


def _exactly(sock: socket.socket | _Buffered, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def _send(sock: socket.socket, sequence: int, data: bytes) -> None:
    sock.sendall(len(data).to_bytes(3, "little") + bytes([sequence]) + data)
