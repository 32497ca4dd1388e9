"""An impostor of the server learns no password, and cannot keep the client in an endless login."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_cdc.errors import CdcError, ConfigurationError, DecodeError, LoginRefused, SourceUnavailable
from airflow_provider_cdc.sources.mysql.server.session import connect, query, session
from harness.mysql_server import MysqlServer
from tests.conftest import MysqlFactory
from tests.sources.lying_server import SOON_SECONDS, Bounded, Peer, certificate, lying_server
from tests.sources.mysql.lying_mysql import NONCE, PASSWORD, PUBLIC_KEY, MysqlPeer, learned, remembered, settings_for

LOGIN_SECONDS = 0.5


@pytest.fixture
def on_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat 127.0.0.1 as another machine."""
    monkeypatch.setattr("airflow_provider_cdc.sources.session.is_local", lambda host: False)


def switching_to(plugin: bytes, data: bytes = NONCE + b"\0", then: bytes = b"") -> Callable[[MysqlPeer], object]:
    def trick(server: MysqlPeer) -> None:
        server.switch(plugin, data)
        if then:
            server.say(then)
            server.hear()
        server.let_in()

    return trick


def full_authentication(server: MysqlPeer) -> None:
    server.switch(b"caching_sha2_password")
    server.say(b"\x01\x04")
    if server.hear() == b"\x02":
        server.say(b"\x01" + PUBLIC_KEY)
        server.hear()
    server.let_in()


def full_authentication_of_sha256(server: MysqlPeer) -> None:
    if server.switch(b"sha256_password") == b"\x01":
        server.say(b"\x01" + PUBLIC_KEY)
        server.hear()
    server.let_in()


def switching_to_nothing(server: MysqlPeer) -> None:
    server.say(b"\x01\x04")
    server.hear()


TRICKS: dict[str, tuple[bytes, Callable[[MysqlPeer], object]]] = {
    "asks for it by mysql_clear_password": (b"caching_sha2_password", switching_to(b"mysql_clear_password", b"")),
    "asks for it by dialog": (b"caching_sha2_password", switching_to(b"dialog", b"\x02Password: ")),
    "asks for it by mysql_old_password": (b"caching_sha2_password", switching_to(b"mysql_old_password")),
    "asks for it by a method of its own": (b"caching_sha2_password", switching_to(b"\xffmine")),
    "greets with sha256_password": (b"sha256_password", full_authentication_of_sha256),
    "greets with mysql_clear_password": (b"mysql_clear_password", switching_to(b"mysql_clear_password", b"")),
    "asks for sha256_password": (b"caching_sha2_password", full_authentication_of_sha256),
    "asks for no method at all": (b"mysql_native_password", switching_to_nothing),
    "has forgotten the account": (b"caching_sha2_password", full_authentication),
    "remembers the account": (b"caching_sha2_password", remembered),
}


