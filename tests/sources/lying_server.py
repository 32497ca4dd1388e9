"""A server that follows a test's script and records what it receives, as an attacker in the network would."""

from __future__ import annotations

import datetime
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

KEY = rsa.generate_private_key(65537, 2048)
"""The attacker's own key."""

SOON_SECONDS = 40
"""A client that gets nonsense has given up by then, even on a busy machine. The scripts wait longer."""


class Peer:
    """One connection of the lying server. ``heard`` is all that it received, decrypted."""

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        self.sock = sock
        self.heard = bytearray()
        self._folder = folder

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise EOFError
            self.heard += piece
            data += piece
        return data

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait_for_end(self) -> None:
        """Receive until the client closes the connection."""
        while piece := self.sock.recv(1 << 16):
            self.heard += piece

    def encrypt(self) -> None:
        """Act as a TLS server with a certificate that no authority has signed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(self._folder), self._folder / "lying.key")
        self.sock = context.wrap_socket(self.sock, server_side=True)


class LyingServer:
    def __init__(self, port: int) -> None:
        self.port = port
        self.peers: list[Peer] = []

    @property
    def heard(self) -> bytes:
        return b"|".join(bytes(peer.heard) for peer in self.peers)


@contextmanager
def lying_server(script: Callable[[Peer], object], folder: Path) -> Iterator[LyingServer]:
    """Run ``script`` for each connection, one after another, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = LyingServer(listener.getsockname()[1])

        def serve() -> None:
            # A closed listener ends the loop.
            with suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    sock.settimeout(2 * SOON_SECONDS)
                    peer = Peer(sock, folder)
                    server.peers.append(peer)
                    with suppress(OSError, EOFError):
                        script(peer)
                    peer.sock.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(3 * SOON_SECONDS)
    assert not thread.is_alive(), "the script goes on although the client should be gone"


def certificate(folder: Path, key: rsa.RSAPrivateKey = KEY) -> Path:
    """A certificate for 127.0.0.1, signed by its own key, the attacker's unless another is given."""
    path = folder / "lying.crt"
    if not path.exists():
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
        now = datetime.datetime.now(datetime.UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .sign(key, hashes.SHA256())
        )
        path.write_bytes(built.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / "lying.key").write_bytes(private)
    return path


class Bounded:
    """Fails if the block takes more memory, or longer, than anything honest could need."""

    def __init__(self, seconds: float, megabytes: int) -> None:
        self._seconds, self._megabytes = seconds, megabytes

    def __enter__(self) -> None:
        self._start = time.monotonic()
        self._peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def __exit__(self, *error: object) -> None:
        assert time.monotonic() - self._start < self._seconds
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._peak < self._megabytes << 10
