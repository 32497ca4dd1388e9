"""A private PostgreSQL server on 127.0.0.1 in its own directory."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from harness.errors import HarnessError
from harness.postgres_binaries import find_postgres
from harness.postgres_template import copy_template
from harness.server_process import START_SECONDS, STOP_SECONDS, ServerProcess, process_state

SUPERUSER = "postgres"
SERVER_UID = 65534
"""The user and group id with which root runs the server, because PostgreSQL refuses to run as root. The id needs no
account."""

DEFAULTS: Mapping[str, str] = {
    "autovacuum_naptime": "1s",
    # The data is temporary, so the servers do not have to flush it.
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "warning",
    "logging_collector": "off",
    "max_prepared_transactions": "20",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "unix_socket_directories": "",
    "wal_level": "logical",
}

HBA = f"""\
host all         {SUPERUSER} 127.0.0.1/32 trust
host replication {SUPERUSER} 127.0.0.1/32 trust
host all         all         127.0.0.1/32 scram-sha-256
host replication all         127.0.0.1/32 scram-sha-256
"""


class PostgresServer(ServerProcess):
    """A running `postgres`. Create it with `start`, and use it as a context manager or call `stop`.

    The superuser `postgres` has no password. Every other role needs one.
    """

    program = "postgres"
    stop_signal = signal.SIGINT
    kill_signal = signal.SIGQUIT
    # A server whose disk is full ends with PANIC, too.
    crashes = re.compile(r"was terminated by signal (?!9:)|PANIC: (?!.*No space left on device)|TRAP: ")

    def connect(
        self, user: str = SUPERUSER, password: str = "", database: str = "postgres", **arguments: Any
    ) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a TCP connection, in autocommit by default. `arguments` are passed to `psycopg.connect`."""
        defaults: dict[str, Any] = {"autocommit": True, "connect_timeout": 15}
        return psycopg.connect(
            host=self.host, port=self.port, user=user, password=password, dbname=database, **(defaults | arguments)
        )

    def query(
        self, sql: str, args: Sequence[Any] | Mapping[str, Any] | None = None, *, database: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """Execute statements as superuser on a new connection, and return the rows of the last one, if any."""
        with self.connect(database=database) as connection:
            cursor = connection.execute(sql, args)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def reload(self) -> None:
        """Reload the server's settings and ``pg_hba.conf``, and wait until new sessions use them.

        Existing sessions and processes apply the settings some time later.
        """
        loaded = "SELECT pg_conf_load_time()"
        before = self.query(loaded)
        self.query("SELECT pg_reload_conf()")
        deadline = time.monotonic() + START_SECONDS
        while self.query(loaded) == before:
            if time.monotonic() > deadline:
                raise HarnessError(f"the server did not read its settings within {START_SECONDS} s; see {self.log}")
            time.sleep(0.01)

    def set_standbys(self, names: str) -> None:
        """Set ``synchronous_standby_names`` to the standbys for which commits wait; empty: none."""
        self.query(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.reload()
        # The checkpointer announces the change to the sessions. A second checkpoint begins only after that.
        for _ in range(2):
            self.query("CHECKPOINT")

    def drop_database(self, name: str) -> list[str]:
        """Drop a database with its slots, and end all sessions in it. Return the slots, except temporary ones.

        Temporary slots end with the processes of their sessions, shortly after the connections.

        :raises psycopg.errors.ObjectInUse: a session uses one of the slots.
        """
        there = "SELECT slot_name FROM pg_replication_slots WHERE database = %s AND NOT temporary"
        slots = [slot for (slot,) in self.query(there, (name,))]
        deadline = time.monotonic() + STOP_SECONDS
        while True:
            try:
                self.query(f"DROP DATABASE {name} WITH (FORCE)")
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return slots

    def crash(self) -> None:
        """Kill every process of the server at once, as a power failure does, and start the server again.

        The part of the log that was not written is lost. The written part is kept, because the machine keeps running.
        """
        # Stop the parent first. Otherwise it would react to the end of its children, and make others.
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS
        while process_state(Path(f"/proc/{self.pid}")) not in "TZX" and time.monotonic() < deadline:
            time.sleep(0.001)
        children = _children(self.pid)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._signal(signal.SIGKILL)
        self._ended_within(STOP_SECONDS)
        # The server does not start while one of the processes still has the shared memory. A process leaves it after
        # its memory map in /proc is empty, and before it is a zombie.
        deadline = time.monotonic() + STOP_SECONDS
        folders = [Path(f"/proc/{child}") for child in children]
        while any(process_state(folder) not in "ZX" for folder in folders) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._launch()

    @property
    def url(self) -> str:
        return f"postgresql://{SUPERUSER}@{self.host}:{self.port}/postgres"

    def standby(self, directory: Path, options: Mapping[str, str] | None = None) -> PostgresServer:
        """Start a hot standby of this server in `directory`, with the options of this server and others."""
        server = PostgresServer(directory, options={**self._options, **(options or {})}, version=self.binaries.major)
        server._make_folder()
        command = [self.binaries.tool("pg_basebackup"), "--pgdata", str(server.data), "--write-recovery-conf"]
        command += ["--host", self.host, "--port", str(self.port), "--username", SUPERUSER, "--checkpoint", "fast"]
        server._run([*command, "--no-sync"])
        server._launch()
        return server

    def _find_binaries(self, version: int | None) -> None:
        made_by = self.data / "PG_VERSION"
        self.binaries = find_postgres(int(made_by.read_text()) if made_by.exists() else version)

    def _prepare_data(self) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        self._make_folder()
        arguments = ["--username", SUPERUSER, "--encoding", "UTF8", "--locale", "C.UTF-8", "--auth", "trust"]
        copy_template(self.binaries, [*arguments, "--no-sync", "--no-instructions"], self.data, self._run)
        (self.data / "pg_hba.conf").write_text(HBA)

    def _make_folder(self) -> None:
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(self.data, SERVER_UID, SERVER_UID)

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            [*as_nobody(), *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/"
        )
        if done.returncode != 0:
            raise HarnessError(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        options = {**DEFAULTS, **self._options, "port": str(self.port)}
        command = [self.binaries.tool("postgres"), "-D", str(self.data)]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*as_nobody(ends_with_us=not self._detached), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )

    def _answers_from(self) -> str | None:
        try:
            return str(self.query("SHOW data_directory")[0][0])
        except psycopg.OperationalError:
            return None


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The state and the parent follow the name in parentheses.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def as_nobody(*, ends_with_us: bool = False) -> list[str]:
    """Return the argv prefix of the server's programs. Root runs them as another user, with access to root's folders.

    Raises HarnessError if root lacks `setpriv`.
    """
    setpriv = shutil.which("setpriv")
    # The kernel ends the server even if this process is killed without running its exit handlers.
    ending = ["--pdeathsig", "INT"] if ends_with_us else []
    if os.geteuid() != 0:
        return [setpriv, *ending, "--"] if setpriv and ending else []
    if setpriv is None:
        raise HarnessError("PostgreSQL refuses to run as root: install setpriv (util-linux), or use another user")
    user = [f"--reuid={SERVER_UID}", f"--regid={SERVER_UID}", "--clear-groups"]
    rights = [f"--{kind}-caps=-all,+dac_override" for kind in ("inh", "ambient")]
    # initdb searches for its files with access(2), which would otherwise ignore this capability.
    rights += ["--securebits=+no_setuid_fixup"]
    return [setpriv, *user, *rights, *ending, "--"]
