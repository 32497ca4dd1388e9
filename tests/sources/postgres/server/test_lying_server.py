"""An impostor of the server learns no password, and cannot make the client hang or fill its memory."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import CdcError, ConfigurationError, DecodeError, SchemaChanged, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.decode.rows import CopyReader
from airflow_provider_cdc.sources.postgres.decode.stream import CopyStream, socket_of
from airflow_provider_cdc.sources.postgres.server import verified_tls
from airflow_provider_cdc.sources.postgres.server.session import (
    literal,
    mapped_errors,
    parameters,
    query,
    reading_session,
    session,
)
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.sources.lying_server import Bounded, Peer, certificate, lying_server
from tests.sources.postgres.log.reading import settings as settings_of
from tests.sources.postgres.lying_postgres import READY, PostgresPeer, message

PASSWORD = "pässword/:@ %&?#='\\\\☂"
Open = Callable[[ConnectionSettings], AbstractContextManager[Any]]


def replication_session(settings: ConnectionSettings) -> AbstractContextManager[Any]:
    return session(settings, replication=True)


WAYS: list[Open] = [session, replication_session, reading_session]


@pytest.fixture
def on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat 127.0.0.1 as another machine."""
    monkeypatch.setattr("airflow_provider_cdc.sources.session.is_local", lambda host: False)


def settings_for(port: int, **changes: Any) -> ConnectionSettings:
    settings = ConnectionSettings("postgres", "127.0.0.1", port, "cdc", PASSWORD, "shop")
    return dataclasses.replace(settings, **changes)


def wanting_cleartext(*, tls: bool) -> Callable[[Peer], object]:
    def script(peer: Peer) -> None:
        server = PostgresPeer(peer)
        server.greeted(tls=tls)
        server.ask_for_password()
        server.say(b"E", b"SFATAL\0C28000\0Mthank you\0\0")

    return script


