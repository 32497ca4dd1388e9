"""A TCP proxy between a client and several servers, as a balancer is, or a pooler that meddles with sessions."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Startup = Callable[[dict[str, str]], dict[str, str]]
_PLAIN_REQUESTS = {80877103, 80877104}
"""Of TLS and of GSSAPI encryption, which come before the start-up message of PostgreSQL; both are declined."""


class Balancer:
    """Listens on 127.0.0.1, and sends each connection to the server whose port ``choose`` gives for its number.

    ``startup`` may change the parameters of PostgreSQL's start-up message on the way. Use it as a context manager.
    """

    def __init__(self, choose: Callable[[int], int], startup: Startup | None = None) -> None:
        self.choose = self._usual = choose
        self.accepted = 0
        self._startup = startup
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def misdirect(self, number: int, port: int) -> None:
        """From now on count anew, and send the connection of this number to another server."""
        self.accepted, self.choose = 0, lambda each: port if each == number else self._usual(each)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in [self._listening, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                number, self.accepted = self.accepted, self.accepted + 1
                threading.Thread(target=self._serve, args=(client, number), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self.choose(number)))
            self._open += [client, server]
            server.sendall(self._begin(client))
            threading.Thread(target=_copy, args=(server, client), daemon=True).start()
            _copy(client, server)

    def _begin(self, client: socket.socket) -> bytes:
        """The first bytes to send on."""
        if self._startup is None:
            return b""
        while True:
            (size,) = struct.unpack("!I", _exactly(client, 4))
            body = _exactly(client, size - 4)
            if struct.unpack("!I", body[:4])[0] not in _PLAIN_REQUESTS:
                break
            client.sendall(b"N")
        if struct.unpack("!I", body[:4])[0] >> 16 != 3:
            return struct.pack("!I", size) + body
        texts = [part.decode() for part in body[4:].rstrip(b"\0").split(b"\0")]
        parameters = self._startup(dict(zip(texts[::2], texts[1::2], strict=True)))
        changed = body[:4] + b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
        return struct.pack("!I", len(changed) + 4) + changed


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := source.recv(count - len(data))):
            raise OSError("the client left")
        data += more
    return data


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