class TestWhoGetsThePassword:
    @pytest.mark.usefixtures("on_the_network")
    @pytest.mark.parametrize("trick", TRICKS)
    @pytest.mark.parametrize("mode", ["", "preferred", "required", "disabled"])
    def test_only_a_server_that_proves_itself_gets_the_password(self, trick: str, mode: str, tmp_path: Path) -> None:
        plugin, then = TRICKS[trick]

        def script(peer: Peer) -> None:
            server = MysqlPeer(peer)
            server.greet(plugin, tls=mode != "disabled")
            then(server)

        with lying_server(script, tmp_path) as liar:
            given = settings_for(liar.port, tls={"mode": mode} if mode else {})
            with pytest.raises((ConfigurationError, SourceUnavailable)) as refused:
                connect(given)
        assert liar.peers
        assert not learned(liar.heard, PASSWORD.encode())
        assert "not supported" in str(refused.value) or "tls_ca" in refused.value.hint or "method at all" in trick
        assert PASSWORD not in "".join(traceback.format_exception(refused.value))

    @pytest.mark.parametrize("trick", ["asks for it by mysql_clear_password", "asks for sha256_password"])
    def test_the_test_would_notice(self, trick: str, tmp_path: Path) -> None:
        """No attacker can intercept connections to this machine, so here the same tricks reveal the password."""
        for tls in (True, False):

            def script(peer: Peer, tls: bool = tls) -> None:
                server = MysqlPeer(peer)
                server.greet(tls=tls)
                TRICKS[trick][1](server)

            with lying_server(script, tmp_path) as liar, pytest.raises(CdcError):
                connect(settings_for(liar.port))
            assert learned(liar.heard, PASSWORD.encode())

    @pytest.mark.usefixtures("on_the_network")
    @pytest.mark.parametrize(
        "tls", [{}, {"mode": "required"}, {"ca": "CA"}, {"ca": "CA", "mode": "preferred"}, {"mode": "verify_identity"}]
    )
    def test_a_session_is_not_stripped_of_tls(self, tls: dict[str, str], tmp_path: Path, mysql: MysqlServer) -> None:
        tls = {name: str(mysql.directory / "data/ca.pem") if text == "CA" else text for name, text in tls.items()}

        def script(peer: Peer) -> None:
            server = MysqlPeer(peer)
            server.greet(b"mysql_native_password")
            server.let_in()
            peer.wait_for_end()

        with (
            lying_server(script, tmp_path) as liar,
            pytest.raises(ConfigurationError, match="no encrypted connection could be made"),
        ):
            connect(settings_for(liar.port, tls=tls))
        assert liar.heard == b""

    @pytest.mark.parametrize("mode", ["", "preferred", "required", "verify_ca", "verify_identity"])
    @pytest.mark.parametrize("where", ["here", "on the network"])
    def test_an_authority_is_verified_against_whatever_the_mode_says(
        self, mode: str, where: str, tmp_path: Path, mysql: MysqlServer, request: pytest.FixtureRequest
    ) -> None:
        if where == "on the network":
            request.getfixturevalue("on_the_network")
        tls = {"ca": str(mysql.directory / "data/ca.pem")} | ({"mode": mode} if mode else {})

        def script(peer: Peer) -> None:
            MysqlPeer(peer).greet(tls=True)
            peer.wait_for_end()

        with lying_server(script, tmp_path) as liar, pytest.raises(ConfigurationError, match="cannot be trusted"):
            connect(settings_for(liar.port, tls=tls))

    def test_disabled_tls_and_an_authority_contradict_each_other(self, mysql: MysqlServer) -> None:
        with pytest.raises(ConfigurationError, match="disabled, but an authority"):
            connect(settings_for(mysql.port, tls={"mode": "disabled", "ca": str(mysql.directory / "data/ca.pem")}))

    def test_without_a_configured_authority_a_certificate_must_be_for_the_host(self) -> None:
        from airflow_provider_cdc.sources.mysql.server.session import _tls_arguments
        from airflow_provider_cdc.sources.session import trust_in

        settings = settings_for(1, tls={"mode": "verify_ca"})
        assert _tls_arguments(settings, trust_in(settings))["ssl"].check_hostname

    @pytest.mark.usefixtures("on_the_network")
    def test_a_pinned_key_is_not_exchanged_for_the_server_s(self, tmp_path: Path, mysql: MysqlServer) -> None:
        pinned = {"mode": "disabled", "server_key": str(mysql.directory / "data/public_key.pem")}

        def script(peer: Peer) -> None:
            server = MysqlPeer(peer)
            server.greet()
            full_authentication(server)

        with lying_server(script, tmp_path) as liar, pytest.raises(CdcError):
            connect(settings_for(liar.port, tls=pinned))
        assert not learned(liar.heard, PASSWORD.encode())
        for wrong in ("/nowhere.pem", str(certificate(tmp_path))):
            with lying_server(script, tmp_path) as liar, pytest.raises(ConfigurationError, match="key"):
                connect(settings_for(liar.port, tls={**pinned, "server_key": wrong}))

    def test_a_misspelt_answer_to_whether_the_network_is_trusted(self) -> None:
        with pytest.raises(ConfigurationError, match="trusted_network is 'yep'"):
            connect(settings_for(1, host="db.example.com", tls={"trusted_network": "yep"}))


PLUGINS = ["caching_sha2_password", "sha256_password", "mysql_native_password"]


@pytest.mark.slow
@pytest.mark.usefixtures("on_the_network")
def test_every_method_of_a_real_server_works_where_the_server_proves_itself(mysql_factory: MysqlFactory) -> None:
    server = mysql_factory({"loose_mysql_native_password": "ON", "authentication_policy": "sha256_password"})
    has = {
        name
        for (name,) in server.query("SELECT PLUGIN_NAME FROM information_schema.PLUGINS WHERE PLUGIN_STATUS = 'ACTIVE'")
    }
    assert {"caching_sha2_password", "sha256_password"} <= has
    data = server.directory / "data"
    ways: list[dict[str, str]] = [
        {"ca": str(data / "ca.pem")},
        {"mode": "preferred", "ca": str(data / "ca.pem")},
        {"mode": "disabled", "server_key": str(data / "public_key.pem")},
        {"trusted_network": "true"},
        {"trusted_network": "true", "mode": "disabled"},
    ]
    for plugin in set(PLUGINS) & has:
        server.query(f"CREATE USER {plugin} IDENTIFIED WITH {plugin} BY %s", (PASSWORD,))
        for tls in ways:
            # It remembers no account at first, and this one afterwards.
            server.query("FLUSH PRIVILEGES")
            for _ in range(2):
                with session(settings_for(server.port, user=plugin, tls=tls)) as connection:
                    assert query(connection, "SELECT 1") == [(1,)]
        for tls in ({}, {"mode": "required"}, {"mode": "disabled"}, {"mode": "preferred"}):
            given = settings_for(server.port, user=plugin, tls=tls)
            if plugin == "mysql_native_password":
                with session(given):
                    pass
            else:
                with pytest.raises(ConfigurationError, match=f"authentication method {plugin}") as refused:
                    connect(given)
                assert "tls_ca" in refused.value.hint
        with pytest.raises(LoginRefused, match="refuses this user or password"):
            connect(settings_for(server.port, user=plugin, password="wrong", tls=ways[0]))
    server.query("CREATE USER nothing IDENTIFIED WITH caching_sha2_password BY ''")
    for tls in ({}, {"mode": "disabled"}):
        with session(settings_for(server.port, user="nothing", password="", tls=tls)):
            pass


