"""The chunked read that many pipelines do today: key ranges one after another, each at a time of its own, and no more.

It is here to be measured against: what it returns is the shop at no point in time.
"""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

import pymysql

from harness import shop
from harness.mysql_server import MysqlServer
from harness.shop_replay import KEYS, Row, comparable_row, select_list

CHUNK_ROWS = 20_000


class PlainRead:
    """Reads all tables in a thread of its own; ``rows`` is complete once the block has ended.

    :param pause: seconds between two chunks, to spread the read over the time that the run takes.
    """

    def __init__(self, server: MysqlServer, columns: dict[str, list[str]], pause: float) -> None:
        self.rows: dict[str, Counter[Row]] = {table: Counter() for table in columns}
        self._columns = columns
        self._server = server
        self._pause = pause
        self._failure: BaseException | None = None
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hurry.set()
        self._thread.join()
        if self._failure and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            with self._server.connect() as connection:
                for table, columns in self._columns.items():
                    self._read(connection, table, columns)
        except BaseException as error:
            self._failure = error

    def _read(self, connection: pymysql.Connection[Any], table: str, columns: list[str]) -> None:
        key = columns[: KEYS[table]]
        select = f"SELECT {select_list(columns)} FROM {shop.SCHEMA}.{table}"
        if not key:
            self.rows[table] += Counter(self._rows(connection, select, (), columns))
            return
        order = f"ORDER BY {', '.join(key)} LIMIT {CHUNK_ROWS}"
        beyond = f"WHERE ({', '.join(key)}) > ({', '.join(['%s'] * len(key))})"
        chunk = self._rows(connection, f"{select} {order}", (), columns)
        while chunk:
            self.rows[table].update(chunk)
            self._hurry.wait(self._pause)
            chunk = self._rows(connection, f"{select} {beyond} {order}", chunk[-1][: len(key)], columns)

    def _rows(self, connection: pymysql.Connection[Any], sql: str, bound: Row, columns: list[str]) -> list[Row]:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            cursor.execute(sql, bound)
            return [comparable_row(row, columns) for row in cursor.fetchall()]
