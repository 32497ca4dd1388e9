"""Stand-ins for database servers that accept tokens as passwords, as Amazon RDS does, in front of real servers.

A gate requires TLS and a token. It checks the token, opens a session of an account without a password on the server
behind it, and forwards everything else unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import select
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, quote, urlsplit

from harness.postgres_server import SUPERUSER

Accepts = Callable[[str, str], bool]
"""Whether a gate accepts a token. The arguments are the user and the token."""

_CLEAR = b"mysql_clear_password"
_SSL = 0x800
_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104
_REFUSED = b"\xff" + struct.pack("<H", 1045) + b"#28000Access denied for user"


class RdsTokens:
    """Checks tokens of Amazon RDS for one instance, and lets each of them in only for a short time.

    The time begins when the token is seen for the first time, so that a slow machine refuses no new token.

    :param keys: the secret of each access key.
    :param seconds: how long a token can be used.
    """

    def __init__(self, keys: dict[str, str], region: str, seconds: float) -> None:
        self.endpoint = ""
        self.seen: dict[str, float] = {}
        self.refused: list[str] = []
        self._keys = keys
        self._region = region
        self._seconds = seconds

    def __call__(self, user: str, token: str) -> bool:
        now = time.monotonic()
        first = self.seen.setdefault(token, now)
        accepted = now - first <= self._seconds and self._is_signed(user, token)
        if not accepted:
            self.refused.append(token)
        return accepted

    def _is_signed(self, user: str, token: str) -> bool:
        # AWS: "Signature Version 4 signing process", with the parameters in the query.
        parts = urlsplit(f"https://{token}")
        query = dict(parse_qsl(parts.query))
        signature = query.pop("X-Amz-Signature", "")
        access_key, _, scope = query.get("X-Amz-Credential", "").partition("/")
        at = query.get("X-Amz-Date", "")
        if (
            (parts.netloc, parts.path) != (self.endpoint, "/")
            or (query.get("Action"), query.get("DBUser")) != ("connect", user)
            or scope != f"{at[:8]}/{self._region}/rds-db/aws4_request"
            or query.get("X-Amz-SignedHeaders") != "host"
            or access_key not in self._keys
        ):
            return False
        canonical = "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in sorted(query.items()))
        request = f"GET\n/\n{canonical}\nhost:{self.endpoint}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self._keys[access_key]}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        return hmac.compare_digest(key.hex(), signature)


class TokenGate:
    """Listens on ``port`` of 127.0.0.1 for sessions to ``target``, a port on loopback. Use it as a context manager.

    ``sessions`` counts the sessions that were let in. ``authority`` is the file with the authority of the gate's
    certificate, for the host 127.0.0.1.
    """

    def __init__(self, target: int, folder: Path, accepts: Accepts) -> None:
        self.host = "127.0.0.1"
        self.sessions = 0
        self.authority = _certificate(folder)
        self._target = target
        self._accepts = accepts
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(self.authority, folder / "gate.key")
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            contextlib.closing(client),
            socket.create_connection((self.host, self._target)) as server,
        ):
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            encrypted = self._log_in(client, server)
            if encrypted is not None:
                self.sessions += 1
                _forward(encrypted, server)

    def _log_in(self, client: socket.socket, server: socket.socket) -> ssl.SSLSocket | None:
        """Log a client in. None: its token was refused, or it had only a message without a session."""
        raise NotImplementedError

    def _encrypt(self, client: socket.socket) -> ssl.SSLSocket:
        return self._tls.wrap_socket(client, server_side=True)


class MysqlGate(TokenGate):
    """A gate that requests the token by ``mysql_clear_password``."""

    def _log_in(self, client: socket.socket, server: socket.socket) -> ssl.SSLSocket | None:
        _, greeting = _packet(server)
        # The capabilities follow the version, the number of the connection, and 9 bytes of the nonce.
        place = greeting.index(0, 1) + 14
        low = int.from_bytes(greeting[place : place + 2], "little") | _SSL
        _send(client, 0, greeting[:place] + low.to_bytes(2, "little") + greeting[place + 2 :])
        sequence, request = _packet(client)
        if not int.from_bytes(request[:4], "little") & _SSL:
            return None
        encrypted = self._encrypt(client)
        sequence, login = _packet(encrypted)
        user = login[32 : login.index(0, 32)]
        _send(encrypted, sequence + 1, b"\xfe" + _CLEAR + b"\0")
        sequence, token = _packet(encrypted)
        if not self._accepts(user.decode(), token.rstrip(b"\0").decode()):
            _send(encrypted, sequence + 1, _REFUSED)
            encrypted.unwrap()
            return None
        flags = int.from_bytes(login[:4], "little") & ~_SSL
        _send(server, 1, flags.to_bytes(4, "little") + login[4:])
        answered, answer = _packet(server)
        if answer[0] == 0xFE:
            _send(server, answered + 1, b"")
            _, answer = _packet(server)
        _send(encrypted, sequence + 1, answer)
        return encrypted


class PostgresGate(TokenGate):
    """A gate that requests the token as a password in clear text. The session is one of the superuser."""

    def _log_in(self, client: socket.socket, server: socket.socket) -> ssl.SSLSocket | None:
        code, _ = _start_up(client)
        if code == _GSS_REQUEST:
            client.sendall(b"N")
            code, _ = _start_up(client)
        if code != _SSL_REQUEST:
            return None
        client.sendall(b"S")
        encrypted = self._encrypt(client)
        code, start_up = _start_up(encrypted)
        if code >> 16 != 3:
            server.sendall(start_up)
            return None
        texts = [text.decode() for text in start_up[8:].rstrip(b"\0").split(b"\0")]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        user, fields["user"] = fields["user"], SUPERUSER
        encrypted.sendall(b"R" + struct.pack("!II", 8, 3))
        size = struct.unpack("!I", _exactly(encrypted, 5)[1:])[0]
        token = _exactly(encrypted, size - 4).rstrip(b"\0").decode()
        if not self._accepts(user, token):
            error = b"SFATAL\0VFATAL\0C28000\0Mpam authentication failed\0\0"
            encrypted.sendall(b"E" + struct.pack("!I", len(error) + 4) + error)
            return None
        body = b"".join(f"{name}\0{text}\0".encode() for name, text in fields.items()) + b"\0"
        server.sendall(struct.pack("!II", len(body) + 8, code) + body)
        return encrypted


def _certificate(folder: Path) -> Path:
    key, certificate = folder / "gate.key", folder / "gate.crt"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext"
    names = ["subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return certificate


def _forward(client: ssl.SSLSocket, server: socket.socket) -> None:
    # Only one thread may use a TLS session.
    both: Sequence[socket.socket] = (client, server)
    while True:
        ready = [client] if client.pending() else select.select(both, [], [])[0]
        for one in ready:
            data = one.recv(1 << 16)
            if not data:
                return
            (server if one is client else client).sendall(data)


def _packet(source: socket.socket) -> tuple[int, bytes]:
    header = _exactly(source, 4)
    return header[3], _exactly(source, int.from_bytes(header[:3], "little"))


def _send(target: socket.socket, sequence: int, payload: bytes) -> None:
    target.sendall(len(payload).to_bytes(3, "little") + bytes([sequence]) + payload)


def _start_up(source: socket.socket) -> tuple[int, bytes]:
    """Return the code of a start-up message or a request, and the whole message."""
    head = _exactly(source, 8)
    size, code = struct.unpack("!II", head)
    return code, head + _exactly(source, size - 8)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := source.recv(count - len(data))):
            raise OSError("the connection was closed")
        data += more
    return data