def _garbage(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    peer.wait_for_end()


def _says(*payloads: bytes) -> Callable[[Peer], object]:
    def script(peer: Peer) -> None:
        server = MysqlPeer(peer)
        for payload in payloads:
            server.say(payload)
        peer.wait_for_end()

    return script


def _drips(peer: Peer) -> None:
    peer.send(b"\x50\0\0\0\n8.4")
    while True:
        peer.send(b".")
        time.sleep(LOGIN_SECONDS / 5)


def _goes_on_and_on(peer: Peer) -> None:
    server = MysqlPeer(peer)
    server.greet()
    while True:
        server.switch(b"mysql_native_password")


def _repeats_itself(peer: Peer) -> None:
    server = MysqlPeer(peer)
    server.greet()
    while True:
        server.say(b"\x01\x03")


def _huge_packets(peer: Peer) -> None:
    sequence = 0
    while True:
        peer.send(b"\xff\xff\xff" + bytes([sequence]) + bytes(0xFFFFFF))
        sequence = (sequence + 1) & 0xFF


def _greets_and(peer_then: Callable[[MysqlPeer], object]) -> Callable[[Peer], object]:
    def script(peer: Peer) -> None:
        server = MysqlPeer(peer)
        server.greet()
        peer_then(server)
        peer.wait_for_end()

    return script


def _tls_that_never_comes(peer: Peer) -> None:
    server = MysqlPeer(peer)
    server.say(
        b"\n8.4.6\0" + b"\1\0\0\0" + NONCE[:8] + b"\0\x08\xaa\xff\2\0\x08\0\x15" + bytes(10) + NONCE[8:] + b"\0\0"
    )
    peer.wait_for_end()


HANDSHAKES: dict[str, Callable[[Peer], object]] = {
    "another protocol": _garbage,
    "garbage": _says(bytes(range(7, 90))),
    "an empty greeting": _says(b""),
    "a short greeting": _says(b"\n8.4.6\0\1"),
    "a version of words": _says(b"\nnever\0" + b"\1\0\0\0" + bytes(40)),
    "protocol 9": _says(b"\x098.4.6\0" + b"\1\0\0\0" + bytes(60)),
    "protocol 11": lambda peer: MysqlPeer(peer).greet(protocol=11),
    "drops of a greeting": _drips,
    "a greeting that never ends": _huge_packets,
    "a login that never ends": _goes_on_and_on,
    "one answer for ever": _repeats_itself,
    "TLS that never comes": _tls_that_never_comes,
    "no answer": _greets_and(lambda server: None),
    "a short nonce": _greets_and(lambda server: server.switch(b"caching_sha2_password", b"x")),
    "an unknown answer": _greets_and(lambda server: server.say(b"\x01\x07")),
    "a request for a file": _greets_and(lambda server: server.say(b"\xfb/etc/passwd")),
    "an empty answer": _greets_and(lambda server: server.say(b"")),
    "a broken error": _greets_and(lambda server: server.say(b"\xff")),
    "a broken OK": _greets_and(lambda server: server.say(b"\0")),
}


@pytest.mark.parametrize("lie", HANDSHAKES)
def test_a_malformed_login(lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_cdc.sources.mysql.server.session.CONNECT_SECONDS", LOGIN_SECONDS)
    monkeypatch.setattr("airflow_provider_cdc.sources.mysql.server.driver.ANSWER_BYTES", 1 << 26)
    with lying_server(HANDSHAKES[lie], tmp_path) as liar, Bounded(SOON_SECONDS, 200):
        with pytest.raises((ConfigurationError, SourceUnavailable, DecodeError)) as refused:
            connect(settings_for(liar.port))
        assert refused.value.hint
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))
