"""A session inherits nothing that alters or truncates a read. A failure is one clear error without the password."""

from __future__ import annotations

import contextlib
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pymysql
import pytest
from cryptography.hazmat.primitives import serialization

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    LoginRefused,
    SchemaChanged,
    SourceUnavailable,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.driver import mapped_errors
from airflow_provider_cdc.sources.mysql.server.session import connect, query, quote, session, value
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables
from harness.mysql_server import MysqlServer

SECRET = "s3cret-ünd-☂"


@pytest.fixture(scope="module")
def user(mysql: MysqlServer) -> Iterator[str]:
    mysql.query("CREATE USER cautious IDENTIFIED BY %s", (SECRET,))
    yield "cautious"
    mysql.query("DROP USER cautious")


def settings(mysql: MysqlServer, **changes: Any) -> ConnectionSettings:
    arguments: dict[str, Any] = {"kind": "mysql", "host": mysql.host, "port": mysql.port, "user": "root"}
    return ConnectionSettings(**arguments | changes)


class TestReading:
    def test_a_reading_session_gets_text_as_it_is_stored(self, mysql: MysqlServer, schema: str) -> None:
        mysql.query(f"CREATE TABLE {schema}.t (c VARCHAR(9) CHARACTER SET latin1)")
        mysql.query(f"INSERT INTO {schema}.t VALUES ('é')")
        with connect(settings(mysql), reading=True, use_unicode=False) as connection:
            assert query(connection, f"SELECT c FROM {schema}.t") == [(b"\xe9",)]


