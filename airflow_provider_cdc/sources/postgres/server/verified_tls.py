"""Opens sessions over verified TLS from which the caller can read bytes directly.

Over its own TLS connection, libpq returns data only row by row. So this module uses Python's ``ssl`` for the TLS
connection to the server, and libpq only to log in. libpq connects to a local socket, and this module has the other end
of that socket. Until the session is established, the module passes libpq's messages to the server, and the server's
answers to libpq. After that, the caller reads from the TLS socket.

The module does this only if it is as safe as libpq's own TLS. The server must prove its identity with a certificate of
the authority that the connection names, and no other TLS feature may be configured. libpq does not see the encryption,
so it cannot use channel binding. Channel binding would add protection only if no certificate were verified. If these
conditions do not hold, or if a session cannot be opened in this way, libpq itself opens the session. In this module, a
certificate needs a subject alternative name to prove a host name, whereas libpq also accepts a common name.
"""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import (
    CHANNEL_BINDING,
    CONNECT_SECONDS,
    OLDEST_VERSION,
    parameters,
)
from airflow_provider_cdc.sources.session import VERIFY_CA, VERIFY_IDENTITY, trust_in

_SSL_REQUEST = struct.pack(">ii", 8, 80877103)
_HEAD = 5
_LONGEST_MESSAGE = 1 << 20
"""The maximum size, in bytes, of a message while a session is opened. Real messages of servers are far shorter."""
_SASL = b"R", struct.pack(">i", 10)
_BOUND_TO_CHANNEL = b"SCRAM-SHA-256-PLUS"
_OF_TLS = ("ssl", CHANNEL_BINDING, "keepalives")
_MORE = (
    *("PGHOSTADDR", "PGSSL", "PGCHANNEL", "PGREQUIRE", "PGSERVICE", "PGSYSCONFDIR"),
    *("PGMINPROTOCOL", "PGMAXPROTOCOL"),
)
"""Prefixes of environment variables that make libpq deviate from the settings of the connection."""
_MORE_FILES = ("postgresql.crt", "postgresql.key", "root.crl")
"""Files in ``~/.postgresql`` that also make libpq deviate from the settings of the connection."""


@dataclass(frozen=True)
class Session:
    """An established session. ``received`` is the beginning of a message that the server has not sent completely."""

    socket: ssl.SSLSocket
    received: bytes


def applies(settings: ConnectionSettings) -> bool:
    """Return whether `open_session` may be tried.

    :raises ConfigurationError: the TLS settings contradict each other.
    """
    trust, tls = trust_in(settings, more=(CHANNEL_BINDING,)), settings.tls
    return (
        trust.mode in (VERIFY_CA, VERIFY_IDENTITY)
        and Path(tls.get("ca", "")).is_file()
        and bool(tls.get("cert")) == bool(tls.get("key"))
        and tls.get(CHANNEL_BINDING) != "require"
        and not settings.host.startswith(("/", "@"))
        and not any(name.startswith(_MORE) for name in os.environ)
        and not any((Path.home() / ".postgresql" / name).exists() for name in _MORE_FILES)
    )


@contextmanager
def open_session(settings: ConnectionSettings) -> Iterator[Session]:
    """Open a session. `applies` must be true for the settings. The session ends at the end of the block.

    :raises OSError: the server cannot be reached, or its certificate does not prove its identity.
    :raises psycopg.Error: libpq cannot log in.
    """
    with closing(_encrypted(settings)) as encrypted:
        received = _log_in(settings, encrypted)
        yield Session(encrypted, received)


def _encrypted(settings: ConnectionSettings) -> ssl.SSLSocket:
    tls = settings.tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = trust_in(settings, more=(CHANNEL_BINDING,)).mode == VERIFY_IDENTITY
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(["postgresql"])
    context.load_verify_locations(tls["ca"])
    if tls.get("cert"):
        # Without this argument, OpenSSL would prompt for a password at the terminal.
        context.load_cert_chain(tls["cert"], tls["key"], password="")
    plain = socket.create_connection((settings.host, settings.port), CONNECT_SECONDS)
    try:
        arguments = parameters(settings)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name in ("keepalives_idle", "keepalives_interval", "keepalives_count"):
            option = {"idle": socket.TCP_KEEPIDLE, "interval": socket.TCP_KEEPINTVL, "count": socket.TCP_KEEPCNT}
            plain.setsockopt(socket.IPPROTO_TCP, option[name.rpartition("_")[2]], int(arguments[name]))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plain.sendall(_SSL_REQUEST)
        # Read only one byte. Further bytes could come from an attacker, because nothing is encrypted yet.
        if plain.recv(1) != b"S":
            raise OSError("the server does not support TLS")
        return context.wrap_socket(plain, server_hostname=settings.host)
    except BaseException:
        plain.close()
        raise


