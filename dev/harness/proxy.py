"""A TCP proxy on loopback whose connections can be cut, refused, or led to another server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self


class Proxy:
    """Listens on ``port`` and forwards to ``target``, a port on loopback that may be changed at any time.

    Use it as a context manager.
    """

    def __init__(self, target: int) -> None:
        self.host = "127.0.0.1"
        self.target = target
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._down_until = 0.0
        self.accepted = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections, in the midst of whatever they carry."""
        with self._lock:
            ended, self._open = self._open, set()
        for one in ended:
            _end(one)

    def go_down(self, seconds: float) -> None:
        """End all connections, and end every new one at once for so long."""
        self._down_until = time.monotonic() + seconds
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        if time.monotonic() < self._down_until:
            _end(client)
            return
        try:
            server = socket.create_connection((self.host, self.target), timeout=10)
        except OSError:
            _end(client)
            return
        server.settimeout(None)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
        back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        back.start()
        self._pump(client, server)
        back.join()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        with self._lock:
            self._open -= {one, other}
        for each in (one, other):
            _end(each)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
