"""A plain chunked read, as many pipelines do it: key ranges one after the other, each read at its own time.

The demo compares it with the copy: its result is not the shop at any position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from harness.background import Background

CHUNK_ROWS = 20_000

Row = tuple[Any, ...]


class PlainRead(Background):
    """Reads all tables in its own thread. ``rows`` is complete after the end of the block.

    :param session: opens a DB-API connection in autocommit.
    :param selects: the SELECT of each whole table, without ORDER BY.
    :param keys: each table's key columns, which are its first columns; empty: the table is read in one statement.
    :param comparable: converts a row of a table to its comparable form.
    :param pause: seconds between two chunks, to spread the read over the time of the run.
    """

    def __init__(
        self,
        session: Callable[[], AbstractContextManager[Any]],
        selects: dict[str, str],
        keys: dict[str, list[str]],
        comparable: Callable[[str, Row], Row],
        pause: float,
    ) -> None:
        super().__init__()
        self.rows: dict[str, Counter[Row]] = {table: Counter() for table in selects}
        self._session = session
        self._selects = selects
        self._keys = keys
        self._comparable = comparable
        self._pause = pause

    def _work(self, number: int) -> None:
        with self._session() as connection, connection.cursor() as cursor:
            for table in self._selects:
                self._read(cursor, table)

    def _read(self, cursor: Any, table: str) -> None:
        key, select = self._keys[table], self._selects[table]
        if not key:
            self.rows[table].update(self._rows(cursor, table, select, ()))
            return
        order = f"ORDER BY {', '.join(key)} LIMIT {CHUNK_ROWS}"
        beyond = f"WHERE ({', '.join(key)}) > ({', '.join(['%s'] * len(key))})"
        chunk = self._rows(cursor, table, f"{select} {order}", ())
        while chunk:
            self.rows[table].update(chunk)
            # Once the block ends, the rest is read without a pause.
            self._stop.wait(self._pause)
            chunk = self._rows(cursor, table, f"{select} {beyond} {order}", chunk[-1][: len(key)])

    def _rows(self, cursor: Any, table: str, sql: str, bound: Row) -> list[Row]:
        cursor.execute(sql, bound)
        return [self._comparable(table, row) for row in cursor.fetchall()]
