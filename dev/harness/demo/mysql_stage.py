"""The demo on MySQL. The proof is a replay of the binary log by mysql-replication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql

from harness.demo import mysql_shop, mysql_writers
from harness.demo.mysql_replay import ShopReplay, comparable_row, select_list
from harness.demo.plain_read import PlainRead
from harness.demo.stage import KEYS, SCHEMA, Row
from harness.demo.writers import Writers
from harness.mysql_server import MysqlServer

PASSWORD = "demo-password"


class MysqlStage:
    """``stage.Stage`` for MySQL."""

    kind = "mysql"
    proof = "mysql-replication, from a copy made before the writers started"

    def __init__(self, server: MysqlServer) -> None:
        self.title = f"MySQL {server.query('SELECT VERSION()')[0][0]} on port {server.port}"
        self.columns: dict[str, list[str]] = {}
        self._server = server
        self._replay: ShopReplay | None = None

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator[MysqlStage]:
        with MysqlServer.start(folder, options={"binlog_row_metadata": "FULL"}) as server:
            yield cls(server)

    def fill(self, rows: int) -> None:
        with self._server.connect() as connection:
            mysql_shop.create(connection, rows)
        self.columns = {
            table: [
                name
                for (name,) in self._server.query(
                    "SELECT COLUMN_NAME FROM information_schema.COLUMNS "
                    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
                    (SCHEMA, table),
                )
            ]
            for table in KEYS
        }

    def copy_base(self) -> None:
        self._replay = ShopReplay(self._server, self.columns)

    def connection(self) -> dict[str, object]:
        for statement in (
            f"CREATE USER copier@localhost IDENTIFIED BY '{PASSWORD}'",
            "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO copier@localhost",
            f"GRANT SELECT, LOCK TABLES ON {SCHEMA}.* TO copier@localhost",
        ):
            self._server.query(statement)
        return {
            "conn_type": "cdc_mysql",
            "host": self._server.host,
            "port": self._server.port,
            "login": "copier",
            "password": PASSWORD,
        }

    def writers(self, per_second: float) -> Writers:
        return Writers(
            mysql_writers.session(self._server.connect),
            mysql_writers.KINDS,
            mysql_writers.retried,
            accounts=self.truth("accounts").total(),
            per_second=per_second,
        )

    def plain_read(self, pause: float) -> PlainRead:
        return PlainRead(
            self._session,
            {table: f"SELECT {select_list(names)} FROM {SCHEMA}.{table}" for table, names in self.columns.items()},
            {table: names[: KEYS[table]] for table, names in self.columns.items()},
            lambda table, row: comparable_row(row, self.columns[table]),
            pause,
        )

    def rebuild(self, position: str) -> str:
        assert self._replay is not None
        return f"{self._replay.forward_to(position):,} transactions replayed"

    def truth(self, table: str) -> Counter[Row]:
        assert self._replay is not None
        rows = self._replay.rows[table]
        return rows if isinstance(rows, Counter) else Counter(rows.values())

    def comparable_row(self, row: Row, columns: list[str]) -> Row:
        return comparable_row(row, columns)

    @contextmanager
    def _session(self) -> Iterator[pymysql.Connection[Any]]:
        with closing(self._server.connect()) as connection:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION time_zone = '+00:00'")
            yield connection