def _log_in(settings: ConnectionSettings, encrypted: ssl.SSLSocket) -> bytes:
    """Log in with libpq. Return the bytes that were received after the login. They are the beginning of an incomplete
    message."""
    # An abstract socket has no file, and its random name cannot be guessed.
    name = f"cdc-{uuid.uuid4().hex}"
    arguments = {name: value for name, value in parameters(settings).items() if not name.startswith(_OF_TLS)}
    arguments |= {"host": f"@{name}", "sslmode": "disable", "gssencmode": "disable"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}/.s.PGSQL.{settings.port}")
        listener.listen(1)
        listener.settimeout(CONNECT_SECONDS)
        libpq = pq.PGconn.connect_start(make_conninfo("", **arguments).encode())
        try:
            if libpq.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError(libpq.error_message.decode("utf-8", "replace"))
            inner, _ = listener.accept()
            with inner:
                (process,) = struct.unpack_from("i", inner.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if process != os.getpid():
                    raise OSError("another process connected to the local socket")
                received = _relay(libpq, inner, encrypted)
                if libpq.server_version < OLDEST_VERSION * 10_000:
                    raise psycopg.OperationalError("the server is too old")
                return received
        finally:
            libpq.finish()


def _relay(libpq: pq.abc.PGconn, inner: socket.socket, encrypted: ssl.SSLSocket) -> bytes:
    """Pass messages between libpq and the server until the session is established."""
    deadline = time.monotonic() + CONNECT_SECONDS
    received = waiting = b""
    inner.setblocking(False)
    while (status := pq.PollingStatus(libpq.connect_poll())) != pq.PollingStatus.OK:
        if status == pq.PollingStatus.FAILED:
            raise psycopg.OperationalError(libpq.error_message.decode("utf-8", "replace"))
        if time.monotonic() > deadline:
            raise TimeoutError("the session was not established in time")
        # libpq reads only when this thread polls it. So bytes that do not fit into the buffer of the local socket have
        # to wait.
        sent, decrypted = _available(inner, False), b"" if waiting else _available(encrypted, True)
        if sent:
            encrypted.settimeout(CONNECT_SECONDS)
            encrypted.sendall(sent)
        received += decrypted
        while message := _first_message(received):
            received = received[len(message) :]
            waiting += _without_binding(message)
        if waiting:
            with suppress(BlockingIOError):
                waiting = waiting[inner.send(waiting) :]
        if not (sent or decrypted or waiting) and status == pq.PollingStatus.READING:
            _wait(inner, encrypted, deadline)
    return received


def _available(source: socket.socket, is_encrypted: bool) -> bytes:
    source.setblocking(False)
    try:
        data = source.recv(1 << 16)
    except (BlockingIOError, ssl.SSLWantReadError):
        return b""
    if not data:
        raise OSError("the server closed the connection" if is_encrypted else "libpq closed the connection")
    return data


def _wait(inner: socket.socket, encrypted: ssl.SSLSocket, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(inner, selectors.EVENT_READ)
        selector.register(encrypted, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError("the server did not answer in time")


def _first_message(data: bytes) -> bytes:
    """Return the first message in ``data``. Empty: the message is not complete."""
    if len(data) < _HEAD:
        return b""
    end = 1 + int.from_bytes(data[1:_HEAD], "big")
    if not _HEAD <= end <= _LONGEST_MESSAGE:
        raise OSError("the server does not speak the PostgreSQL protocol")
    return data[:end] if len(data) >= end else b""


def _without_binding(message: bytes) -> bytes:
    """Return a message of the server. If the message offers login methods, remove the method that needs channel
    binding."""
    kind, what = _SASL
    if message[:1] != kind or message[_HEAD : _HEAD + 4] != what:
        return message
    ways = [way for way in message[_HEAD + 4 :].split(b"\0") if way and way != _BOUND_TO_CHANNEL]
    payload = what + b"".join(way + b"\0" for way in ways) + b"\0"
    return kind + struct.pack(">i", len(payload) + 4) + payload
