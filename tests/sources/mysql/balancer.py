"""What stands before several servers under one address: passes each connection on to one of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from harness.mysql_server import MysqlServer


class Balancer:
    """Listens on ``port``; ``choose`` says which server the next connection goes to.

    :param terminates: it speaks the protocol itself, as proxies do that share connections: then the number in the
        greeting is its own.
    """

    def __init__(self, choose: Callable[[], MysqlServer], *, terminates: bool = False) -> None:
        self.choose = choose
        self._terminates = terminates
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listening.getsockname()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listening, *self._open):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = self.choose()
            there = socket.create_connection((server.host, server.port))
            self._open += [client, there]
            if self._terminates:
                greeting = bytearray(there.recv(4096))
                greeting[greeting.index(0, 5) + 1] ^= 0x55
                client.sendall(greeting)
            for source, sink in ((client, there), (there, client)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return
