"""The messages of a lying PostgreSQL server."""

from __future__ import annotations

from tests.sources.lying_server import Peer

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104
OK, CLEARTEXT = 0, 3
READY = b"Z\0\0\0\5I"


def message(kind: bytes, payload: bytes) -> bytes:
    return kind + (len(payload) + 4).to_bytes(4, "big") + payload


class PostgresPeer:
    """The messages of the protocol, over a connection of the lying server."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def greeted(self, *, tls: bool) -> bytes:
        """Receive the client's parameters, encrypted if it asks for that and ``tls`` is set."""
        while True:
            payload = self.peer.receive(int.from_bytes(self.peer.receive(4), "big") - 4)
            code = int.from_bytes(payload[:4], "big")
            if code == _SSL_REQUEST and tls:
                self.peer.send(b"S")
                self.peer.encrypt()
            elif code in (_SSL_REQUEST, _GSS_REQUEST):
                self.peer.send(b"N")
            else:
                return payload

    def say(self, kind: bytes, payload: bytes) -> None:
        self.peer.send(message(kind, payload))

    def hear(self) -> tuple[bytes, bytes]:
        head = self.peer.receive(5)
        return head[:1], self.peer.receive(int.from_bytes(head[1:], "big") - 4)

    def ask_for_password(self, how: int = CLEARTEXT) -> None:
        self.say(b"R", how.to_bytes(4, "big"))
        self.hear()

    def let_in(self, version: bytes = b"16.4", more: bytes = b"") -> None:
        """:param more: messages to send in between."""
        self.say(b"R", OK.to_bytes(4, "big"))
        self.peer.send(more)
        for name, value in ((b"server_version", version), (b"client_encoding", b"UTF8"), (b"integer_datetimes", b"on"),
                            (b"standard_conforming_strings", b"on")):  # fmt: skip
            self.say(b"S", name + b"\0" + value + b"\0")
        self.say(b"K", bytes(8))
        self.peer.send(READY)
