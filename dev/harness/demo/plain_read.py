"""The chunked read that many pipelines do today: key ranges one after another, each at a time of its own, and no more.

It is here to be measured against: what it returns is the shop at no point in time.
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
    """Reads all tables in a thread of its own; ``rows`` is complete once the block has ended.

    :param session: opens a DB-API connection in autocommit.
    :param selects: the SELECT of each whole table, without ORDER BY.
    :param keys: each table's key columns, which are its first ones; none: it is read in one go.
    :param comparable: brings a row of a table into its comparable form.
    :param pause: seconds between two chunks, to spread the read over the time that the run takes.
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
