"""Shards on a real server: tables of one source whose rows move from one to another, and their merged copies."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.lake import MergeOptions
from airflow_provider_cdc.core.storage.folder import Storage
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from harness.postgres_server import PostgresServer
from tests.sinks.catalogs import plain_catalog

MERGED = "shop.orders"
Row = tuple[Any, ...]
TABLES = {
    "orders_1": "k INT NOT NULL, tag VARCHAR(9) NOT NULL, v INT NOT NULL DEFAULT 7",
    # The columns of the others come in another order, have no default, or may be null.
    "orders_2": "v INT NOT NULL, tag VARCHAR(9) NOT NULL, k INT NOT NULL",
    "orders_3": "tag VARCHAR(9) NOT NULL, v INT, k INT NOT NULL",
}


class Shards:
    """The tables ``orders_1`` to ``orders_3`` of one schema, and their merged copies in one lake."""

    def __init__(
        self,
        server: MysqlServer | PostgresServer,
        spark: SparkSession,
        schema: str,
        folder: Path,
        format: str = "parquet",
        **merging: Any,
    ) -> None:
        self.server = server
        self.schema = schema
        self.number = 0
        self._spark = spark
        self._folder = folder
        self._format = format
        self._merging = {"merge": {MERGED: [f"{schema}.orders_*"]}, **merging}
        for name, columns in TABLES.items():
            if isinstance(server, MysqlServer):
                # Texts that differ in case or in trailing spaces are different keys, as in PostgreSQL.
                columns = columns.replace("VARCHAR(9)", "VARCHAR(9) COLLATE utf8mb4_0900_bin")
            self.do(f"CREATE TABLE {self.of(name)} ({columns}, PRIMARY KEY (k, tag))")
            if isinstance(server, PostgresServer):
                self.do(f"ALTER TABLE {self.of(name)} REPLICA IDENTITY FULL")

    @property
    def kind(self) -> str:
        return "mysql" if isinstance(self.server, MysqlServer) else "postgres"

    @property
    def names(self) -> list[str]:
        return [f"{self.schema}.{name}" for name in TABLES]

    def of(self, name: str) -> str:
        return f"{self.schema}.{name}"

    def do(self, *statements: str) -> None:
        """Execute statements in one transaction."""
        with ExitStack() as stack:
            if isinstance(self.server, MysqlServer):
                connection = stack.enter_context(self.server.connect())
                cursor = stack.enter_context(connection.cursor())
                cursor.execute("BEGIN")
                for statement in statements:
                    cursor.execute(statement)
                cursor.execute("COMMIT")
                return
            other = stack.enter_context(self.server.connect())
            for statement in ("BEGIN", *statements, "COMMIT"):
                other.execute(statement)

    def rows(self, table: str) -> Counter[Row]:
        """The rows of one shard, from a plain SELECT."""
        return Counter(map(tuple, self.server.query(f"SELECT k, tag, v FROM {self.of(table)}")))

    def truth(self) -> Counter[Row]:
        """The rows of all shards, with their tables. Nobody must write meanwhile."""
        return Counter({(*row, table): count for table in TABLES for row, count in self.rows(table).items()})

    def position(self) -> str:
        """The present position, as text."""
        if isinstance(self.server, MysqlServer):
            return str(self.server.query("SELECT @@gtid_executed")[0][0])
        return str(self.server.query("SELECT pg_current_wal_flush_lsn()")[0][0])

    def run(
        self, refresh: str = "full", patterns: list[str] | None = None, target: str = "lake", **more: Any
    ) -> Pipeline:
        """The next run; it is not begun yet."""
        self.number += 1
        postgres = {"standing_slot": "nightly"} if isinstance(self.server, PostgresServer) else {}
        merging = MergeOptions(**{**self._merging, **more.pop("merging", {})})
        return Pipeline(
            self._spark,
            settings_of(self.server),
            (self._folder / target).as_uri(),
            patterns or [f"{self.schema}.*"],
            run_id=f"202601{self.number:02}T000000Z-00000000",
            refresh=refresh,
            format=self._format,
            chunk_rows=20,
            merging=merging,
            **{**postgres, **more},
        )

    def published(self, run: Pipeline) -> Counter[Row]:
        """The rows of the merged copy of a run, read without this package. A row ends with its table, if it has it."""
        if self._format == "iceberg":
            table = plain_catalog(run.target).load_table(tuple(MERGED.split(".")))
            snapshot = table.metadata.snapshot_by_name(f"cdc-{run.run.uri.rpartition('/')[2]}")
            assert snapshot is not None
            rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        else:
            rows = pq.read_table(Storage(run.found["consolidate"]["published"][MERGED]).path())
        own = [name for name in ("k", "tag", "v", "_table") if name in rows.column_names]
        return Counter(zip(*(rows[name].to_pylist() for name in own), strict=True))


class Writers:
    """A random history. It moves rows between shards, but a key is in one shard at a time."""

    def __init__(self, shards: Shards, seed: int) -> None:
        self._shards = shards
        self._rng = random.Random(seed)
        self._where: dict[tuple[int, str], str] = {}

    def write(self, transactions: int) -> None:
        for _ in range(transactions):
            statements: list[str] = []
            for _ in range(self._rng.randint(1, 4)):
                statements += self._act()
            self._shards.do(*statements)

    def _act(self) -> list[str]:
        rng = self._rng
        key = rng.randint(0, 60), rng.choice(("a", "A", "b ", "b"))
        there = self._where.get(key)
        table, value = rng.choice(list(TABLES)), rng.randint(0, 99)
        insert = f"INSERT INTO {self._shards.of(table)} (k, tag, v) VALUES ({key[0]}, '{key[1]}', {value})"
        if there is None:
            self._where[key] = table
            return [insert]
        where = f"WHERE k = {key[0]} AND tag = '{key[1]}'"
        act = rng.choice(("update", "move", "move", "delete"))
        if act == "update":
            return [f"UPDATE {self._shards.of(there)} SET v = {value} {where}"]
        delete = f"DELETE FROM {self._shards.of(there)} {where}"
        if act == "delete":
            del self._where[key]
            return [delete]
        self._where[key] = table
        # Some movers copy first, others delete first.
        return [delete, insert] if table == there or rng.random() < 0.5 else [insert, delete]
