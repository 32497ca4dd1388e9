"""A source that is unreachable for some seconds, or a worker that is killed, only delays the run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from tests.conftest import MysqlFactory, PostgresFactory

AWAY_SECONDS = 7.0
ROWS = 4000
# Between two chunks.
SLEEPING = "SELECT 1 FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep' AND TIME >= 1"


def read_while(run: Pipeline, reading: Callable[[], object], then: Callable[[], object]) -> None:
    """Read the tables in another thread, and do something meanwhile: servers end with the thread that starts
    them."""
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(run.snapshot)
        while not reading():
            assert not step.done(), step.result()
            time.sleep(0.05)
        then()
        step.result(240)


def away(server: MysqlServer | PostgresServer) -> None:
    server.stop()
    time.sleep(AWAY_SECONDS)
    server.restart()


@pytest.mark.long
def test_mysql_restarts_in_the_midst_of_a_read(spark: Any, mysql_factory: MysqlFactory, tmp_path: Path) -> None:
    mysql = mysql_factory({"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"})
    mysql.query("CREATE DATABASE shop")
    for table in ("orders", "lines", "visits"):
        key = "" if table == "visits" else "PRIMARY KEY"
        mysql.query(f"CREATE TABLE shop.{table} (id INT {key})")
        mysql.query(f"INSERT INTO shop.{table} VALUES " + ", ".join(f"({number})" for number in range(ROWS)))
        mysql.query(f"ANALYZE TABLE shop.{table}")
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), ["shop.*"], chunk_rows=1000, chunk_pause=2.0)
    run.record()
    reading = SLEEPING
    read_while(run, lambda: mysql.query(reading), lambda: away(mysql))
    check(run, ["shop.orders", "shop.lines", "shop.visits"])


@pytest.mark.long
@pytest.mark.parametrize("consistency", ["watermark", "exported"])
def test_postgres_restarts_in_the_midst_of_a_read(
    spark: Any, postgres_factory: PostgresFactory, tmp_path: Path, consistency: str
) -> None:
    postgres = postgres_factory()
    for table in ("orders", "lines"):
        postgres.query(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
        postgres.query(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        postgres.query(f"INSERT INTO {table} SELECT generate_series(0, {ROWS - 1})")
        postgres.query(f"VACUUM ANALYZE {table}")
    run = Pipeline(
        spark,
        settings_of(postgres),
        tmp_path.as_uri(),
        ["public.*"],
        chunk_rows=1000,
        chunk_pause=2.0,
        consistency=consistency,
    )
    run.record()
    reading = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%' OR query LIKE '%to_regclass%'"
    read_while(run, lambda: postgres.query(reading), lambda: away(postgres))
    check(run, ["public.orders", "public.lines"])


def check(run: Pipeline, tables: list[str]) -> None:
    run.extract_delta()
    found = run.consolidate()["published"]
    for name in tables:
        assert sorted(row[0] for row in published(found[name])[1]) == list(range(ROWS))


@pytest.mark.long
def test_workers_that_are_killed_do_not_fail_the_step(
    spark: Any, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY)")
    mysql.query(f"INSERT INTO {schema}.orders VALUES " + ", ".join(f"({number})" for number in range(ROWS)))
    mysql.query(f"ANALYZE TABLE {schema}.orders")
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{schema}.*"], chunk_rows=1000, chunk_pause=2.0)
    run.record()

    def kill() -> None:
        for place in Path("/proc").glob("[0-9]*"):
            try:
                command, parent = (place / "cmdline").read_bytes(), _parent(int(place.name))
                daemon = b"pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes()
                if b"pyspark.daemon" in command and daemon and _is_ours(parent):
                    os.kill(int(place.name), signal.SIGKILL)
            except OSError:
                # It has already ended.
                continue

    reading = SLEEPING
    read_while(run, lambda: mysql.query(reading), kill)
    check(run, [f"{schema}.orders"])


def _is_ours(pid: int) -> bool:
    """Whether this process started it: others use Spark on this machine, too."""
    while pid > 1 and pid != os.getpid():
        pid = _parent(pid)
    return pid == os.getpid()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
