"""A server that crashes takes back what it had not yet written to disk, although it was read: nothing of it is kept."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import SourceUnavailable
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory

# Commits can be seen long before anything writes them to disk.
LAZY = {
    "autovacuum": "off",
    "bgwriter_lru_maxpages": "0",
    "synchronous_commit": "off",
    "wal_writer_delay": "10s",
    "checkpoint_timeout": "1h",
}
SMALL, BIG = "public.small", "public.big"


@pytest.fixture
def lazy(postgres_factory: PostgresFactory) -> PostgresServer:
    server = postgres_factory(LAZY)
    server.query(
        """
        CREATE TABLE small (id int PRIMARY KEY, n int); ALTER TABLE small REPLICA IDENTITY FULL;
        CREATE TABLE big (id int PRIMARY KEY, n int, note text); ALTER TABLE big REPLICA IDENTITY FULL;
        INSERT INTO small SELECT i, 0 FROM generate_series(1, 100) i;
        INSERT INTO big SELECT i, 0, repeat('x', 500) FROM generate_series(1, 6000) i;
        ANALYZE
        """
    )
    return server


@contextmanager
def writers(server: PostgresServer) -> Iterator[None]:
    """Commits new rows and changes old ones in both tables while the block lasts, whatever the server does."""
    stop = threading.Event()

    def write() -> None:
        number = 10_000
        while not stop.is_set():
            with suppress(psycopg.Error), server.connect() as connection:
                while not stop.is_set():
                    number += 1
                    for table, columns in (("small", "id, n"), ("big", "id, n, note")):
                        rest = ", 'new'" if table == "big" else ""
                        connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({number}, 1{rest})")
                        connection.execute(f"UPDATE {table} SET n = n + 1 WHERE id = {number % 90 + 1}")
                    time.sleep(0.3)
            time.sleep(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("keyless", [False, True], ids=["watermark", "exported"])
def test_what_a_crash_takes_back_is_not_published(
    lazy: PostgresServer, spark: SparkSession, tmp_path: Path, keyless: bool
) -> None:
    """The server crashes as soon as one part was recorded, while the other is being read. What is lost depends on the
    moment: ``tests/sources/postgres/test_durable.py`` provokes that a part lost its rows."""
    if keyless:
        lazy.query("ALTER TABLE small DROP CONSTRAINT small_pkey; ALTER TABLE big DROP CONSTRAINT big_pkey")
    run = Pipeline(spark, settings_of(lazy), tmp_path.as_uri(), [SMALL, BIG], chunk_rows=300, chunk_pause=0.2)
    run.record()
    expected = {name: Counter(map(tuple, lazy.query(f"SELECT * FROM {name}"))) for name in (SMALL, BIG)}
    done = tmp_path / "_runs" / "20260101T000000Z-00000000" / "chunks/done"

    def read() -> None:
        for _ in range(5):
            with suppress(SourceUnavailable):
                run.snapshot()
                return

    # The server ends with the thread that started it, so this one has to start it.
    with writers(lazy), ThreadPoolExecutor(1) as pool:
        time.sleep(0.5)
        reading = pool.submit(read)
        while not (done.exists() and any(done.iterdir())):
            assert not reading.done()
            time.sleep(0.005)
        lazy.crash()
        reading.result()
    run.extract_delta()
    copies = run.consolidate()["published"]
    for name, rows in expected.items():
        assert Counter(published(copies[name])[1]) == rows
    run.release()
