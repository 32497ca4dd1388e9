"""A contender: one way to do the work of a bench, in its own process, so that memory and imports are separate.

The process answers each line of JSON with one line of JSON, and ends with its input. Only the work is timed, but not
the start of the interpreter, imports and the start of a Spark session.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pymysql

from airflow_provider_cdc.sources.api.source import ConnectionSettings
from harness.bench.processes import TreeMemory, cpu_seconds, tree
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer

_SESSIONS = {
    "mysql": "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Connections'",
    "postgres": "SELECT sessions FROM pg_stat_database WHERE datname = current_database()",
}


@dataclass(frozen=True)
class Address:
    """The address of a server, and a user without a password. ``database`` is empty on MySQL, which needs none."""

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
        # No TLS, because the peers do not use it either.
        return ConnectionSettings(
            self.kind, self.host, self.port, self.user, database=self.database, tls={"mode": "disabled"}
        )

    @property
    def url(self) -> str:
        """The URL for connectorx and others."""
        scheme = "mysql" if self.kind == "mysql" else "postgresql"
        return f"{scheme}://{self.user}@{self.host}:{self.port}/{self.database}"

    def sessions(self) -> int:
        """Return the number of sessions that the server has opened so far. The query itself opens one more."""
        with self.cursor() as cursor:
            cursor.execute(_SESSIONS[self.kind])
            return int(cursor.fetchall()[0][0])

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """Yield a DB-API cursor in autocommit."""
        if self.kind == "mysql":
            connection: Any = pymysql.connect(host=self.host, port=self.port, user=self.user, autocommit=True)
        else:
            connection = psycopg.connect(self.url, autocommit=True)
        with closing(connection), connection.cursor() as cursor:
            yield cursor


@dataclass(frozen=True)
class Order:
    """An order: copy ``table`` (``schema.table``, keys 1 to ``rows``; 0: any; for this package also several tables,
    separated by commas, with ``rows`` together) to the folder ``target``, which does not
    exist.

    ``meanwhile`` are statements to execute after the initial position is recorded: changes to rewind. ``as_of`` is the
    position at which the copy is exact; empty: the current one. ``standing_slot`` is the slot that keeps the log for
    it. A contender that reads the log reduces ``files`` of the log, with ``rows`` row images of the table, to net
    changes, and writes nothing. ``night`` numbers the later runs into one target: such a run rolls the last copy
    forward, after the statements ``before`` were executed. ``format`` is the format of the copies. ``limits``
    are fields of ``LimitOptions``. ``way`` is the way in which a contender of `bench truth` copies.
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
    format: str = "parquet"
    limits: Mapping[str, Any] | None = None
    way: str = ""


Work = Callable[[Order], Mapping[str, Any]]
"""Executes an order. Returns ``rows``, the number of rows; ``seconds``, if less than the whole call counts; and other
measured values by name. All values must be JSON."""


class Contender:
    """The parent's side: starts ``harness.bench.peers.<name>``, and sends orders to it."""

    def __init__(self, name: str, address: Address, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = log
        # This also removes files that a peer or its JVM leaves behind.
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

    def ready(self, limit: float | None = None) -> None:
        """Wait until the contender can take orders.

        :param limit: as in `run`.
        :raises HarnessError: the contender could not start.
        """
        self._answer(limit)

    def run(self, order: Order, limit: float | None = None) -> dict[str, Any]:
        """Execute an order. Return its result, with ``seconds``, ``peak_rss_mb`` and ``cpu_seconds`` of all processes.

        :param limit: seconds after which the contender and all its processes are killed; None: no limit.
        :raises HarnessError: the contender failed, did not finish in time, or handled another number of rows.
        """
        assert self._process.stdin is not None
        before = cpu_seconds(self.pid)
        with TreeMemory(self.pid) as memory:
            self._process.stdin.write(json.dumps(asdict(order)) + "\n")
            self._process.stdin.flush()
            found = self._answer(limit)
        if order.rows and found["rows"] != order.rows:
            raise HarnessError(f"{self.name} handled {found['rows']:,} rows of {order.table}, not {order.rows:,}")
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
            self._kill()
        finally:
            self._scratch.cleanup()

    def _kill(self) -> None:
        """Kill the contender and its descendants. Its server sessions then end, too."""
        for pid in tree(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _answer(self, limit: float | None) -> dict[str, Any]:
        assert self._process.stdout is not None
        # The contender writes one line for each order, so nothing is left in the buffer of `stdout`.
        if not select.select([self._process.stdout], [], [], limit)[0]:
            self._kill()
            raise HarnessError(f"not finished in {limit:,.0f} s (see {self._log})")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if error := answer.get("error"):
            raise HarnessError(f"{self.name} failed: {error} (see {self._log})")
        return answer


def main() -> None:
    """The child's side. Its stdout is redirected to stderr, because libraries and the JVM print to stdout."""
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
