"""A transaction that was prepared long before the run, and is committed in its midst, is undone like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import ExactnessError
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.conftest import MysqlFactory


@pytest.fixture
def run(mysql_long_ago: MysqlServer, spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, settings_of(mysql_long_ago), tmp_path.as_uri(), ["shop.*"])


@pytest.fixture
def mysql_long_ago(mysql_factory: MysqlFactory) -> MysqlServer:
    """A server where a transaction is prepared, three log files before the current one."""
    server = mysql_factory({})
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in (
            "CREATE DATABASE shop",
            "CREATE TABLE shop.stock (id INT PRIMARY KEY, left_over INT)",
            "INSERT INTO shop.stock VALUES (1, 10), (2, 20), (3, 30)",
            "SET xa_detach_on_prepare = ON",
            "XA START 'old'",
            "UPDATE shop.stock SET left_over = 0 WHERE id = 2",
            "INSERT INTO shop.stock VALUES (4, 40)",
            "XA END 'old'",
            "XA PREPARE 'old'",
            "FLUSH BINARY LOGS",
            "UPDATE shop.stock SET left_over = 11 WHERE id = 1",
            "FLUSH BINARY LOGS",
            "UPDATE shop.stock SET left_over = 12 WHERE id = 1",
            "FLUSH BINARY LOGS",
        ):
            cursor.execute(statement)
    return server


def test_what_was_prepared_files_ago_and_committed_meanwhile_is_rewound(
    mysql_long_ago: MysqlServer, run: Pipeline
) -> None:
    run.record()
    mysql_long_ago.query("XA COMMIT 'old'")
    found = run.finish()
    names, rows = published(found["published"]["shop.stock"])
    assert names == ["id", "left_over"]
    assert sorted(rows) == [(1, 12), (2, 20), (3, 30)]


def test_a_log_that_does_not_reach_back_to_the_preparation_stops_the_run(
    mysql_long_ago: MysqlServer, run: Pipeline
) -> None:
    run.record()
    mysql_long_ago.query("XA COMMIT 'old'")
    run.snapshot()
    current = mysql_long_ago.query("SHOW BINARY LOG STATUS")[0][0]
    mysql_long_ago.query(f"PURGE BINARY LOGS TO '{current}'")
    with pytest.raises(ExactnessError, match="prepared transaction X'6f6c64'"):
        run.extract_delta()
