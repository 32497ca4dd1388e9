"""The command ``check_server`` shows how a server differs from what is known about its version, and writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_cdc.check_server import main
from harness.mysql_server import MysqlServer
from tests.sources.mysql.simulated_server import Refusal, SimulatedServer

PASSWORD = "s3cret-☂"


@pytest.fixture
def table(mysql: MysqlServer, schema: str) -> str:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, j JSON)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, '[]'), (2, NULL)")
    return f"{schema}.t"


class Pretender(SimulatedServer):
    """A server of another version than the one in its greeting."""

    def _refusal(self, data: bytes) -> Refusal | None:
        return None

    def _translated(self, text: str) -> str:
        return text


def run(server: MysqlServer | SimulatedServer, *arguments: str) -> int:
    return main([server.host, "--port", str(server.port), "--tls-mode", "disabled", *arguments])


def differences(report: dict[str, Any]) -> set[tuple[str, bool]]:
    return {(one["name"], one["found"]) for one in report["entries"] if one["differs"]}


def test_the_tested_server_is_as_expected_and_stays_as_it_was(
    mysql: MysqlServer, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = mysql.query("SELECT @@gtid_executed")
    assert run(mysql, "--json", "--table", table) == 0
    assert mysql.query("SELECT @@gtid_executed") == before
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == []
    assert report["settings"]["binlog_format"] == "ROW"
    untested = {one["subject"] for one in report["entries"] if one["found"] is None}
    assert untested == {"command", "log event", "login method", "behaviour"}
    assert not {one["name"] for one in report["entries"] if not one["found"]} & {"COM_BINLOG_DUMP_GTID", "LOCK TABLES"}


@pytest.mark.parametrize("version", ["8.0.26", "8.0.36-google", "8.4.3"])
def test_a_simulated_server_is_as_expected(
    version: str, mysql: MysqlServer, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with SimulatedServer(mysql, version) as server:
        assert run(server, "--table", table) == 0
    shown = capsys.readouterr().out
    assert f"server: {version}, " in shown
    assert f"log: written by {version}, " in shown
    assert "differences: none\nproblems: none\n" in shown
    assert ("Google Cloud SQL" in shown) == version.endswith("google")


def test_what_differs_is_shown_with_the_manual(mysql: MysqlServer, capsys: pytest.CaptureFixture[str]) -> None:
    with Pretender(mysql, "8.2.0") as server:
        assert run(server, "--json") == 3
        report = json.loads(capsys.readouterr().out)
        assert run(server) == 3
    assert differences(report) == {
        ("SHOW MASTER STATUS", False),
        ("innodb_native_foreign_keys", True),
        ("GTIDs with tags", True),
        ("the type VECTOR", True),
    }
    shown = capsys.readouterr().out
    assert "statement SHOW MASTER STATUS (versions: before 8.4.0): expected there, found missing." in shown
    assert "(MySQL error 1064)" in shown
    assert "https://dev.mysql.com/doc/refman/8.0/en/show-master-status.html" in shown


@pytest.fixture
def poor(mysql: MysqlServer) -> Iterator[str]:
    """A user without any privilege."""
    mysql.query("CREATE USER poor@'%%' IDENTIFIED WITH caching_sha2_password BY %s", (PASSWORD,))
    yield "poor"
    mysql.query("DROP USER poor")


def test_a_user_without_privileges(
    mysql: MysqlServer, poor: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CDC_CHECK_PASSWORD", PASSWORD)
    assert main([mysql.host, "--port", str(mysql.port), "--user", poor]) == 4
    shown = capsys.readouterr().out
    assert "differences: none" in shown
    assert "log: cannot be read: " in shown
    assert "statement SHOW BINARY LOG STATUS: Access denied" in shown
    assert not re.search(r"not tested:(\n  (?!.*\(GRANT .*\)).*)", shown), "it is unknown what would show it"
    assert "Hint: GRANT REPLICATION CLIENT ON *.* TO `poor`@`%`" in shown
    assert PASSWORD not in shown


@pytest.mark.parametrize("version", ["8.0.25", "5.5.5-10.11.6-MariaDB"])
def test_a_version_that_is_not_supported(version: str, mysql: MysqlServer, capsys: pytest.CaptureFixture[str]) -> None:
    with Pretender(mysql, version) as server:
        assert run(server) == 2
    assert "ConfigurationError" in capsys.readouterr().err


def test_nothing_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["127.0.0.1", "--port", "1"]) == 1
    with pytest.raises(SystemExit):
        main([])
