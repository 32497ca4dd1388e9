"""Writers that commit small transactions as fast as they can, in a separate process."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Self

import pymysql

from harness.bench.tables import SCHEMA
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer

WRITERS = 4


@dataclass(frozen=True)
class Span:
    """The work of the writers in a period of time. ``worst_seconds`` is the time of the longest transaction."""

    commits: int
    seconds: float
    worst_seconds: float

    @property
    def per_second(self) -> float:
        return self.commits / self.seconds


class Traffic:
    """``WRITERS`` sessions that move amounts between rows of ``table``, one move per transaction, until the block
    ends."""

    def __init__(self, server: MysqlServer, table: str, rows: int) -> None:
        _create_procedure(server, table)
        context = get_context("spawn")
        self._commits: Any = context.Array("Q", WRITERS, lock=False)
        self._worst: Any = context.Array("d", WRITERS, lock=False)
        self._stop = context.Event()
        self._process = context.Process(
            target=_write, args=(server.host, server.port, rows, self._commits, self._worst, self._stop), daemon=True
        )
        self._started = (0.0, 0)

    def begin(self) -> None:
        """Begin a span."""
        for writer in range(WRITERS):
            self._worst[writer] = 0.0
        self._started = (time.perf_counter(), sum(self._commits))

    def span(self) -> Span:
        """Return the work since ``begin``.

        :raises HarnessError: the writers ended with an error.
        """
        if not self._process.is_alive():
            raise HarnessError("the writers ended with an error")
        since, commits = self._started
        return Span(sum(self._commits) - commits, time.perf_counter() - since, max(self._worst))

    def __enter__(self) -> Self:
        self._process.start()
        while not sum(self._commits):
            if not self._process.is_alive():
                raise HarnessError("the writers ended with an error")
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._process.join()


def _create_procedure(server: MysqlServer, table: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"DROP PROCEDURE IF EXISTS {SCHEMA}.move")
        # Update the lower key first, to avoid deadlocks, which would disturb the measurement.
        cursor.execute(
            f"CREATE PROCEDURE {SCHEMA}.move(one BIGINT, other BIGINT) BEGIN START TRANSACTION; "
            f"UPDATE {table} SET price = price - 1 WHERE id = LEAST(one, other); "
            f"UPDATE {table} SET price = price + 1 WHERE id = GREATEST(one, other); COMMIT; END"
        )


def _write(host: str, port: int, rows: int, commits: Any, worst: Any, stop: Any) -> None:
    threads = [
        threading.Thread(target=_one_writer, args=(number, host, port, rows, commits, worst, stop))
        for number in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _one_writer(number: int, host: str, port: int, rows: int, commits: Any, worst: Any, stop: Any) -> None:
    chance = random.Random(number)
    with (
        pymysql.connect(host=host, port=port, user="root", autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        while not stop.is_set():
            started = time.perf_counter()
            cursor.execute(f"CALL {SCHEMA}.move({chance.randint(1, rows)}, {chance.randint(1, rows)})")
            worst[number] = max(worst[number], time.perf_counter() - started)
            commits[number] += 1
