"""The demo on PostgreSQL. The proof is PostgreSQL's own recovery, which does not use logical decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from harness.demo import postgres_shop, postgres_writers
from harness.demo.plain_read import PlainRead
from harness.demo.stage import KEYS, SCHEMA, Row
from harness.demo.writers import Writers
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer

PASSWORD = "demo-password"
_CASTS = {"tags": "text", "profile": "text", "status": "text", "weight": "double precision"}
"""Casts of columns whose Python values would differ from those in the published files."""


class PostgresStage:
    """``stage.Stage`` for PostgreSQL."""

    kind = "postgres"
    proof = "PostgreSQL's own recovery (a physical standby stopped at that LSN)"

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.title = f"PostgreSQL {server.query('SHOW server_version')[0][0]} on port {server.port}"
        self.columns: dict[str, list[str]] = {}
        self._server = server
        self._folder = folder
        self._recovery: PostgresRecovery | None = None

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator[PostgresStage]:
        with PostgresServer.start(folder / "primary") as server:
            stage = cls(server, folder)
            try:
                yield stage
            finally:
                if stage._recovery is not None:
                    stage._recovery.close()

    def fill(self, rows: int) -> None:
        with self._server.connect() as connection:
            postgres_shop.create(connection, rows)
            for table in KEYS:
                cursor = connection.execute(f"SELECT * FROM {SCHEMA}.{table} LIMIT 0")
                self.columns[table] = [column.name for column in cursor.description or ()]

    def copy_base(self) -> None:
        self._recovery = PostgresRecovery(self._server, self._folder / "recovered")

    def connection(self) -> dict[str, object]:
        # Only the owner of a table can publish it. The user that copies needs only SELECT and REPLICATION.
        for statement in (
            f"CREATE ROLE copier LOGIN REPLICATION PASSWORD '{PASSWORD}'",
            f"GRANT USAGE ON SCHEMA {SCHEMA} TO copier",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO copier",
            f"CREATE PUBLICATION for_the_lake FOR TABLES IN SCHEMA {SCHEMA} WITH (publish_via_partition_root = true)",
        ):
            self._server.query(statement)
        return {
            "conn_type": "cdc_postgres",
            "host": self._server.host,
            "port": self._server.port,
            "login": "copier",
            "password": PASSWORD,
            "schema": "postgres",
            "extra": {"publication": "for_the_lake"},
        }

    def writers(self, per_second: float) -> Writers:
        return Writers(
            postgres_writers.session(self._server.connect),
            postgres_writers.KINDS,
            postgres_writers.retried,
            accounts=self._server.query(f"SELECT count(*) FROM {SCHEMA}.accounts")[0][0],
            per_second=per_second,
        )

    def plain_read(self, pause: float) -> PlainRead:
        return PlainRead(
            lambda: _session(self._server.connect()),
            {table: self._select(table) for table in self.columns},
            {table: names[: KEYS[table]] for table, names in self.columns.items()},
            lambda table, row: self.comparable_row(row, self.columns[table]),
            pause,
        )

    def rebuild(self, position: str) -> str:
        assert self._recovery is not None
        self._recovery.advance_to(position)
        return "the write-ahead log replayed by a second server"

    def truth(self, table: str) -> Counter[Row]:
        assert self._recovery is not None
        with _session(self._recovery.connect()) as connection:
            rows = connection.execute(self._select(table))
            return Counter(self.comparable_row(row, self.columns[table]) for row in rows)

    def comparable_row(self, row: Row, columns: list[str]) -> Row:
        return tuple(_comparable(value) for value in row)

    def _select(self, table: str) -> str:
        names = [f"{name}::{_CASTS[name]}" if name in _CASTS else name for name in self.columns[table]]
        return f"SELECT {', '.join(names)} FROM {SCHEMA}.{table}"


@contextmanager
def _session(connection: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    with connection:
        connection.execute("SET TimeZone TO 'UTC'")
        yield connection


def _comparable(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value
