"""Other programs keep transactions of a catalog's database open, or its sessions end, while a run publishes.

Whoever checks here what was committed has an own process or an own connection, and plain PyIceberg.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CommitUnknown, PublishIncomplete
from airflow_provider_cdc.sinks.base import Publication, Sink
from airflow_provider_cdc.sinks.iceberg import commit, cut_table, sql
from airflow_provider_cdc.sinks.registry import CatalogSettings, LakeSettings, open_sink
from harness.postgres_server import PostgresServer
from harness.proxy import Proxy
from tests.interrupting import commits_fail
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.runs import run_of, set_back
from tests.sinks.test_contract import Lake

FOUR = tuple(TableName("shop", name) for name in "abcd")

HOLD = """
import sqlite3, sys
reader = sqlite3.connect(sys.argv[1], isolation_level=None)
reader.execute("BEGIN")
reader.execute("SELECT * FROM iceberg_tables").fetchall()
print("held", flush=True)
sys.stdin.read()
"""
READ = """
import sys
from pyiceberg.catalog import load_catalog
catalog = load_catalog("default", type="sql", uri=sys.argv[1], warehouse=sys.argv[2])
cuts = catalog.load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
for row in sorted(cuts, key=lambda row: (row["cut"], row["table"])):
    rows = catalog.load_table(row["identifier"]).scan(snapshot_id=row["snapshot_id"]).to_arrow()["id"].to_pylist()
    print(row["run_id"], row["table"], *rows)
