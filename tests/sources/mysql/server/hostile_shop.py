"""A small shop on a private MySQL server, to be copied under any values of its session variables."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pymysql

from harness.mysql_server import MysqlServer
from tests.contract.databases import MysqlDatabase
from tests.contract.rewound import copied
from tests.sources.mysql.server.hostile_variables import hostile_values, set_globally, some_of_them

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES: dict[str, tuple[str, str]] = {
    "parts": (
        "id INT PRIMARY KEY, made TIMESTAMP(3) NULL, code CHAR(5), note VARCHAR(20)",
        "({0}, '2024-03-31 01:30:00.{0:03}', 'a', IF({0} % 3, 'straße ☂', NULL))",
    ),
    "texts": (
        "name VARCHAR(30) PRIMARY KEY, old VARCHAR(9) CHARACTER SET latin1, amount DECIMAL(20, 6), day DATE",
        "('{0} é', 'é{0}', {0} / 7, '2024-02-29')",
    ),
    "keyless": ("a INT, half INT AS (a * 2) VIRTUAL, at TIME(6)", "({0} DIV 2, DEFAULT, '-838:59:58.5')"),
    "hidden": ("a INT, list JSON", "({0}, '{{\"a\": [{0}, 1.5]}}')"),
}
ROWS = 100


@dataclass
class Shop:
    """A database on a private server. ``root`` is a session that began before any variable was changed."""

    db: MysqlDatabase
    root: pymysql.Connection[Any]

    def execute(self, *statements: str) -> None:
        with self.root.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def fill(self) -> None:
        for name, (_, row) in TABLES.items():
            rows = ", ".join(row.format(number) for number in range(ROWS))
            self.execute(f"TRUNCATE shop.{name}", f"INSERT INTO shop.{name} VALUES {rows}")
        self.execute(*(f"ANALYZE TABLE shop.{name}" for name in TABLES))

    def write(self) -> None:
        self.execute(
            "UPDATE shop.parts SET made = made + INTERVAL 1 DAY, note = 'new' WHERE id % 5 = 0",
            "DELETE FROM shop.texts WHERE name < '3'",
            "INSERT INTO shop.texts VALUES ('zz', NULL, 1, NULL), ('0 é', 'back', 0, NULL)",
            "DELETE FROM shop.keyless WHERE a % 4 = 0",
            "INSERT INTO shop.keyless VALUES (1, DEFAULT, NULL)",
            "UPDATE shop.hidden SET list = JSON_SET(list, '$.a[0]', -1) WHERE a < 30",
        )

    def copied(self) -> dict[str, Counter[bytes]]:
        self.fill()
        return copied(self.db, *TABLES, write=self.write)

    def published(self, spark: SparkSession, target: str) -> dict[str, Counter[tuple[Any, ...]]]:
        """The rows of each table as a whole run publishes them."""
        # Imported late: it needs PySpark.
        from harness.pipeline import Pipeline, published_counts

        self.fill()
        run = Pipeline(spark, self.db.settings, target, ["shop.*"], chunk_rows=20)
        run.record()
        self.write()
        published: dict[str, str] = run.finish()["published"]
        return {name: published_counts(uri)[1] for name, uri in published.items()}


@contextmanager
def opened(server: MysqlServer) -> Iterator[Shop]:
    """Create the shop on a private server, and a user ``reader`` with the privileges that the docs require."""
    root = server.connect(charset="utf8mb4")
    made = Shop(MysqlDatabase(server, "shop"), root)
    made.db.settings = replace(made.db.settings, user="reader", password="")
    made.execute(
        "CREATE DATABASE shop",
        "CREATE DATABASE other",
        "SET time_zone = '+00:00', sql_generate_invisible_primary_key = ON",
        # What the documentation asks for, and what init_connect needs for its part.
        "CREATE USER reader",
        "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO reader",
        "GRANT SELECT, LOCK TABLES, CREATE TEMPORARY TABLES ON shop.* TO reader",
        "GRANT SELECT ON other.* TO reader",
        f"CREATE TABLE shop.parts ({TABLES['parts'][0]}) PARTITION BY RANGE (id) "
        "(PARTITION a VALUES LESS THAN (50), PARTITION b VALUES LESS THAN MAXVALUE)",
        f"CREATE TABLE shop.texts ({TABLES['texts'][0]})",
        f"CREATE TABLE shop.hidden ({TABLES['hidden'][0]})",
        "SET sql_generate_invisible_primary_key = OFF",
        f"CREATE TABLE shop.keyless ({TABLES['keyless'][0]})",
    )
    yield made
    root.close()


def copy_under_random_values(seed: int, shop: Shop, spark: SparkSession, target: str) -> None:
    """Copy the shop under its server's defaults, and under values of about half of all session variables.

    :raises AssertionError: the two copies differ.
    """
    expected = shop.published(spark, f"{target}/defaults")
    assert {name: counts.total() for name, counts in expected.items()} == {f"shop.{name}": ROWS for name in TABLES}
    chosen = some_of_them(hostile_values(shop.root), random.Random(seed))
    try:
        set_globally(shop.root, chosen)
        assert shop.published(spark, f"{target}/chosen") == expected, f"seed {seed}: {chosen}"
    finally:
        set_globally(shop.root, dict.fromkeys(chosen, "DEFAULT"))
