"""Later steps must detect another server, a lost history or log, and changed settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ExactnessError, LogGone, SourceReplaced, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.server.log_history import check_place, end_of_log, log_files
from airflow_provider_cdc.sources.mysql.server.session import session
from harness.mysql_server import MysqlServer
from tests.servers import throw_away_mysql


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    with throw_away_mysql() as started:
        started.query("CREATE DATABASE d")
        started.query("CREATE TABLE d.t (id INT PRIMARY KEY AUTO_INCREMENT)")
        yield started


@pytest.fixture
def begun(server: MysqlServer) -> tuple[MysqlSource, Facts, Position]:
    """A source, and the identity and initial position of a run that has begun on it."""
    server.query("INSERT INTO d.t VALUES ()")
    source = MysqlSource(ConnectionSettings("mysql", server.host, server.port, "root"))
    point = source.record_initial([TablePlan(TableName("d", "t"), "watermark", "")], LockPolicy())
    return source, point.identity, point.position


Begun = tuple[MysqlSource, Facts, Position]


def test_the_same_server_with_more_history(begun: Begun, server: MysqlServer) -> None:
    source, identity, position = begun
    server.query("INSERT INTO d.t VALUES ()")
    server.query("FLUSH BINARY LOGS")
    source.check_identity(identity, position)


@pytest.mark.slow
def test_the_same_server_started_again(begun: Begun, server: MysqlServer) -> None:
    source, identity, position = begun
    server.restart()
    source.check_identity(identity, position)


def test_another_server(begun: Begun, mysql: MysqlServer) -> None:
    _, identity, position = begun
    other = MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "root"))
    with pytest.raises(SourceReplaced, match=identity.server):
        other.check_identity(identity, position)


@pytest.mark.parametrize(
    ("setting", "back"),
    [
        ("binlog_order_commits = OFF", "ON"),
        ("binlog_row_image = MINIMAL", "FULL"),
        ("binlog_format = STATEMENT", "ROW"),
        ("binlog_error_action = IGNORE_ERROR", "ABORT_SERVER"),
    ],
)
def test_settings_that_are_wrong_now(setting: str, back: str, begun: Begun, server: MysqlServer) -> None:
    source, identity, position = begun
    name, _, _ = setting.partition(" ")
    server.query(f"SET GLOBAL {setting}")
    try:
        with pytest.raises(ExactnessError, match=name):
            source.check_identity(identity, position)
    finally:
        server.query(f"SET GLOBAL {name} = {back}")


@pytest.mark.parametrize("name", ["binlog_order_commits", "replica_preserve_commit_order"])
def test_settings_that_were_wrong_in_between(name: str, begun: Begun, server: MysqlServer) -> None:
    source, identity, position = begun
    server.query(f"SET GLOBAL {name} = OFF")
    server.query(f"SET GLOBAL {name} = ON")
    with pytest.raises(ExactnessError, match=f"{name} was set at .* after the run began"):
        source.check_identity(identity, position)


def test_settings_that_were_wrong_before_the_run_do_not_matter(server: MysqlServer) -> None:
    server.query("SET GLOBAL binlog_order_commits = OFF")
    server.query("SET GLOBAL binlog_order_commits = ON")
    source = MysqlSource(ConnectionSettings("mysql", server.host, server.port, "root"))
    point = source.record_initial([TablePlan(TableName("d", "t"), "watermark", "")], LockPolicy())
    source.check_identity(point.identity, point.position)


def test_a_user_with_only_the_privileges_that_a_run_needs(begun: Begun, server: MysqlServer) -> None:
    _, identity, position = begun
    server.query("CREATE USER plain")
    try:
        server.query("GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO plain")
        server.query("SET GLOBAL binlog_order_commits = ON")
        plain = MysqlSource(ConnectionSettings("mysql", server.host, server.port, "plain"))
        with pytest.raises(ExactnessError, match="binlog_order_commits was set"):
            plain.check_identity(identity, position)
    finally:
        server.query("DROP USER plain")


def test_a_log_that_was_purged(begun: Begun, server: MysqlServer) -> None:
    source, identity, position = begun
    server.query("FLUSH BINARY LOGS")
    source.check_identity(identity, position)
    server.purge_log()
    with pytest.raises(LogGone, match="was purged"):
        source.check_identity(identity, position)


def test_a_gtid_purged_that_was_extended_is_not_blamed_on_the_expiry_of_the_log(
    begun: Begun, server: MysqlServer
) -> None:
    source, identity, position = begun
    server.query("SET GLOBAL gtid_purged = '+11111111-2222-3333-4444-555555555555:1-5'")
    with pytest.raises(LogGone, match=r"extended by 11111111.*:1-5") as caught:
        source.check_identity(identity, position)
    assert "expire" not in caught.value.hint


def test_a_history_that_was_thrown_away(begun: Begun, server: MysqlServer) -> None:
    source, identity, position = begun
    server.query("RESET BINARY LOGS AND GTIDS")
    with pytest.raises(SourceReplaced, match="the log was reset"):
        source.check_identity(identity, position)


def test_a_file_that_is_purged_after_the_log_was_listed_is_no_other_log() -> None:
    with throw_away_mysql() as server:
        settings = ConnectionSettings("mysql", server.host, server.port, "root")
        with session(settings) as connection:
            files, place = log_files(connection), end_of_log(settings, connection)
            check_place(settings, files, place)
            server.query("FLUSH BINARY LOGS")
            server.purge_log()
            with pytest.raises(SourceUnavailable, match="was just removed"):
                check_place(settings, files, place)
            with pytest.raises(LogGone, match="was purged"):
                check_place(settings, log_files(connection), place)
