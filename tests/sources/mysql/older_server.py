"""Simulates an older MySQL version in front of a newer server, as far as statements are concerned.

No server before 8.4 is available where these tests run. This one sends another version in its greeting, rejects
statements of later versions, and answers statements that the newer server no longer supports.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from harness.mysql_server import MysqlServer

_QUERY = 3
_ERROR = b"\xff\x28\x04#42000You have an error in your SQL syntax"

Version = tuple[int, int, int]

SINCE: Sequence[tuple[Version, str]] = (
    ((8, 2, 0), r"SHOW BINARY LOG STATUS"),
    ((8, 2, 0), r"RESET BINARY LOGS"),
    ((8, 0, 30), r"show_gipk_in_create_table_and_information_schema"),
    ((8, 0, 32), r"\bexplain_format\b"),
    ((8, 3, 0), r"explain_json_format_version"),
)
"""Patterns that a statement must not contain before a version."""
NOT_THERE: Sequence[tuple[Version, str]] = (
    ((8, 0, 29), "binlog_expire_logs_auto_purge"),
    ((9, 6, 0), "innodb_native_foreign_keys"),
    ((8, 4, 0), "group_replication_consistency"),
)
"""Variables that SHOW GLOBAL VARIABLES does not list before a version."""


class OlderServer:
    """Listens on ``port`` and passes connections on to ``server``. ``refused`` are the statements that it refused.

    :param instead: statements to send instead: part of the client's statement -> replacement.
    """

    def __init__(self, server: MysqlServer, version: str, instead: Mapping[str, str] | None = None) -> None:
        numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
        self.refused: list[str] = []
        self._server = server
        self._instead = instead or {}
        self._version = version
        self._numbers: Version = (numbers[0], numbers[1], numbers[2])
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

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            there = socket.create_connection((self._server.host, self._server.port))
            threading.Thread(target=self._answer, args=(client, there), daemon=True).start()

    def _answer(self, client: socket.socket, there: socket.socket) -> None:
        with client, there:
            _, greeting = _packet(there)
            rest = greeting[greeting.index(0) :]
            _send(client, 0, b"\x0a" + self._version.encode() + rest)
            threading.Thread(target=_pass_on, args=(there, client), daemon=True).start()
            try:
                while True:
                    sequence, data = _packet(client)
                    if sequence == 0 and data[0] == _QUERY:
                        text = data[1:].decode("utf-8", "replace")
                        if self._knows(text):
                            data = bytes([_QUERY]) + self._translated(text).encode()
                        else:
                            self.refused.append(text)
                            _send(client, 1, _ERROR)
                            continue
                    _send(there, sequence, data)
            except OSError:
                return

    def _knows(self, text: str) -> bool:
        return not any(self._numbers < since and re.search(words, text) for since, words in SINCE)

    def _translated(self, text: str) -> str:
        text = text.replace("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
        text = next((other for part, other in self._instead.items() if part in text), text)
        for since, name in NOT_THERE:
            if self._numbers < since:
                text = text.replace(f"'{name}'", "'is_not_there'")
        return text


def _packet(sock: socket.socket) -> tuple[int, bytes]:
    header = _exactly(sock, 4)
    return header[3], _exactly(sock, int.from_bytes(header[:3], "little"))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def _send(sock: socket.socket, sequence: int, data: bytes) -> None:
    sock.sendall(len(data).to_bytes(3, "little") + bytes([sequence]) + data)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return
