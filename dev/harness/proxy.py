"""A TCP proxy on loopback that simulates networks, load balancers and poolers: it cuts, rejects, delays, redirects and
changes connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

Opening = Callable[[socket.socket, socket.socket], None]
"""Talks to the client and the server of a new connection before the proxy forwards data."""

_NOT_START_UP = {80877103, 80877104}
"""PostgreSQL's requests for TLS and for GSSAPI encryption, which precede the start-up message."""


class Proxy:
    """Listens on ``host`` and ``port``, and forwards each connection to ``target``, a port on loopback.

    ``target`` may be changed at any time. ``meanwhile`` is called before data from a client is forwarded, such as a
    statement; only one call runs at a time. ``accepted`` counts the connections, ``answered`` the bytes that servers
    sent, and ``hits`` the faults that were applied. Use it as a context manager.
    """

    def __init__(self, target: int, opening: Opening | None = None) -> None:
        self.host = "127.0.0.1"
        self.target = target
        self.meanwhile: Callable[[], object] | None = None
        self.accepted = 0
        self.answered = 0
        self.hits = 0
        self._opening = opening
        self._misdirected: tuple[int, int] | None = None
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._acting = threading.Lock()
        self._down_until = self._slow_until = 0.0
        self._answer = b""
        self._pause = 0.0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._listener)
        self.cut()
        self._thread.join(5)

    def misdirect(self, number: int, target: int) -> None:
        """Count connections from 0 again, and forward the connection with this number to another port."""
        self.accepted, self._misdirected = 0, (number, target)

    def cut(self) -> None:
        """End all connections at once, even within a message."""
        with self._lock:
            ended, self._open = self._open, set()
            self.hits += len(ended) // 2
        for one in ended:
            _end(one)

    def go_down(self, seconds: float, answer: bytes = b"") -> None:
        """End all connections. For ``seconds``, also end every new connection, after sending ``answer`` if it is
        given."""
        self._answer = answer
        self._down_until = time.monotonic() + seconds
        self.cut()

    def slow_down(self, seconds: float, pause: float) -> None:
        """For ``seconds``, wait ``pause`` seconds before forwarding data from clients."""
        self._pause = pause
        self._slow_until = time.monotonic() + seconds

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                number, self.accepted = self.accepted, self.accepted + 1
                target = self.target
                if self._misdirected is not None and self._misdirected[0] == number:
                    target = self._misdirected[1]
                threading.Thread(target=self._serve, args=(client, target), daemon=True).start()

    def _serve(self, client: socket.socket, target: int) -> None:
        try:
            if time.monotonic() < self._down_until:
                self.hits += 1
                if self._answer:
                    client.settimeout(5)
                    client.recv(1 << 16)
                    client.sendall(self._answer)
                raise OSError("down")
            server = socket.create_connection((self.host, target), timeout=10)
        except OSError:
            _end(client)
            return
        server.settimeout(None)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
        try:
            if self._opening is not None:
                self._opening(client, server)
        except OSError:
            self._close(client, server)
            return
        back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
        back.start()
        self._pass_on(client, server, from_client=True)
        back.join()

    def _pass_on(self, one: socket.socket, other: socket.socket, *, from_client: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if from_client and time.monotonic() < self._slow_until:
                    self.hits += 1
                    time.sleep(self._pause)
                if from_client and (act := self.meanwhile) is not None:
                    with self._acting:
                        act()
                if not from_client:
                    with self._lock:
                        self.answered += len(data)
                other.sendall(data)
        self._close(one, other)

    def _close(self, *both: socket.socket) -> None:
        with self._lock:
            self._open -= set(both)
        for one in both:
            _end(one)


def changed_start_up(change: Callable[[dict[str, str]], dict[str, str]]) -> Opening:
    """Simulate a pooler that changes the parameters of PostgreSQL's start-up message, and declines encryption."""

    def opening(client: socket.socket, server: socket.socket) -> None:
        while True:
            (size,) = struct.unpack("!I", _exactly(client, 4))
            body = _exactly(client, size - 4)
            if struct.unpack("!I", body[:4])[0] not in _NOT_START_UP:
                break
            client.sendall(b"N")
        # Other requests, such as a request to cancel a statement, have no parameters.
        if struct.unpack("!I", body[:4])[0] >> 16 == 3:
            texts = [part.decode() for part in body[4:].rstrip(b"\0").split(b"\0")]
            parameters = change(dict(zip(texts[::2], texts[1::2], strict=True)))
            body = body[:4] + b"".join(f"{name}\0{value}\0".encode() for name, value in parameters.items()) + b"\0"
        server.sendall(struct.pack("!I", len(body) + 4) + body)

    return opening


def own_greeting(client: socket.socket, server: socket.socket) -> None:
    """Simulate a proxy that speaks MySQL's protocol, and sends its own connection number in the greeting."""
    greeting = bytearray(server.recv(4096))
    # The connection number follows the version, which ends with a zero byte.
    greeting[greeting.index(0, 5) + 1] ^= 0x55
    client.sendall(greeting)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := source.recv(count - len(data))):
            raise OSError("the client closed the connection")
        data += more
    return data


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