@pytest.mark.usefixtures("on_the_network")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["", "preferred", "required", "disabled"])
@pytest.mark.parametrize("tls", [True, False])
def test_only_a_server_that_proves_itself_gets_the_password(way: Open, mode: str, tls: bool, tmp_path: Path) -> None:
    with (
        lying_server(wanting_cleartext(tls=tls), tmp_path) as liar,
        pytest.raises(ConfigurationError) as refused,
        way(settings_for(liar.port, tls={"mode": mode} if mode else {})),
    ):
        pass
    assert liar.peers
    assert PASSWORD.encode() not in liar.heard
    if not tls and mode in ("", "required"):
        assert b"cdc" not in liar.heard, "nothing is said to a server that offers no TLS"
    else:
        assert "tls_ca" in refused.value.hint
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("way", WAYS)
def test_the_test_would_notice(way: Open, tmp_path: Path) -> None:
    """No attacker can intercept connections to this machine."""
    for tls in (True, False):
        with (
            lying_server(wanting_cleartext(tls=tls), tmp_path) as liar,
            pytest.raises(CdcError),
            way(settings_for(liar.port)),
        ):
            pass
        assert PASSWORD.encode() in liar.heard


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["", "preferred", "required", "verify_identity"])
def test_an_authority_is_verified_against_whatever_the_mode_says(way: Open, mode: str, tmp_path: Path) -> None:
    honest = tmp_path / "honest"
    honest.mkdir()
    given = {"ca": str(certificate(honest, rsa.generate_private_key(65537, 2048)))} | ({"mode": mode} if mode else {})
    for tls in (False, True):
        with (
            lying_server(wanting_cleartext(tls=tls), tmp_path) as liar,
            pytest.raises(ConfigurationError, match="TLS"),
            way(settings_for(liar.port, tls=given)),
        ):
            pass
        assert PASSWORD.encode() not in liar.heard


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("passphrase", [b"secret", b""])
def test_a_key_that_cannot_be_used_is_named_and_nobody_is_asked_for_its_passphrase(
    way: Open, passphrase: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A key with a passphrase, and a key that does not belong to the certificate."""
    own = rsa.generate_private_key(65537, 2048)
    cipher = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    key = tmp_path / "client.key"
    key.write_bytes(own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher))
    key.chmod(0o600)
    ca = str(certificate(tmp_path))
    with (
        lying_server(wanting_cleartext(tls=True), tmp_path) as liar,
        pytest.raises(ConfigurationError, match="private key file") as refused,
        way(settings_for(liar.port, tls={"ca": ca, "cert": ca, "key": str(key)})),
    ):
        pass
    assert "passphrase" in refused.value.hint
    assert "pass phrase" not in "".join(capfd.readouterr())


@pytest.mark.usefixtures("on_the_network")
def test_a_real_server_s_methods_work_as_far_as_they_are_safe(postgres_factory: PostgresFactory) -> None:
    server: PostgresServer = postgres_factory()
    hba = server.data / "pg_hba.conf"
    server.query(f"CREATE ROLE cdc LOGIN REPLICATION PASSWORD {literal(PASSWORD)}")
    server.query("SET password_encryption = md5; CREATE ROLE old LOGIN REPLICATION")
    server.query(f"SET password_encryption = md5; ALTER ROLE old PASSWORD {literal(PASSWORD)}")
    settings = dataclasses.replace(settings_of(server, "postgres"), user="cdc", password=PASSWORD)
    original = hba.read_text()
    for user, method in (("cdc", "scram-sha-256"), ("old", "md5"), ("cdc", "password")):
        hba.write_text(f"host all {user} all {method}\n{original}")
        server.reload()
        given = dataclasses.replace(settings, user=user, tls={"mode": "disabled"})
        for way in WAYS:
            if method == "password":
                with pytest.raises(ConfigurationError, match="password in clear text") as refused, way(given):
                    pass
                assert "tls_ca" in refused.value.hint
            else:
                with way(given):
                    pass
            with way(dataclasses.replace(given, tls={"mode": "disabled", "trusted_network": "true"})):
                pass


def test_channel_binding_is_libpq_s_own() -> None:
    assert parameters(settings_for(1, tls={"channel_binding": "require"}))["channel_binding"] == "require"


def _drips(peer: Peer) -> None:
    PostgresPeer(peer).greeted(tls=False)
    peer.send(b"S\0\x0f\xff\xff")
    while True:
        peer.send(b".")
        time.sleep(0.2)


def _says(data: bytes, again: bool = False) -> Callable[[Peer], object]:
    def script(peer: Peer) -> None:
        PostgresPeer(peer).greeted(tls=False)
        peer.send(data)
        while again:
            peer.send(data)
        peer.wait_for_end()

    return script


def _is_old(peer: Peer) -> None:
    server = PostgresPeer(peer)
    server.greeted(tls=False)
    server.let_in(b"9.6")


LOGINS: dict[str, Callable[[Peer], object]] = {
    "another protocol": _says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "garbage": _says(bytes(range(256))),
    "a length that lies": _says(b"R\x7f\xff\xff\xff"),
    "an unknown method": _says(message(b"R", (99).to_bytes(4, "big"))),
    "parameters for ever": _says(message(b"S", b"name\0value\0") * 1000, again=True),
    "drops": _drips,
    "silence": _says(b""),
    "a broken error": _says(b"E\0\0\0\4"),
    "an old version": _is_old,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lie", LOGINS)
def test_a_malformed_login(way: Open, lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way is reading_session and lie == "an old version":
        pytest.skip("ADBC is only ever used beside a session of the other kind")
    monkeypatch.setattr("airflow_provider_cdc.sources.postgres.server.session.CONNECT_SECONDS", 2)
    with (
        lying_server(LOGINS[lie], tmp_path) as liar,
        Bounded(15, 400),
        pytest.raises((ConfigurationError, SourceUnavailable)) as refused,
        way(settings_for(liar.port)),
    ):
        pass
    assert refused.value.hint
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("said", [(600_000,), (900,) * 1000])
def test_what_libpq_has_no_room_for_during_a_login_over_verified_tls_waits(
    said: tuple[int, ...], tmp_path: Path
) -> None:
    """The thread that writes to libpq also makes it read: if it waited while writing, it would wait forever."""

    def script(peer: Peer) -> None:
        server = PostgresPeer(peer)
        server.greeted(tls=True)
        notices = [message(b"N", b"SNOTICE\0C00000\0M" + b"x" * size + b"\0\0") for size in said]
        server.let_in(more=b"".join(notices))
        peer.wait_for_end()

    ca = certificate(tmp_path)
    with lying_server(script, tmp_path) as liar, Bounded(10, 200):
        settings = settings_for(liar.port, tls={"ca": str(ca)})
        with verified_tls.open_session(settings) as opened:
            assert opened.received == b""


DESCRIPTION = message(b"T", b"\0\1c\0" + bytes(6) + (25).to_bytes(4, "big") + b"\xff\xff" + bytes(4) + b"\0\0")
_COLUMN = bytes(6) + (25).to_bytes(4, "big") + b"\xff\xff" + bytes(4) + b"\0\0"
PREPARED = (
    message(b"T", b"\0\3" + b"".join(name + b"\0" + _COLUMN for name in (b"a", b"b", b"c")))
    + message(b"D", b"\0\3" + b"\xff\xff\xff\xff" * 3)
    + message(b"C", b"SELECT 1\0")
    + READY
)
"""The answer to the statement that prepares a session: all settings are right."""
COPY_OUT = message(b"H", b"\1\0\1\0\1")
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
ANSWERS: dict[str, bytes] = {
    "a length that lies": b"T\x7f\xff\xff\xff",
    "a length below its own": b"T\0\0\0\1",
    "a row of more values than it has": DESCRIPTION + message(b"D", b"\0\x7f\0\0\0\1x"),
    "a value longer than its row": DESCRIPTION + message(b"D", b"\0\1\x7f\xff\xff\xffx"),
    "an unknown kind": message(b"?", b"x"),
    "a demand for data": message(b"G", b"\0\0\0"),
    "a broken error": message(b"E", b"") + READY,
}


def _answering(data: bytes, for_ever: bytes = b"") -> Callable[[Peer], object]:
    def script(peer: Peer) -> None:
        server = PostgresPeer(peer)
        server.greeted(tls=False)
        server.let_in()
        server.hear()
        peer.send(PREPARED)
        server.hear()
        peer.send(data)
        while for_ever:
            peer.send(for_ever * 100)
        peer.wait_for_end()

    return script


@pytest.mark.parametrize("lie", [*ANSWERS, "rows for ever", "silence"])
def test_malformed_rows(lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent over the socket itself, which libpq does not read then."""
    monkeypatch.setattr("airflow_provider_cdc.sources.postgres.decode.stream.SILENT_SECONDS", 1)
    monkeypatch.setattr("airflow_provider_cdc.sources.postgres.decode.stream.ANSWER_BYTES", 1 << 22)
    row = message(b"D", b"\0\1\0\0\0\1x")
    script = _answering(DESCRIPTION, row) if lie == "rows for ever" else _answering(ANSWERS.get(lie, b""))
    with lying_server(script, tmp_path) as liar, Bounded(15, 200), session(settings_for(liar.port)) as connection:
        stream = CopyStream(socket_of(connection), "here")
        with pytest.raises((DecodeError, SourceUnavailable)):
            _ask(stream)
        stream.close()


def _ask(stream: CopyStream) -> None:
    with mapped_errors("here"):
        stream.ask("SELECT 1")


TABLE = Table(
    TableName("public", "t"), (Column("c", "integer", False, {"oid": 23, "typmod": -1, "number": 1}),), key=("c",)
)


@pytest.mark.parametrize(
    ("lie", "data"),
    [
        *ANSWERS.items(),
        ("no signature", COPY_OUT + message(b"d", b"\0\1\0\0\0\4\0\0\0\1")),
        (
            "a value longer than its row of a COPY",
            COPY_OUT + message(b"d", SIGNATURE + b"\0\1\x7f\xff\xff\xff"),
        ),
        ("no end", COPY_OUT + message(b"c", b"") + message(b"C", b"COPY 0\0") + READY),
        ("silence in the midst", COPY_OUT),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_malformed_copy(lie: str, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_cdc.sources.postgres.decode.stream.SILENT_SECONDS", 1)
    with (
        lying_server(_answering(data), tmp_path) as liar,
        Bounded(60, 400),
        session(settings_for(liar.port)) as control,
    ):
        stream = CopyStream(socket_of(control), "here")
        reader = CopyReader(stream, TABLE)
        with pytest.raises((DecodeError, SourceUnavailable, SchemaChanged)), mapped_errors("here"):
            list(reader.read("public.t"))
        stream.close()


@pytest.mark.parametrize("lie", ANSWERS)
@pytest.mark.parametrize("way", [session, replication_session])
def test_a_malformed_answer(lie: str, way: Open, tmp_path: Path) -> None:
    if lie == "an unknown kind":
        pytest.skip("libpq skips it and waits on")

    def script(peer: Peer) -> None:
        _answering(ANSWERS[lie] + READY)(peer)

    with (
        lying_server(script, tmp_path) as liar,
        Bounded(25, 200),
        pytest.raises(CdcError),
        way(settings_for(liar.port)) as connection,
    ):
        assert query(connection, "SELECT 1") == [("x",)]