"""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(cut_table, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(sql, "LOCK_SECONDS", 0.1)


@contextmanager
def reader_of(lake: Lake) -> Iterator[Callable[[], None]]:
    """Another process that reads the catalog in a transaction, which ends when the yielded function is called."""
    command = [sys.executable, "-c", HOLD, lake.storage.path("_catalog.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"

        def end() -> None:
            process.communicate()

        try:
            yield end
        finally:
            process.kill()


def night(lake: Lake, number: int) -> Publication:
    return run_of(lake, number, {table: pa.table({"id": [number]}) for table in FOUR})


def cuts_in(lake: Lake, uri: str = "") -> list[str]:
    """The rows of each table of each cut, in a fresh process."""
    uri = uri or f"sqlite:///{lake.storage.path('_catalog.db')}"
    done = subprocess.run(
        [sys.executable, "-c", READ, uri, lake.storage.uri], stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout.splitlines()


def cuts_of(*publications: Publication) -> list[str]:
    """What `cuts_in` returns if these nights, in this order, have committed their cuts."""
    return [f"{one.run_id} {table} {number_of(one)}" for one in publications for table in FOUR]


def number_of(publication: Publication) -> str:
    return publication.position.rpartition("-")[2]


def ending_at(patch: pytest.MonkeyPatch, failure: int, end: Callable[[], None]) -> list[str]:
    """Call ``end`` when this many commits have failed. Return the names of the tables whose commits fail."""
    failed: list[str] = []

    def observe(send: Callable[[], Any], table: str) -> Any:
        try:
            return send()
        except OperationalError:
            failed.append(table)
            if len(failed) == failure:
                end()
            raise

    commits_fail(patch, observe)
    return failed


@pytest.mark.slow
@pytest.mark.parametrize("failures", [1, 2])
def test_a_cut_names_only_snapshots_that_were_committed_while_another_program_read_the_catalog(
    lake: Lake, failures: int
) -> None:
    first, publication = night(lake, 1), night(lake, 2)
    lake.sink.publish(first)
    with pytest.MonkeyPatch.context() as patch, reader_of(lake) as end:
        failed = ending_at(patch, failures, end)
        lake.sink.publish(publication)
    assert len(failed) == failures
    assert cuts_in(lake) == cuts_of(first, publication)


@pytest.mark.slow
def test_a_transaction_that_does_not_end_stops_the_run_and_the_next_try_completes_it(lake: Lake) -> None:
    first, publication = night(lake, 1), night(lake, 2)
    lake.sink.publish(first)
    with pytest.MonkeyPatch.context() as patch, reader_of(lake):
        failed = ending_at(patch, 0, lambda: None)
        with pytest.raises(CommitUnknown, match="another program keeps the catalog locked"):
            lake.sink.publish(publication)
    # Each try waits for the lock, so the run does not try the other tables.
    assert {*failed} == {"shop.a"}
    assert cuts_in(lake) == cuts_of(first)
    lake.sink.publish(publication)
    assert cuts_in(lake) == cuts_of(first, publication)


@pytest.mark.slow
def test_a_transaction_that_does_not_end_does_not_stop_a_run_if_the_catalog_has_a_write_ahead_log(lake: Lake) -> None:
    first, publication = night(lake, 1), night(lake, 2)
    lake.sink.publish(first)
    with closing(sqlite3.connect(lake.storage.path("_catalog.db"))) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    with pytest.MonkeyPatch.context() as patch, reader_of(lake):
        failed = ending_at(patch, 0, lambda: None)
        lake.sink.publish(publication)
        assert cuts_in(lake) == cuts_of(first, publication)
    assert failed == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 3])
def test_a_cut_is_not_committed_if_the_catalog_lost_a_commit_that_it_confirmed(lake: Lake, number: int) -> None:
    first, publication = night(lake, 1), night(lake, 2)
    lake.sink.publish(first)
    table = f"shop.{FOUR[number].name}"

    def lose(send: Callable[[], Any], name: str) -> Any:
        answer = send()
        if name == table:
            set_back(lake.storage.path("_catalog.db"), FOUR[number])
        return answer

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, lose)
        with pytest.raises(PublishIncomplete, match=f"{table}: the catalog does not have the snapshot"):
            lake.sink.publish(publication)
    cuts = plain_catalog(lake.storage).load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
    assert {row["run_id"] for row in cuts} == {first.run_id}
    lake.sink.publish(publication)
    assert cuts_in(lake) == cuts_of(first, publication)


class PostgresLake(Lake):
    """A lake with a catalog in PostgreSQL. Runs reach the server through a proxy, ``plain`` is its own address."""

    def __init__(self, storage: Storage, server: PostgresServer, database: str, proxy: Proxy) -> None:
        super().__init__("iceberg", storage)
        address = "postgresql+psycopg://{}@{}:{}/{}".format
        self.plain = address("postgres", server.host, server.port, database)
        self._settings = CatalogSettings("sql", address("postgres", proxy.host, proxy.port, database), storage.uri)

    @property
    def sink(self) -> Sink:
        return open_sink(LakeSettings("iceberg", self._settings), self.storage)


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as running:
        yield running


@pytest.fixture
def postgres_lake(tmp_path: Path, postgres: PostgresServer, database: str, proxy: Proxy) -> PostgresLake:
    return PostgresLake(Storage(tmp_path.as_uri()), postgres, database, proxy)


@contextmanager
def failing_commit(number: int, fail: Callable[[Connection], None]) -> Iterator[list[int]]:
    """Before the COMMIT with this number, call ``fail``. Yields the numbers of the COMMITs so far."""
    numbers: list[int] = []
    lock = Lock()

    def before(connection: Connection) -> None:
        with lock:
            numbers.append(len(numbers))
            now = numbers[-1]
        if now == number:
            fail(connection)

    event.listen(Engine, "commit", before)
    try:
        yield numbers
    finally:
        event.remove(Engine, "commit", before)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, 4])
@pytest.mark.parametrize("what", ["killed", "lost"])
def test_a_session_of_postgresql_that_ends_at_its_commit(
    postgres_lake: PostgresLake, postgres: PostgresServer, proxy: Proxy, at: int, what: str
) -> None:
    lake = postgres_lake
    first, publication = night(lake, 1), night(lake, 2)
    lake.sink.publish(first)

    def fail(connection: Connection) -> None:
        session: Any = connection.connection.dbapi_connection
        if what == "killed":
            postgres.query(f"SELECT pg_terminate_backend({session.info.backend_pid}, 5000)")
        else:
            session.commit()
            proxy.cut()

    with failing_commit(at, fail) as numbers:
        lake.sink.publish(publication)
    assert len(numbers) > 4
    assert cuts_in(lake, lake.plain) == cuts_of(first, publication)


@pytest.mark.slow
def test_a_row_of_the_catalog_that_another_session_of_postgresql_locks(
    postgres_lake: PostgresLake, postgres: PostgresServer, database: str
) -> None:
    lake = postgres_lake
    first, publication = night(lake, 1), night(lake, 2)
    lake.sink.publish(first)
    with postgres.connect(database=database, autocommit=False) as locker:
        locker.execute("SELECT 1 FROM iceberg_tables WHERE table_name = 'b' FOR UPDATE")
        with pytest.raises(CommitUnknown, match=r"shop\.b: another program keeps the catalog locked"):
            lake.sink.publish(publication)
        assert cuts_in(lake, lake.plain) == cuts_of(first)
    lake.sink.publish(publication)
    assert cuts_in(lake, lake.plain) == cuts_of(first, publication)


@pytest.mark.slow
def test_two_runs_publish_at_once_while_a_reader_keeps_its_transaction(
    postgres_lake: PostgresLake, postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = postgres_lake
    monkeypatch.setattr(sql, "LOCK_SECONDS", 60)
    first, older, newer = (night(lake, number) for number in (1, 2, 3))
    lake.sink.publish(first)
    with postgres.connect(database=database, autocommit=False) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT * FROM iceberg_tables").fetchall()
        with ThreadPoolExecutor(2) as runs:
            list(runs.map(lake.sink.publish, (older, newer)))
    cuts = cuts_in(lake, lake.plain)
    assert cuts in (cuts_of(first, older, newer), cuts_of(first, newer, older))
