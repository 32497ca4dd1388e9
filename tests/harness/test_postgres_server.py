"""The private PostgreSQL servers: every installed version starts, logs logically, and ends with its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from harness import apt, server_process
from harness.errors import HarnessError
from harness.postgres_binaries import installations
from harness.postgres_server import PostgresServer
from tests.consistency.postgres.servers import EVERY


def test_every_supported_version_is_here() -> None:
    if not apt.suites_of_debian("sid"):
        pytest.skip("the packages of some versions are those of Debian")
    assert {binaries.major for binaries in installations()} == {15, 16, 17, 18, 19}


@pytest.mark.slow
@pytest.mark.parametrize("major", EVERY)
def test_every_version_starts_and_writes_a_logical_log(major: int, tmp_path: Path) -> None:
    with PostgresServer.start(tmp_path, version=major) as server:
        assert server.query("SHOW wal_level") == [("logical",)]
        assert server.query("SHOW server_version")[0][0].startswith(str(major))
        assert server.query("SELECT slot_name FROM pg_create_logical_replication_slot('s', 'pgoutput')") == [("s",)]
        identifier = "SELECT system_identifier FROM pg_control_system()"
        with PostgresServer.start(tmp_path / "other", version=major) as other:
            assert other.query(identifier) != server.query(identifier), "their data come from one template"
    with pytest.raises(psycopg.OperationalError):
        server.connect()


def test_data_and_port_outlive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        # Another program takes the port after it was found free.
        taken.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1], server_process.free_port()]
        monkeypatch.setattr(server_process, "free_port", lambda: ports.pop(0))
        server = PostgresServer.start(tmp_path)
    with server:
        server.query("CREATE TABLE kept AS SELECT 1 AS one")
        server.restart({"work_mem": "8MB"})
        assert server.query("SELECT one, current_setting('work_mem') FROM kept") == [(1, "8MB")]


@pytest.mark.slow
def test_other_users_need_their_password(tmp_path: Path) -> None:
    with PostgresServer.start(tmp_path) as server:
        server.query("CREATE ROLE reader LOGIN PASSWORD 'right'")
        with pytest.raises(psycopg.OperationalError, match="password"):
            server.connect("reader", "wrong")
        server.connect("reader", "right").close()


@pytest.mark.slow
def test_a_session_that_crashes_is_an_error(tmp_path: Path) -> None:
    server = PostgresServer.start(tmp_path)
    with server.connect() as connection:
        os.kill(connection.info.backend_pid, signal.SIGSEGV)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(HarnessError, match=r"terminated by signal 11"):
        server.stop()


@pytest.mark.slow
def test_a_server_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from harness.postgres_server import PostgresServer
from tests.consistency.postgres.servers import EVERY
print(PostgresServer.start(Path({str(tmp_path)!r})).pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_a_detached_server_is_found_again(tmp_path: Path) -> None:
    started = PostgresServer.start(tmp_path, detached=True)
    try:
        found = PostgresServer.attach(tmp_path)
        assert found is not None
        assert (found.pid, found.url) == (started.pid, started.url)
        assert found.query("SELECT 1") == [(1,)]
    finally:
        started.stop()
    assert PostgresServer.attach(tmp_path) is None
