"""The private MySQL servers have the properties that the other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pymysql
import pytest

from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.server_process import free_port


def test_defaults_log_whole_rows_under_gtids(mysql: MysqlServer) -> None:
    names = "@@gtid_mode, @@enforce_gtid_consistency, @@binlog_format, @@binlog_row_image, @@log_bin"
    assert mysql.query(f"SELECT {names}") == [("ON", "ON", "ROW", "FULL", 1)]


def test_time_zone_is_not_that_of_the_machine(mysql: MysqlServer) -> None:
    assert mysql.query("SELECT @@time_zone, @@system_time_zone") == [("+00:00", "UTC")]


def test_two_servers_share_no_identity(mysql: MysqlServer, mysql_oracle: MysqlServer) -> None:
    identity = "SELECT @@server_uuid, @@server_id, @@port"
    (one,), (other,) = mysql.query(identity), mysql_oracle.query(identity)
    assert not set(one) & set(other)


def test_fresh_server_has_an_empty_history(mysql_factory: Callable[..., MysqlServer]) -> None:
    assert mysql_factory({}).query("SELECT @@global.gtid_executed") == [("",)]


def test_password_user_connects_over_plain_tcp_and_tls(mysql: MysqlServer) -> None:
    mysql.query("CREATE USER harness IDENTIFIED WITH caching_sha2_password BY 'not a secret'")
    try:
        with mysql.connect("harness", "not a secret", ssl_disabled=True) as connection:
            assert _cipher(connection) == ""
        authority = str(mysql.directory / "data/ca.pem")
        with mysql.connect("harness", "not a secret", ssl_ca=authority) as connection:
            assert _cipher(connection) != ""
        with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
            mysql.connect("harness", "wrong")
    finally:
        mysql.query("DROP USER harness")


def _cipher(connection: pymysql.Connection[pymysql.cursors.Cursor]) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        row = cursor.fetchone()
        assert row is not None
        return str(row[1])


@pytest.mark.slow
def test_restart_keeps_data_port_and_identity(mysql_factory: Callable[..., MysqlServer]) -> None:
    server = mysql_factory({"binlog-row-image": "MINIMAL"})
    before = server.query("SELECT @@port, @@server_uuid")
    server.query("CREATE DATABASE kept")
    server.restart({"binlog_row_image": "NOBLOB"})
    assert server.query("SELECT @@port, @@server_uuid") == before
    assert server.query("SHOW DATABASES LIKE 'kept'") == [("kept",)]
    assert server.query("SELECT @@binlog_row_image") == [("NOBLOB",)]


@pytest.mark.slow
def test_refused_option_is_reported_from_the_log(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no_such_option"):
        MysqlServer.start(tmp_path, options={"no_such_option": "1"})


def test_port_of_another_server_is_refused(mysql: MysqlServer, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"port .* belongs to another server|ended at once"):
        MysqlServer.start(tmp_path, port=mysql.port)


def test_client_tool_reads_the_log(mysql: MysqlServer) -> None:
    name = mysql.query("SHOW BINARY LOGS")[0][0]
    command = [*mysql.tool("mysqlbinlog"), "--no-defaults", str(mysql.directory / "data" / name)]
    assert "Previous-GTIDs" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_missing_client_tool_is_named(mysql: MysqlServer) -> None:
    with pytest.raises(HarnessError, match="no_such_tool"):
        mysql.tool("no_such_tool")


@pytest.mark.slow
def test_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from harness.mysql_server import MysqlServer\n"
        "print(MysqlServer.start(Path(sys.argv[1])).pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _wait_for_end_of(server)


@pytest.mark.slow
def test_detached_server_is_found_again(tmp_path: Path) -> None:
    assert MysqlServer.attach(tmp_path) is None
    started = MysqlServer.start(tmp_path, detached=True)
    try:
        found = MysqlServer.attach(tmp_path)
        assert found is not None
        assert (found.pid, found.port) == (started.pid, started.port)
        found.stop()
    finally:
        started.stop()
    _wait_for_end_of(started.pid)
    assert MysqlServer.attach(tmp_path) is None


def test_pid_of_another_process_is_not_taken_for_the_server(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(f'{{"port": {free_port()}, "pid": {os.getpid()}, "options": {{}}}}')
    assert MysqlServer.attach(tmp_path) is None


def _wait_for_end_of(pid: int) -> None:
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_server_that_crashes_is_an_error(tmp_path: Path) -> None:
    server = MysqlServer.start(tmp_path)
    os.kill(server.pid, signal.SIGSEGV)
    with pytest.raises(HarnessError, match="mysqld got signal 11"):
        server.stop()
