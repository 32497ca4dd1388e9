"""Writers that commit small transactions as fast as they can, in a separate process."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Self

import psycopg
import pymysql

from harness.bench.tables import SCHEMA
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer

WRITERS = 4
WRITER = "writer"
"""The ``application_name`` of the writers' sessions on PostgreSQL."""


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
    """``WRITERS`` sessions that call the procedure ``move`` with random keys of 1 to ``rows`` until the block ends.

    :param connect: opens a session in autocommit. It must be possible to pickle it.
    """

    def __init__(self, connect: Callable[[], Any], rows: int) -> None:
        context = get_context("spawn")
        self._commits: Any = context.Array("Q", WRITERS, lock=False)
        self._worst: Any = context.Array("d", WRITERS, lock=False)
        self._stop = context.Event()
        self._process = self._process_of(connect, rows)
        self._started = (0.0, 0)

    def _process_of(self, connect: Callable[[], Any], rows: int) -> Any:
        """Return the process of the writers."""
        arguments = (connect, rows, self._commits, self._worst, self._stop)
        return get_context("spawn").Process(target=_write, args=arguments, daemon=True)

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


class MysqlTraffic(Traffic):
    """Sessions that move amounts between rows of ``table``, one move per transaction."""

    def __init__(self, server: MysqlServer, table: str, rows: int) -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute(f"DROP PROCEDURE IF EXISTS {SCHEMA}.move")
            cursor.execute(
                f"CREATE PROCEDURE {SCHEMA}.move(one BIGINT, other BIGINT) BEGIN START TRANSACTION; "
                f"{_move(table)} COMMIT; END"
            )
        connect = partial(pymysql.connect, host=server.host, port=server.port, user="root", autocommit=True)
        super().__init__(connect, rows)


class PostgresTraffic(Traffic):
    """Sessions that move amounts between rows of ``table``, one move per transaction."""

    def __init__(self, server: PostgresServer, table: str, rows: int) -> None:
        server.query(
            f"CREATE OR REPLACE PROCEDURE {SCHEMA}.move(one bigint, other bigint) LANGUAGE sql AS $$ {_move(table)} $$"
        )
        address = f"postgresql://{SUPERUSER}@{server.host}:{server.port}/postgres?application_name={WRITER}"
        super().__init__(partial(psycopg.connect, address, autocommit=True), rows)


def _move(table: str) -> str:
    # Update the lower key first, to avoid deadlocks, which would disturb the measurement.
    return (
        f"UPDATE {table} SET price = price - 1 WHERE id = LEAST(one, other); "
        f"UPDATE {table} SET price = price + 1 WHERE id = GREATEST(one, other);"
    )


def _write(connect: Callable[[], Any], rows: int, commits: Any, worst: Any, stop: Any) -> None:
    threads = [
        threading.Thread(target=_one_writer, args=(number, connect, rows, commits, worst, stop))
        for number in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _one_writer(number: int, connect: Callable[[], Any], rows: int, commits: Any, worst: Any, stop: Any) -> None:
    chance = random.Random(number)
    with closing(connect()) as connection, connection.cursor() as cursor:
        while not stop.is_set():
            started = time.perf_counter()
            cursor.execute(f"CALL {SCHEMA}.move({chance.randint(1, rows)}, {chance.randint(1, rows)})")
            worst[number] = max(worst[number], time.perf_counter() - started)
            commits[number] += 1
