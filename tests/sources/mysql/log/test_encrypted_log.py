"""A log that the server encrypts is read like any other, although its files are longer than their contents."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import LogGone
from harness.pipeline import Pipeline, published, settings_of
from tests.sources.mysql.encrypted_server import EncryptedServer

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[EncryptedServer]:
    options = {"innodb_redo_log_capacity": "8M", "innodb_buffer_pool_size": "32M", "max_binlog_size": "64K"}
    with (
        tempfile.TemporaryDirectory(prefix="cdc-mysql-") as directory,
        EncryptedServer.start(Path(directory), options=options) as started,
    ):
        yield started


@pytest.fixture
def table(server: EncryptedServer) -> str:
    server.query("SET GLOBAL binlog_encryption = ON")
    server.query("DROP DATABASE IF EXISTS d")
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT, s VARCHAR(50))")
    server.query(
        "INSERT INTO d.t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
        "SELECT i, 0, REPEAT('x', 50) FROM n"
    )
    assert server.query("SHOW BINARY LOGS")[-1][-1] == "Yes"
    return "d.t"


def change(server: EncryptedServer, table: str) -> None:
    """Changes over several files of the log."""
    for number in range(5):
        server.query(f"UPDATE {table} SET v = v + 1 WHERE id % 5 <> {number}")
    server.query(f"DELETE FROM {table} WHERE id % 50 = 7")
    server.query(f"UPDATE {table} SET id = id + 100000 WHERE id % 50 = 8 AND id < 100000")


def rows_of(server: EncryptedServer, table: str) -> list[tuple[object, ...]]:
    return sorted(server.query(f"SELECT * FROM {table}"))


@pytest.mark.parametrize("encrypted_until", ["the end", "a switch in mid-run", "a restart in mid-run"])
def test_a_copy_is_exact_while_the_log_is_encrypted(
    server: EncryptedServer, table: str, encrypted_until: str, spark: SparkSession, tmp_path: Path
) -> None:
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), [table])
    run.record()
    expected = rows_of(server, table)
    change(server, table)
    if encrypted_until == "a switch in mid-run":
        server.query("SET GLOBAL binlog_encryption = OFF")
    if encrypted_until == "a restart in mid-run":
        server.restart({"binlog_encryption": "OFF"})
    change(server, table)
    assert sorted(published(run.finish()["published"][table])[1]) == expected
    assert run.found["extract_delta"]["transactions"] == 12
    server.restart({"binlog_encryption": "ON"})


def test_the_past_and_a_night_are_exact_from_an_encrypted_log(
    server: EncryptedServer, table: str, spark: SparkSession, tmp_path: Path
) -> None:
    time.sleep(1.1)
    expected, when = rows_of(server, table), datetime.now(UTC)
    time.sleep(1.1)
    change(server, table)
    past = Pipeline(spark, settings_of(server), tmp_path.as_uri(), [table], as_of=when.isoformat())
    past.record()
    assert sorted(published(past.finish()["published"][table])[1]) == expected
    change(server, table)
    expected = rows_of(server, table)
    night = Pipeline(
        spark, settings_of(server), tmp_path.as_uri(), [table], run_id="20260102T000000Z-00000000", refresh="changes"
    )
    night.record()
    assert sorted(published(night.finish()["published"][table])[1]) == expected


def test_a_crash_is_noticed_in_an_encrypted_log(
    server: EncryptedServer, table: str, spark: SparkSession, tmp_path: Path
) -> None:
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), [table])
    run.record()
    server.crash()
    server.query(f"DELETE FROM {table} WHERE id = 1")
    with pytest.raises(LogGone, match="was not closed cleanly"):
        run.finish()