class TestTls:
    def ca(self, mysql: MysqlServer) -> str:
        return str(mysql.directory / "data/ca.pem")

    @pytest.mark.parametrize(
        "tls", [{}, {"mode": "preferred"}, {"mode": "required"}, {"ca": "CA"}, {"mode": "verify_ca", "ca": "CA"}]
    )
    def test_is_used(self, tls: dict[str, str], mysql: MysqlServer) -> None:
        tls = {key: self.ca(mysql) if text == "CA" else text for key, text in tls.items()}
        with session(settings(mysql, tls=tls)) as connection:
            assert dict(query(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'"))["Ssl_cipher"]

    def test_is_not_used_when_disabled(self, mysql: MysqlServer) -> None:
        with session(settings(mysql, tls={"mode": "disabled"})) as connection:
            assert not dict(query(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'"))["Ssl_cipher"]

    def test_is_required_even_of_a_server_without_it(
        self, mysql_factory: Callable[[Mapping[str, str | None]], MysqlServer]
    ) -> None:
        server = mysql_factory({"tls-version": ""})
        with session(settings(server)) as connection:
            assert not dict(query(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'"))["Ssl_cipher"]
        with pytest.raises(ConfigurationError, match="no encrypted connection"):
            connect(settings(server, tls={"mode": "required"}))

    def test_refuses_a_certificate_of_an_unknown_authority(self, mysql: MysqlServer) -> None:
        with pytest.raises(ConfigurationError, match="certificate cannot be trusted"):
            connect(settings(mysql, tls={"mode": "verify_ca"}))

    def test_refuses_a_certificate_of_another_host(self, mysql: MysqlServer) -> None:
        with pytest.raises(ConfigurationError, match="certificate cannot be trusted"):
            connect(settings(mysql, tls={"mode": "verify_identity", "ca": self.ca(mysql)}))

    def test_client_certificates(self, mysql: MysqlServer) -> None:
        data = mysql.directory / "data"
        mysql.query("CREATE USER certified REQUIRE X509")
        try:
            with pytest.raises(LoginRefused, match="or the account requires a client certificate") as caught:
                connect(settings(mysql, user="certified"))
            assert "tls_cert" in caught.value.hint
            tls = {"cert": str(data / "client-cert.pem"), "key": str(data / "client-key.pem")}
            given = settings(mysql, user="certified", tls=tls)
            # As on a machine without the files.
            sent = {**asdict(given.with_files()), "tls": dict.fromkeys(tls, "/nowhere")}
            for one in (given, ConnectionSettings(**sent)):
                with session(one) as connection:
                    assert value(connection, "1") == 1
        finally:
            mysql.query("DROP USER certified")

    @pytest.mark.parametrize(
        "tls", [{"mode": "on"}, {"verify": "yes"}, {"ca": "/no/such/file"}, {"cert": "/no/such/file"}]
    )
    def test_settings_that_make_no_sense(self, tls: dict[str, str], mysql: MysqlServer) -> None:
        with pytest.raises(ConfigurationError) as caught:
            connect(settings(mysql, tls=tls))
        assert caught.value.hint

    def test_nobody_is_asked_for_the_passphrase_of_a_key(
        self, mysql: MysqlServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        read = serialization.load_pem_private_key((mysql.directory / "data" / "client-key.pem").read_bytes(), None)
        cipher = serialization.BestAvailableEncryption(b"secret")
        key = tmp_path / "key.pem"
        key.write_bytes(read.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher))
        tls = {"cert": str(mysql.directory / "data" / "client-cert.pem"), "key": str(key)}
        with pytest.raises(ConfigurationError, match="TLS files cannot be read") as caught:
            connect(settings(mysql, tls=tls))
        assert "passphrase" in caught.value.hint
        assert "pass phrase" not in "".join(capfd.readouterr())


class TestFailures:
    """Each is one clear error that has a hint and does not reveal the password."""

    @pytest.mark.parametrize(
        ("changes", "error", "says"),
        [
            ({"password": SECRET + "x"}, LoginRefused, "refuses this user or password"),
            ({"user": "nobody"}, LoginRefused, "refuses this user or password"),
            ({"user": ""}, ConfigurationError, "names no user"),
            ({"host": "no-such-host.invalid"}, ConfigurationError, "no-such-host.invalid"),
            ({"port": 1}, SourceUnavailable, "does not answer"),
            ({"database": "no_such_schema"}, ConfigurationError, "no_such_schema"),
        ],
    )
    def test_to_connect(
        self, changes: dict[str, Any], error: type[CdcError], says: str, mysql: MysqlServer, user: str
    ) -> None:
        password = changes.get("password", SECRET)
        mysql.query(f"GRANT ALL ON *.* TO {user}")
        given = settings(mysql, **({"user": user, "password": password} | changes))
        with pytest.raises(error, match=says) as caught:
            connect(given)
        assert caught.value.where.endswith(f"@{given.host}:{given.port}")
        assert caught.value.hint
        told = "".join(traceback.format_exception(caught.value)) + repr(given)
        assert SECRET not in told

    def test_a_password_beyond_latin_1(self, mysql: MysqlServer, user: str) -> None:
        for tls in ({"mode": "required"}, {"mode": "disabled"}):
            with session(settings(mysql, user=user, password=SECRET, tls=tls)) as connection:
                assert value(connection, "CURRENT_USER()") == "cautious@%"

    def test_a_server_that_accepts_and_says_nothing(self, mysql: MysqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airflow_provider_cdc.sources.mysql.server.session.CONNECT_SECONDS", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(SourceUnavailable):
            connect(settings(mysql, port=silent.getsockname()[1]))

    @pytest.mark.parametrize("version", ["8.0.25", "5.7.44-log", "5.7.mysql_aurora.2.11.4", "5.5.5-10.11.6-MariaDB"])
    def test_a_server_that_is_too_old(self, version: str, mysql: MysqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
        handshake = pymysql.Connection._get_server_information  # type: ignore[attr-defined]

        def pretend(connection: Any) -> None:
            handshake(connection)
            connection.server_version = version

        monkeypatch.setattr(pymysql.Connection, "_get_server_information", pretend)
        says = rf"version is {version}; MySQL 8\.0\.26 or later"
        if "MariaDB" in version:
            # The first number is for old replicas only.
            says = r"the server is MariaDB \(10\.11\.6-MariaDB\), which is not supported"
        with pytest.raises(ConfigurationError, match=says) as caught:
            connect(settings(mysql))
        assert ("upgrade" in caught.value.hint) == ("MariaDB" not in version)

    @staticmethod
    def open_sessions(sessions: contextlib.ExitStack, given: ConnectionSettings) -> None:
        for _ in range(3):
            sessions.enter_context(session(given))

    @pytest.mark.parametrize(
        ("limit", "error"),
        [
            ("MAX_USER_CONNECTIONS 1", ConfigurationError),
            # Other tasks end, and then there is room.
            ("MAX_USER_CONNECTIONS 2", SourceUnavailable),
            ("MAX_CONNECTIONS_PER_HOUR 2", ConfigurationError),
            ("MAX_QUERIES_PER_HOUR 2", ConfigurationError),
        ],
    )
    def test_a_limit_of_the_account(self, limit: str, error: type[CdcError], mysql: MysqlServer, user: str) -> None:
        mysql.query(f"ALTER USER {user} WITH {limit}")
        try:
            given = settings(mysql, user=user, password=SECRET)
            with contextlib.ExitStack() as sessions, pytest.raises(error) as caught:
                self.open_sessions(sessions, given)
            assert type(caught.value) is error
            assert (limit.split()[0] in caught.value.hint) == (error is ConfigurationError)
        finally:
            mysql.query(
                f"ALTER USER {user} WITH MAX_USER_CONNECTIONS 0 MAX_CONNECTIONS_PER_HOUR 0 MAX_QUERIES_PER_HOUR 0"
            )

    @pytest.mark.parametrize(
        ("statement", "error"),
        [
            ("SELECT * FROM no_schema.t", SchemaChanged),
            ("SELECT no_column FROM mysql.user", SchemaChanged),
            ("SELECT * FROM", TerminalError),
            (
                "SELECT /*+ MAX_EXECUTION_TIME(1) */ COUNT(*) FROM information_schema.COLUMNS a, mysql.help_topic",
                TransientError,
            ),
            # As if something were larger than max_allowed_packet.
            ("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1153", ConfigurationError),
            ("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1301", ConfigurationError),
        ],
    )
    def test_of_a_statement(self, statement: str, error: type[CdcError], mysql: MysqlServer) -> None:
        with pytest.raises(CdcError) as caught, session(settings(mysql)) as connection, mapped_errors("here"):
            query(connection, statement)
        assert type(caught.value) is error
        assert caught.value.where == "here"

    def test_a_privilege_that_is_missing(self, mysql: MysqlServer) -> None:
        mysql.query("CREATE USER powerless")
        try:
            with pytest.raises(ConfigurationError), session(settings(mysql, user="powerless")) as connection:
                query(connection, "SELECT * FROM mysql.user")
        finally:
            mysql.query("DROP USER powerless")

    @pytest.mark.parametrize(
        ("state", "kind", "hint"),
        [
            ("ACCOUNT LOCK", ConfigurationError, "ACCOUNT UNLOCK"),
            ("PASSWORD EXPIRE", LoginRefused, "new password"),
            ("IDENTIFIED BY 'x' FAILED_LOGIN_ATTEMPTS 1 PASSWORD_LOCK_TIME 1", LoginRefused, "ACCOUNT UNLOCK"),
        ],
    )
    def test_an_account_that_is_locked_or_has_an_expired_password(
        self, state: str, kind: type[CdcError], hint: str, mysql: MysqlServer
    ) -> None:
        mysql.query(f"CREATE USER dormant {state}")
        try:
            with contextlib.suppress(CdcError), session(settings(mysql, user="dormant")):
                pass
            with pytest.raises(kind) as caught, session(settings(mysql, user="dormant")) as connection:
                query(connection, "SELECT 1")
        finally:
            mysql.query("DROP USER dormant")
        assert hint in caught.value.hint
        assert "grant" not in caught.value.hint

    def test_a_statement_that_the_server_has_no_room_for(self, mysql: MysqlServer) -> None:
        """It ends the session while the rest is being sent, which looks like a short outage."""
        packet = mysql.query("SELECT @@global.max_allowed_packet")[0][0]
        mysql.query("SET GLOBAL max_allowed_packet = 65536")
        try:
            for size in (70_000, 20_000_000):
                with pytest.raises(ConfigurationError, match="max_allowed_packet"), session(settings(mysql)) as asked:
                    query(asked, f"SELECT '{'x' * size}'")
            with session(settings(mysql)) as connection:
                # What has a list of any length is sent in several.
                names = [TableName("mysql", name) for name in ("user", *(f"{n:060}" for n in range(2000)), "db")]
                found = select_of_tables(connection, names, "ENGINE", "TABLES")
            assert sorted(found) == [("mysql", "db", "InnoDB"), ("mysql", "user", "InnoDB")]
        finally:
            mysql.query(f"SET GLOBAL max_allowed_packet = {packet}")

    def test_a_killed_session(self, mysql: MysqlServer) -> None:
        connection = connect(settings(mysql))
        mysql.query(f"KILL {value(connection, 'CONNECTION_ID()')}")
        with pytest.raises(SourceUnavailable, match="task can be retried"), mapped_errors("here"):
            query(connection, "SELECT 1")

    def test_a_session_that_is_closed_already(self, mysql: MysqlServer) -> None:
        connection = connect(settings(mysql))
        connection.close()
        with pytest.raises(SourceUnavailable, match="the session is closed"), mapped_errors("here"):
            query(connection, "SELECT 1")

    def test_other_errors_within_the_block_pass_unchanged(self, mysql: MysqlServer, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError), session(settings(mysql)):
            (tmp_path / "missing").read_text()


def test_a_session_ends_with_its_block(mysql: MysqlServer) -> None:
    with session(settings(mysql)) as connection:
        thread = value(connection, "CONNECTION_ID()")
        assert mysql.query("SELECT 1 FROM performance_schema.processlist WHERE ID = %s", (thread,))
    # The server's side ends a moment later.
    deadline = time.monotonic() + 60
    while mysql.query("SELECT 1 FROM performance_schema.processlist WHERE ID = %s", (thread,)):
        assert time.monotonic() < deadline, "the session is still there"
        time.sleep(0.05)


def test_names_are_quoted() -> None:
    assert quote("a`b", "c.d") == "`a``b`.`c.d`"
