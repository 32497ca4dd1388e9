"""Events that break the proof during a run stop it with an error that names the object. Nothing is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import (
    ExactnessError,
    ImageNotWhole,
    LogGone,
    SchemaChanged,
    SourceReplaced,
)
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.consistency.acting import WHEN, run_through
from tests.seeds import some
from tests.servers import throw_away_mysql

PURGE = "PURGE BINARY LOGS"
"""As far as the file that is being written."""


@dataclass(frozen=True)
class Hazard:
    """Statements that one session runs in the middle of a run, and the error they must end it with."""

    name: str
    statements: tuple[str, ...]
    error: type[ExactnessError]
    names: str = "orders"


HAZARDS = (
    Hazard("add a column", ("ALTER TABLE orders ADD COLUMN extra INT",), SchemaChanged),
    Hazard("add a column instantly", ("ALTER TABLE orders ADD COLUMN extra INT, ALGORITHM=INSTANT",), SchemaChanged),
    Hazard("change a type", ("ALTER TABLE orders MODIFY amount DOUBLE",), SchemaChanged),
    Hazard("rebuild as MyISAM", ("ALTER TABLE orders ENGINE=MyISAM",), SchemaChanged),
    Hazard("truncate", ("TRUNCATE TABLE orders",), SchemaChanged),
    Hazard("drop a partition", ("ALTER TABLE parts DROP PARTITION p0",), SchemaChanged, "parts"),
    Hazard("drop", ("DROP TABLE orders",), SchemaChanged),
    Hazard(
        "load a dump that is not logged",
        (
            "SET sql_log_bin=0",
            "CREATE TABLE o2 LIKE orders",
            "DROP TABLE orders",
            "RENAME TABLE o2 TO orders",
            "INSERT INTO orders VALUES (1, 10, 'y'), (300, 1, 'z')",
        ),
        SchemaChanged,
    ),
    Hazard("swap by rename", ("CREATE TABLE o2 LIKE orders", "RENAME TABLE orders TO o3, o2 TO orders"), SchemaChanged),
    Hazard(
        "add a cascading key",
        ("ALTER TABLE lines ADD FOREIGN KEY (o) REFERENCES orders(id) ON DELETE CASCADE",),
        SchemaChanged,
        "lines",
    ),
    Hazard(
        "minimal image",
        ("SET SESSION binlog_row_image=MINIMAL", "UPDATE orders SET amount=0 WHERE id=3"),
        ImageNotWhole,
    ),
    Hazard(
        "minimal image of a delete",
        ("SET SESSION binlog_row_image=MINIMAL", "DELETE FROM orders WHERE id=4"),
        ImageNotWhole,
    ),
    Hazard(
        "noblob image", ("SET SESSION binlog_row_image=NOBLOB", "UPDATE orders SET amount=0 WHERE id=5"), ImageNotWhole
    ),
    Hazard(
        "statement",
        ("SET SESSION binlog_format=STATEMENT", "UPDATE orders SET amount=0 WHERE id=6"),
        ImageNotWhole,
        "STATEMENT",
    ),
    Hazard(
        "statement through a view",
        (
            "CREATE VIEW window_on AS SELECT * FROM orders",
            "SET SESSION binlog_format=STATEMENT",
            "DELETE FROM window_on WHERE id=7",
        ),
        ImageNotWhole,
        "",
    ),
    Hazard("commits out of order", ("SET GLOBAL binlog_order_commits=OFF",), ExactnessError, "binlog_order_commits"),
    Hazard(
        "commits out of order for a while",
        ("SET GLOBAL binlog_order_commits=OFF", "DO SLEEP(0.1)", "SET GLOBAL binlog_order_commits=ON"),
        ExactnessError,
        "binlog_order_commits",
    ),
    Hazard("row image for new sessions", ("SET GLOBAL binlog_row_image=MINIMAL",), ExactnessError, "binlog_row_image"),
    Hazard("format for new sessions", ("SET GLOBAL binlog_format=STATEMENT",), ExactnessError, "binlog_format"),
    Hazard(
        "anonymous transactions",
        ("SET GLOBAL gtid_mode=ON_PERMISSIVE", "SET GLOBAL gtid_mode=OFF_PERMISSIVE"),
        ExactnessError,
        "gtid_mode",
    ),
    Hazard(
        "anonymous transactions for a while",
        (
            "SET GLOBAL gtid_mode=ON_PERMISSIVE",
            "SET GLOBAL gtid_mode=OFF_PERMISSIVE",
            "UPDATE orders SET amount=7 WHERE id IN (3, 190)",
            "SET GLOBAL gtid_mode=ON_PERMISSIVE",
            "SET GLOBAL gtid_mode=ON",
        ),
        LogGone,
        "anonymous",
    ),
    Hazard(
        "log purged",
        (
            "UPDATE orders SET amount=1",
            "FLUSH BINARY LOGS",
            "UPDATE orders SET amount=2",
            "FLUSH BINARY LOGS",
            PURGE,
        ),
        LogGone,
        "",
    ),
    Hazard("history reset", ("RESET BINARY LOGS AND GTIDS", "UPDATE orders SET amount=3"), ExactnessError, ""),
)

RESTORE = (
    "SET GLOBAL binlog_order_commits=ON",
    "SET GLOBAL binlog_row_image=FULL",
    "SET GLOBAL binlog_format=ROW",
)


@pytest.fixture(scope="module")
def own_server() -> Iterator[MysqlServer]:
    """A server whose global settings may be broken."""
    with throw_away_mysql() as server:
        yield server


def _prepare(server: MysqlServer) -> None:
    server.query("DROP DATABASE IF EXISTS shop")
    server.query("CREATE DATABASE shop")
    with server.connect(database="shop") as connection, connection.cursor() as cursor:
        for statement in RESTORE:
            cursor.execute(statement)
        for mode in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
            if cursor.execute("SELECT 1 FROM dual WHERE @@global.gtid_mode <> 'ON'"):
                cursor.execute(f"SET GLOBAL gtid_mode={mode}")
        cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY, amount DECIMAL(10,2) NOT NULL, note TEXT)")
        cursor.execute(
            "CREATE TABLE parts (id INT PRIMARY KEY) PARTITION BY RANGE (id) "
            "(PARTITION p0 VALUES LESS THAN (50), PARTITION p1 VALUES LESS THAN MAXVALUE)"
        )
        cursor.execute("CREATE TABLE `lines` (o INT NOT NULL, n INT, PRIMARY KEY (o, n))")
        cursor.executemany("INSERT INTO orders VALUES (%s, 1, 'x')", [(number,) for number in range(1, 201)])
        cursor.executemany("INSERT INTO parts VALUES (%s)", [(number,) for number in range(100)])
        cursor.execute("FLUSH BINARY LOGS")


def _provoke(server: MysqlServer, hazard: Hazard) -> None:
    with server.connect(database="shop") as connection, connection.cursor() as cursor:
        for statement in hazard.statements:
            if statement == PURGE:
                server.purge_log()
                continue
            cursor.execute(statement.replace("lines ", "`lines` "))
            cursor.fetchall()


@pytest.mark.slow
@pytest.mark.parametrize("when", some(*WHEN[::-1]))
@pytest.mark.parametrize("hazard", HAZARDS, ids=[hazard.name for hazard in HAZARDS])
def test_a_hazard_inside_the_run_stops_it(
    hazard: Hazard, when: str, own_server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    _prepare(own_server)
    options: dict[str, Any] = {"chunk_rows": 40, "chunk_pause": 0.05, "on_schema_change": "fail"}
    run = Pipeline(spark, settings_of(own_server), tmp_path.as_uri(), ["shop.*"], **options)
    run.record()

    with pytest.raises(hazard.error) as caught:
        run_through(run, when, lambda: _provoke(own_server, hazard))

    assert hazard.names.lower() in str(caught.value).lower()
    assert "Hint:" in str(caught.value)
    assert not list(tmp_path.glob("shop.*")), "something was published"


@pytest.mark.slow
def test_a_run_without_hazards_is_published(own_server: MysqlServer, spark: SparkSession, tmp_path: Path) -> None:
    _prepare(own_server)
    run = Pipeline(spark, settings_of(own_server), tmp_path.as_uri(), ["shop.*"], chunk_rows=40)
    run.record()
    run.finish()
    assert {path.name for path in tmp_path.glob("shop.*")} == {"shop.orders", "shop.parts", "shop.lines"}


@pytest.mark.slow
def test_another_server_at_the_same_address_is_refused(
    mysql_factory: Callable[..., MysqlServer], spark: SparkSession, tmp_path: Path
) -> None:
    server = mysql_factory({})
    _prepare(server)
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["shop.*"], chunk_rows=40)
    run.record()
    # A failover as the run sees it: the same address and data, another server_uuid.
    server.stop()
    (server.directory / "data" / "auto.cnf").unlink()
    server.restart()
    with pytest.raises(SourceReplaced):
        run.snapshot()
