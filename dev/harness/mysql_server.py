"""A private MySQL server on 127.0.0.1 in its own directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pymysql

from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.mysql_binaries import MysqlBinaries, find_mysql
from harness.server_process import STOP_SECONDS, ServerProcess, process_state

DEFAULTS: Mapping[str, str | None] = {
    "bind_address": "127.0.0.1",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "default_time_zone": "+00:00",
    "enforce_gtid_consistency": "ON",
    "gtid_mode": "ON",
    # The data is temporary, so the servers do not have to flush each commit.
    "innodb_flush_log_at_trx_commit": "2",
    "sync_binlog": "0",
    "innodb_buffer_pool_size": "256M",
    "innodb_redo_log_capacity": "256M",
    "local_infile": "ON",
    "log_bin": "binlog",
    # Each call of `query` opens a connection, and the server may end it some time after it was closed.
    "max_connections": "300",
    "mysqlx": "OFF",
    "performance_schema": "ON",
    "secure_file_priv": "",
    # Relative to the data directory, because a socket's path has at most 107 bytes and temporary paths are long.
    "socket": "mysql.sock",
}


class MysqlServer(ServerProcess):
    """A running `mysqld`. Create it with `start`, and use it as a context manager or call `stop`.

    `root` has no password. TLS is enabled (`ssl_ca` is `directory / "data/ca.pem"`).
    """

    program = "mysqld"
    time_zone = "UTC"
    stop_signal = signal.SIGTERM
    kill_signal = signal.SIGKILL
    crashes = re.compile(r"mysqld got (signal|exception)|Assertion failure")

    def connect(self, user: str = "root", password: str = "", **arguments: Any) -> pymysql.Connection[Any]:
        """Open a TCP connection, in autocommit by default. `arguments` are passed to `pymysql.connect`."""
        # With TLS, the driver would read all authorities of the system, which takes longer than most statements.
        plain = not any(name.startswith("ssl") for name in arguments)
        defaults: dict[str, Any] = {"autocommit": True, "local_infile": True, "ssl_disabled": plain}
        return pymysql.connect(host=self.host, port=self.port, user=user, password=password, **(defaults | arguments))

    def query(self, sql: str, args: Sequence[Any] | Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute one statement as root on a new connection, and return its rows."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, args)
            return list(cursor.fetchall())

    def tool(self, name: str) -> list[str]:
        """Return the argv prefix of a client program: mysqlbinlog, mysql, mysqldump."""
        return self.binaries.tool(name)

    def purge_log(self, to: str = "") -> None:
        """Purge the log up to the file ``to``; empty: up to the current file.

        The server keeps a file, and all later ones, while a session reads it. The session may end some time after its
        connection, so this method waits for the purge.
        """
        first = to or str(self.query("SHOW BINARY LOG STATUS")[0][0])
        deadline = time.monotonic() + STOP_SECONDS
        while True:
            self.query(f"PURGE BINARY LOGS TO '{first}'")
            if (found := self.query("SHOW BINARY LOGS")[0][0]) == first:
                return
            if time.monotonic() > deadline:
                raise HarnessError(f"a session still reads {found}")
            time.sleep(0.05)

    def copy_data(self, to: Path) -> None:
        """Copy the data in its current state on disk, as after a power failure."""
        self._signal(signal.SIGSTOP)
        try:
            self._wait_until_it_stands_still()
            # Sockets cannot be copied, and are not data.
            shutil.copytree(self.data, to, ignore=shutil.ignore_patterns("*.sock", "*.lock", "*.pid"))
        finally:
            self._signal(signal.SIGCONT)

    def crash(self, put_back: Path | None = None) -> None:
        """Kill the server, restore the copy ``put_back`` of its data if one is given, and start the server again."""
        self._signal(self.kill_signal)
        self._ended_within(STOP_SECONDS)
        if put_back is not None:
            shutil.rmtree(self.data)
            shutil.copytree(put_back, self.data)
        self._launch()

    def _wait_until_it_stands_still(self) -> None:
        """Wait until all threads have stopped. A thread in a write stops only after the write."""
        deadline = time.monotonic() + STOP_SECONDS
        while any(process_state(thread) not in "TZX" for thread in Path(f"/proc/{self.pid}/task").glob("*")):
            if time.monotonic() > deadline:
                raise HarnessError(f"process {self.pid} does not stop")
            time.sleep(0.01)

    @property
    def url(self) -> str:
        return f"mysql://root@{self.host}:{self.port}/"

    def _find_binaries(self, version: int | None) -> None:
        self.binaries = find_mysql()

    def _prepare_data(self) -> None:
        if not self.data.exists():
            _copy_template(self.binaries, self.data)

    def _spawn(self) -> subprocess.Popen[bytes]:
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        options = {
            **DEFAULTS,
            "server_id": str(self.port),
            **self._options,
            "datadir": str(self.data),
            "log_error": str(self.log),
            "port": str(self.port),
            "tmpdir": str(scratch),
        }
        command = [*self.binaries.mysqld, *_as_root(), *_argv(options)]
        if not self._detached and (setpriv := shutil.which("setpriv")):
            # The kernel ends the server even if this process is killed without running its exit handlers.
            command = [setpriv, "--pdeathsig", "TERM", *command]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TZ": self.time_zone},
            start_new_session=True,
        )

    def _answers_from(self) -> str | None:
        try:
            return str(self.query("SELECT @@datadir")[0][0])
        except pymysql.err.OperationalError as error:
            # Errors 2003 and 2013 (cannot connect, lost connection): not started yet. Any other error is an answer.
            return None if error.args[0] in (2003, 2013) else str(self.data)


def _copy_template(binaries: MysqlBinaries, data: Path) -> None:
    template = cache_directory() / "mysql" / f"template-{binaries.version}"
    with locked("mysql-template"):
        if not template.exists():
            _make_template(binaries, template)
    with building(data) as work:
        shutil.copytree(template, work, dirs_exist_ok=True)


def _make_template(binaries: MysqlBinaries, template: Path) -> None:
    with building(template) as work:
        log = template.with_name(f"{template.name}.log")
        options = {
            "datadir": str(work),
            "log_error": str(log),
            "innodb_redo_log_capacity": "8M",
            "log_bin": "binlog",
        }
        command = [*binaries.mysqld, *_as_root(), "--initialize-insecure", *_argv(options)]
        if subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode != 0:
            tail = log.read_text(errors="replace") if log.exists() else "(no log was written)"
            raise HarnessError(f"mysqld --initialize-insecure failed:\n{tail}")
        # Every copy generates its own server_uuid, and starts its own binary log.
        for leftover in [work / "auto.cnf", *work.glob("binlog.*")]:
            leftover.unlink(missing_ok=True)


def _argv(options: Mapping[str, str | None]) -> list[str]:
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []
