"""A contender: one way to do the work of a bench, in a process of its own, so that memory and imports are its own.

The process answers one line of JSON for each line of JSON that it is asked; it ends when its input does. Only the work
is timed: the start of the interpreter, imports and the start of a Spark session are not.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pymysql

from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from harness.bench.processes import TreeMemory, cpu_seconds
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer

_SESSIONS = {
    "mysql": "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Connections'",
    "postgres": "SELECT sessions FROM pg_stat_database WHERE datname = current_database()",
}


@dataclass(frozen=True)
class Address:
    """Where the server is, and a user without password. ``database`` is empty on MySQL, which needs none."""

    kind: str
    host: str
    port: int
    user: str
    database: str = ""

    @classmethod
    def of(cls, server: MysqlServer | PostgresServer, user: str = "") -> Address:
        if isinstance(server, MysqlServer):
            return cls("mysql", server.host, server.port, user or "root")
        return cls("postgres", server.host, server.port, user or SUPERUSER, "postgres")

    @property
    def settings(self) -> ConnectionSettings:
        # The peers are told to do without TLS, or do so by themselves.
        return ConnectionSettings(
            self.kind, self.host, self.port, self.user, database=self.database, tls={"mode": "disabled"}
        )

    @property
    def url(self) -> str:
        """As connectorx and others write it."""
        scheme = "mysql" if self.kind == "mysql" else "postgresql"
        return f"{scheme}://{self.user}@{self.host}:{self.port}/{self.database}"

    def sessions(self) -> int:
        """How many sessions the server has opened so far; to ask for it opens one more."""
        with self.cursor() as cursor:
            cursor.execute(_SESSIONS[self.kind])
            return int(cursor.fetchall()[0][0])

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """A DB-API cursor in autocommit."""
        if self.kind == "mysql":
            connection: Any = pymysql.connect(host=self.host, port=self.port, user=self.user, autocommit=True)
        else:
            connection = psycopg.connect(self.url, autocommit=True)
        with closing(connection), connection.cursor() as cursor:
            yield cursor


@dataclass(frozen=True)
class Order:
    """Copy ``table`` (``schema.table``, keys 1 to ``rows``) into the folder ``target``, which does not exist yet.

    ``meanwhile`` are statements for the server once the initial position is recorded: changes to rewind. A contender
    ``as_of`` is the point that the copy is exact at; empty: now. ``standing_slot`` is what keeps the past for it. A
    contender that reads the log nets the ``files`` of it that name ``rows`` row images of the table, and writes
    nothing. ``night`` counts the runs into one target, from the second one on: such a one rolls the copy before
    forward, once the statements ``before`` are done.
    """

    table: str
    rows: int
    target: str = ""
    consistency: str = "watermark"
    meanwhile: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    as_of: str = ""
    standing_slot: str = ""
    before: tuple[str, ...] = ()
    night: int = 0


Work = Callable[[Order], Mapping[str, Any]]
"""Carries an order out. Returns ``rows``, how many it did; ``seconds`` if less than the whole call counts; and, by
name, whatever else it measured. All of it JSON."""


class Contender:
    """The parent's end: starts ``harness.bench.peers.<name>`` and gives it orders."""

    def __init__(self, name: str, address: Address, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = log
        # Also what a peer or its JVM leaves behind is gone then.
        self._scratch = tempfile.TemporaryDirectory(prefix=f"cdc-bench-{name}-", ignore_cleanup_errors=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.bench.contender", name, json.dumps(asdict(address))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {}), "TMPDIR": self._scratch.name},
                text=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> None:
        """Wait until it can take orders.

        :raises HarnessError: it could not start.
        """
        self._answer()

    def run(self, order: Order) -> dict[str, Any]:
        """What the work returned, with ``seconds``, ``peak_rss_mb`` and ``cpu_seconds`` of all its processes.

        :raises HarnessError: it failed, or did another number of rows.
        """
        assert self._process.stdin is not None
        before = cpu_seconds(self.pid)
        with TreeMemory(self.pid) as memory:
            self._process.stdin.write(json.dumps(asdict(order)) + "\n")
            self._process.stdin.flush()
            found = self._answer()
        if found["rows"] != order.rows:
            raise HarnessError(f"{self.name} did {found['rows']:,} rows of {order.table}, not {order.rows:,}")
        return {**found, "peak_rss_mb": memory.peak, "cpu_seconds": cpu_seconds(self.pid) - before}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._scratch.cleanup()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if error := answer.get("error"):
            raise HarnessError(f"{self.name} failed: {error} (see {self._log})")
        return answer


def main() -> None:
    """The child's end. Its own stdout becomes stderr, for libraries and the JVM print what they like."""
    name, address = sys.argv[1], Address(**json.loads(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(what: Mapping[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")

    try:
        work: Work = importlib.import_module(f"harness.bench.peers.{name}").prepare(address)
        answer({})
        for line in sys.stdin:
            order = Order(**json.loads(line))
            started = time.perf_counter()
            found = work(order)
            answer({"seconds": time.perf_counter() - started, **found})
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"})


if __name__ == "__main__":
    main()
