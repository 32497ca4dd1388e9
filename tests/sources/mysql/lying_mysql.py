"""The packets of a lying MySQL server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding

from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.session import pinned
from tests.sources.lying_server import KEY, Peer

PASSWORD = "pässword-☂-'%s"
NONCE = b"abcdefghijklmnopqrst"
OK = b"\0\0\0\2\0\0\0"
EOF = b"\xfe\0\0\2\0"
# CONNECT_WITH_DB, PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH, TRANSACTIONS; TLS is bit 11.
CAPABILITIES = 0x8 | 0x200 | 0x2000 | 0x8000 | 0x80000
TLS = 0x800
TEXT_DEFINITION = b"\3def\0\0\0\1c\1c\x0c\x2d\0\xff\0\0\0\xfd\0\0\0\0\0"
PUBLIC_KEY = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class MysqlPeer:
    """MySQL's packets, over a connection of the lying server."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.sequence = 0

    def say(self, payload: bytes) -> None:
        self.peer.send(len(payload).to_bytes(3, "little") + bytes([self.sequence]) + payload)
        self.sequence = (self.sequence + 1) & 0xFF

    def hear(self) -> bytes:
        header = self.peer.receive(4)
        self.sequence = (header[3] + 1) & 0xFF
        return self.peer.receive(int.from_bytes(header[:3], "little"))

    def greet(
        self,
        plugin: bytes = b"caching_sha2_password",
        *,
        tls: bool = False,
        version: bytes = b"8.4.6",
        protocol: int = 10,
    ) -> bytes:
        """Send the greeting and return the client's first answer; with ``tls``, its answer under TLS."""
        flags = CAPABILITIES | (TLS if tls else 0)
        low, high = (flags & 0xFFFF).to_bytes(2, "little"), (flags >> 16).to_bytes(2, "little")
        rest = b"\xff\2\0" + high + b"\x15" + bytes(10) + NONCE[8:] + b"\0" + plugin + b"\0"
        self.say(bytes([protocol]) + version + b"\0" + b"\1\0\0\0" + NONCE[:8] + b"\0" + low + rest)
        answer = self.hear()
        if tls and int.from_bytes(answer[:4], "little") & TLS:
            self.peer.encrypt()
            answer = self.hear()
        return answer

    def switch(self, plugin: bytes, data: bytes = NONCE + b"\0") -> bytes:
        self.say(b"\xfe" + plugin + b"\0" + data)
        return self.hear()

    def let_in(self) -> None:
        """Complete the login, and answer all requests before the test's own part begins."""
        self.say(OK)

    def answer(self, statements: int) -> None:
        """Answer this many statements that return nothing."""
        for _ in range(statements):
            self.hear()
            self.say(OK)

    def answer_opening(self, other: Mapping[str, str] | None = None) -> None:
        """Answer everything that opens a session: the reset, SET NAMES, the pins, and the check of the pins.

        :param other: values to return for some variables, instead of the values that were set.
        """
        self.answer(2)
        reading = b"character_set_results = NULL" in self.hear()
        self.say(OK)
        self.hear()
        shown = {name: pin.expected for name, pin in pinned((8, 4, 6)).items()}
        if reading:
            shown["character_set_results"] = None
        shown |= other or {}
        self.say(bytes([len(shown)]))
        for _ in shown:
            self.say(TEXT_DEFINITION)
        self.say(EOF)
        self.say(b"".join(b"\xfb" if one is None else bytes([len(one)]) + one.encode() for one in shown.values()))
        self.say(EOF)


def learned(heard: bytes, password: bytes) -> bool:
    """Whether this reveals the password to an attacker: in clear, or encrypted for the attacker's own key."""
    if password in heard:
        return True
    size = KEY.key_size // 8
    for at in range(len(heard) - size + 1):
        if int.from_bytes(heard[at - 4 : at - 1], "little") != size:
            continue
        try:
            plain = KEY.decrypt(heard[at : at + size], padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None))
        except (ValueError, UnsupportedAlgorithm):
            continue
        if bytes(byte ^ NONCE[i % len(NONCE)] for i, byte in enumerate(plain)).rstrip(b"\0") == password:
            return True
    return False


def settings_for(port: int, **changes: Any) -> ConnectionSettings:
    settings = ConnectionSettings("mysql", "127.0.0.1", port, "cdc", PASSWORD)
    return dataclasses.replace(settings, **changes)


def remembered(server: MysqlPeer) -> None:
    """Succeeds without the password, as long as the server remembers the account."""
    server.switch(b"caching_sha2_password")
    server.say(b"\x01\x03")
    server.let_in()
