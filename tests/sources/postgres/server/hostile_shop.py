"""A small shop on a private PostgreSQL server, to be copied under any settings of its user's sessions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg

from harness.postgres_server import PostgresServer
from tests.contract.databases import PASSWORD, PostgresDatabase
from tests.contract.rewound import copied
from tests.sources.postgres.server.hostile_settings import hostile_values, set_for_role, some_of_them

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 100
TABLES = {
    "parts": (
        "id int PRIMARY KEY, at timestamptz, day date, note text, amount numeric(20, 6), ratio float8",
        "(i, timestamptz '2024-03-31 01:30:00Z' + i * interval '1s', '2024-02-29', 'straße ☂', i / 7.0, i / 7.0)",
    ),
    "texts": (
        'name text COLLATE "C" PRIMARY KEY, raw bytea, span interval, price money, flags text[]',
        "(i || ' é', '\\x00ff', interval '1 day 2 hours', '12.34', '{NULL,\"NULL\",x}')",
    ),
    "keyless": ("a int, twice int, j jsonb", "(i / 2, i, jsonb_build_object('a', i))"),
}


@dataclass
class Shop:
    """A database on a private server, with a role ``reader`` with the privileges that the documentation requires."""

    server: PostgresServer
    db: PostgresDatabase
    root: psycopg.Connection[Any]

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.root.execute(statement.encode())

    def write(self) -> None:
        self.execute(
            "UPDATE shop.parts SET note = 'new', ratio = -ratio WHERE id % 5 = 0",
            "DELETE FROM shop.texts WHERE name < '3'",
            "INSERT INTO shop.texts VALUES ('zz'), ('0 é')",
            "DELETE FROM shop.keyless WHERE a % 4 = 0",
            "INSERT INTO shop.keyless VALUES (1, 2, 'null')",
        )

    def fill(self) -> None:
        for name, (_, row) in TABLES.items():
            self.execute(
                f"TRUNCATE shop.{name}",
                f"INSERT INTO shop.{name} SELECT {row[1:-1]} FROM generate_series(0, {ROWS - 1}) i",
                f"ANALYZE shop.{name}",
            )

    def copied(self) -> dict[str, Counter[bytes]]:
        self.fill()
        return copied(self.db, *TABLES, write=self.write)

    def published(self, spark: SparkSession, target: str) -> dict[str, Counter[tuple[Any, ...]]]:
        """The rows of each table as a whole run publishes them."""
        # Imported late: it needs PySpark.
        from harness.pipeline import Pipeline, published_counts

        self.fill()
        run = Pipeline(spark, self.db.settings, target, [f"shop.{name}" for name in TABLES], chunk_rows=20)
        run.record()
        self.write()
        published: dict[str, str] = run.finish()["published"]
        return {name: published_counts(uri)[1] for name, uri in published.items()}


@contextmanager
def opened(server: PostgresServer) -> Iterator[Shop]:
    """Make the shop, and a role ``reader`` that may do what the documentation asks for. The server is thrown away."""
    with server.connect() as root:
        made = Shop(server, PostgresDatabase(server, "postgres"), root)
        made.db.schema = "shop"
        made.db.settings = replace(made.db.settings, user="reader", password=PASSWORD)
        made.execute(
            f"CREATE ROLE reader LOGIN REPLICATION PASSWORD '{PASSWORD}'",
            "GRANT CREATE ON DATABASE postgres TO reader",
            "CREATE SCHEMA shop AUTHORIZATION reader",
            f"CREATE TABLE shop.parts ({TABLES['parts'][0]}) PARTITION BY RANGE (id)",
            "CREATE TABLE shop.low PARTITION OF shop.parts FOR VALUES FROM (0) TO (50)",
            "CREATE TABLE shop.high PARTITION OF shop.parts FOR VALUES FROM (50) TO (MAXVALUE)",
            f"CREATE TABLE shop.texts ({TABLES['texts'][0]})",
            f"CREATE TABLE shop.keyless ({TABLES['keyless'][0]})",
            *(f"ALTER TABLE shop.{name} OWNER TO reader" for name in (*TABLES, "low", "high")),
            *(f"ALTER TABLE shop.{name} REPLICA IDENTITY FULL" for name in (*TABLES, "low", "high")),
        )
        yield made


def copy_under_random_values(seed: int, shop: Shop, spark: SparkSession, target: str) -> None:
    """Copy the shop under its server's defaults, and under values of about half of all settings.

    :raises AssertionError: the two copies differ.
    """
    expected = shop.published(spark, f"{target}/defaults")
    assert {name: counts.total() for name, counts in expected.items()} == {f"shop.{name}": ROWS for name in TABLES}
    chosen = some_of_them(hostile_values(shop.root), random.Random(seed))
    try:
        set_for_role(shop.root, "reader", chosen)
        assert shop.published(spark, f"{target}/chosen") == expected, f"seed {seed}: {chosen}"
    finally:
        set_for_role(shop.root, "reader", {})
