"""A private MySQL server on 127.0.0.1 in a directory of its own."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql

from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.mysql_binaries import MysqlBinaries, find_mysql

START_SECONDS = 60
STOP_SECONDS = 60

DEFAULTS: Mapping[str, str | None] = {
    "bind_address": "127.0.0.1",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "default_time_zone": "+00:00",
    "enforce_gtid_consistency": "ON",
    "gtid_mode": "ON",
    # The servers hold throw-away data: a crash may cost the last second, never the test.
    "innodb_flush_log_at_trx_commit": "2",
    "sync_binlog": "0",
    "innodb_buffer_pool_size": "256M",
    "innodb_redo_log_capacity": "256M",
    "local_infile": "ON",
    "log_bin": "binlog",
    "mysqlx": "OFF",
    "performance_schema": "ON",
    "secure_file_priv": "",
    # Relative to the data directory: a socket's path has at most 107 bytes, and temporary paths are long.
    "socket": "mysql.sock",
}


class MysqlServer:
    """One running `mysqld`; make it with `start`, use it as a context manager or call `stop`.

    `root` has no password. TLS works out of the box (`ssl_ca` is `directory / "data/ca.pem"`).
    """

    def __init__(
        self,
        binaries: MysqlBinaries,
        directory: Path,
        port: int,
        options: Mapping[str, str | None],
        *,
        detached: bool,
    ) -> None:
        self.binaries = binaries
        self.directory = directory
        self.host = "127.0.0.1"
        self.port = port
        self.pid = 0
        self._options = dict(options)
        self._detached = detached
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        port: int | None = None,
        options: Mapping[str, str | None] | None = None,
        detached: bool = False,
    ) -> Self:
        """Start a server in `directory`, on the data it left there or on a fresh, empty data directory.

        `options` are server options without the dashes, over `DEFAULTS`; None means a flag without value.
        The server ends with this process, and with the thread that called, unless it is `detached`.
        Raises HarnessError if it does not answer.
        """
        directory = directory.absolute()
        binaries = find_mysql()
        if not (directory / "data").exists():
            _copy_template(binaries, directory / "data")
        server = cls(binaries, directory, port or free_port(), _normal(options), detached=detached)
        server._launch()
        return server

    @classmethod
    def attach(cls, directory: Path) -> Self | None:
        """The detached server that runs in `directory`, or None."""
        directory = directory.absolute()
        try:
            state = json.loads((directory / "server.json").read_text())
        except FileNotFoundError:
            return None
        server = cls(find_mysql(), directory, state["port"], state["options"], detached=True)
        server.pid = state["pid"]
        return server if server._running() else None

    def connect(self, user: str = "root", password: str = "", **arguments: Any) -> pymysql.Connection[Any]:
        """A TCP connection, in autocommit unless `arguments` (those of `pymysql.connect`) say otherwise."""
        defaults: dict[str, Any] = {"autocommit": True, "local_infile": True}
        return pymysql.connect(host=self.host, port=self.port, user=user, password=password, **(defaults | arguments))

    def query(self, sql: str, args: Sequence[Any] | Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement as root, on a connection of its own, and return its rows."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, args)
            return list(cursor.fetchall())

    def tool(self, name: str) -> list[str]:
        """The argv prefix of a client program: mysqlbinlog, mysql, mysqldump."""
        return self.binaries.tool(name)

    def restart(self, options: Mapping[str, str | None] | None = None) -> None:
        """Stop, and start on the same data and port; `options` are laid over those of `start`."""
        self.stop()
        self._options |= _normal(options)
        self._launch()

    def stop(self) -> None:
        """Shut the server down cleanly and wait for its end. Does nothing if it does not run."""
        atexit.unregister(self.stop)
        if not self._running():
            return
        self._signal(signal.SIGTERM)
        if not self._ended_within(STOP_SECONDS):
            self._signal(signal.SIGKILL)
            self._ended_within(STOP_SECONDS)
        (self.directory / "server.json").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """How to reach it, as a URL; `root` has no password."""
        return f"mysql://root@{self.host}:{self.port}/"

    @property
    def log(self) -> Path:
        """The server's error log."""
        return self.directory / "error.log"

    def _launch(self) -> None:
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        options = {
            **DEFAULTS,
            "server_id": str(self.port),
            **self._options,
            "datadir": str(self.directory / "data"),
            "log_error": str(self.log),
            "port": str(self.port),
            "tmpdir": str(scratch),
        }
        command = [*self.binaries.mysqld, *_as_root(), *_argv(options)]
        if not self._detached and (setpriv := shutil.which("setpriv")):
            # The kernel ends the server even if this process is killed and runs no exit handler.
            command = [setpriv, "--pdeathsig", "TERM", *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TZ": "UTC"},
            start_new_session=True,
        )
        self.pid = self._process.pid
        if not self._detached:
            atexit.register(self.stop)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        if self._detached:
            state = {"port": self.port, "pid": self.pid, "options": self._options}
            (self.directory / "server.json").write_text(json.dumps(state))

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                answered = self.query("SELECT @@datadir")[0][0]
            except pymysql.err.OperationalError as error:
                if error.args[0] not in (2003, 2013):  # can't connect, lost connection: not up yet
                    return
            else:
                if Path(answered) != self.directory / "data":
                    raise HarnessError(f"port {self.port} belongs to another server (its data is in {answered})")
                return
            if not self._running():
                raise HarnessError(f"mysqld ended at once; see {self.log}:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise HarnessError(
                    f"mysqld does not answer after {START_SECONDS} s; see {self.log}:\n{self._log_tail()}"
                )
            time.sleep(0.05)

    def _log_tail(self) -> str:
        if not self.log.exists():
            return "(no log was written)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def _running(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        # After `attach` the process is not our child: make sure that the pid was not given to another.
        try:
            argv = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"--datadir={self.directory / 'data'}".encode() in argv

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _ended_within(self, seconds: float) -> bool:
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return False
            return True
        deadline = time.monotonic() + seconds
        while self._running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def free_port() -> int:
    """A port that nobody listens on, below the range from which the kernel hands out ports to clients."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


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
        # Every copy makes its own server_uuid, and begins its own binary log.
        for leftover in [work / "auto.cnf", *work.glob("binlog.*")]:
            leftover.unlink(missing_ok=True)


def _normal(options: Mapping[str, str | None] | None) -> dict[str, str | None]:
    return {name.replace("-", "_"): value for name, value in (options or {}).items()}


def _argv(options: Mapping[str, str | None]) -> list[str]:
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []
