"""Events that break the proof during a run stop it with an error that names the object. Nothing is published."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import CdcError, ExactnessError, LogGone, SchemaChanged
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.slots import waits
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from tests.consistency.acting import WHEN, run_through
from tests.seeds import some
from tests.servers import throw_away_postgres
from tests.soon import soon
from tests.sources.postgres.backends import wait_for


@dataclass(frozen=True)
class Hazard:
    """Statements that one session runs in the middle of a run, and the error they must end it with."""

    name: str
    statements: tuple[str, ...]
    error: type[CdcError]
    names: str = "orders"


FAST = (
    "change a type and back",
    "truncate",
    "drop and make anew",
    "replica identity and back",
    "detach a partition and attach it again",
    "a table leaves the publication for a while",
    "the slot is moved on",
)
"""The hardest hazard of each kind. The others are slow tests."""


HAZARDS = (
    Hazard("add a column", ("ALTER TABLE orders ADD COLUMN extra int", "UPDATE orders SET amount = 2"), SchemaChanged),
    Hazard("drop a column", ("ALTER TABLE orders DROP COLUMN note",), SchemaChanged),
    Hazard("change a type", ("ALTER TABLE orders ALTER amount TYPE double precision",), SchemaChanged),
    Hazard(
        "change a type and back",
        ("ALTER TABLE orders ALTER amount TYPE numeric(10,1)", "ALTER TABLE orders ALTER amount TYPE numeric(10,2)"),
        SchemaChanged,
    ),
    Hazard(
        "swap two columns",
        ("ALTER TABLE parts RENAME a TO c", "ALTER TABLE parts RENAME b TO a", "ALTER TABLE parts RENAME c TO b"),
        SchemaChanged,
        "parts",
    ),
    Hazard("rename a label of an enum", ("ALTER TYPE mood RENAME VALUE 'glad' TO 'happy'",), SchemaChanged),
    Hazard("truncate", ("TRUNCATE orders",), SchemaChanged),
    Hazard("vacuum full", ("VACUUM FULL orders",), SchemaChanged),
    Hazard("cluster", ("CLUSTER orders USING orders_pkey",), SchemaChanged),
    # Dropping a table removes it from the publication, which is checked first.
    Hazard("drop", ("DROP TABLE orders",), ExactnessError, ""),
    Hazard(
        "drop and make anew",
        (
            "CREATE TABLE o2 (LIKE orders INCLUDING ALL)",
            "ALTER TABLE o2 REPLICA IDENTITY FULL",
            "INSERT INTO o2 SELECT * FROM orders",
            "DROP TABLE orders",
            "ALTER TABLE o2 RENAME TO orders",
        ),
        ExactnessError,
        "",
    ),
    Hazard(
        "replica identity",
        ("ALTER TABLE orders REPLICA IDENTITY DEFAULT", "UPDATE orders SET amount = 2"),
        SchemaChanged,
    ),
    Hazard(
        "replica identity and back",
        (
            "ALTER TABLE orders REPLICA IDENTITY DEFAULT",
            "UPDATE orders SET amount = 2",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
        ),
        ExactnessError,
    ),
    Hazard("detach a partition", ("ALTER TABLE parts DETACH PARTITION parts_low",), SchemaChanged, "parts"),
    Hazard(
        "detach a partition and attach it again",
        (
            "ALTER TABLE parts DETACH PARTITION parts_low",
            "ALTER TABLE parts ATTACH PARTITION parts_low FOR VALUES FROM (0) TO (50)",
        ),
        SchemaChanged,
        "parts",
    ),
    Hazard("truncate a partition", ("TRUNCATE parts_low",), SchemaChanged, "parts"),
    Hazard(
        "a table leaves the publication",
        ("ALTER PUBLICATION {publication} DROP TABLE orders",),
        ExactnessError,
        "publication",
    ),
    Hazard(
        "a table leaves the publication for a while",
        (
            "ALTER PUBLICATION {publication} DROP TABLE orders",
            "UPDATE orders SET amount = 2",
            "ALTER PUBLICATION {publication} ADD TABLE orders",
        ),
        ExactnessError,
        "publication",
    ),
    Hazard(
        "the publication tells less",
        ("ALTER PUBLICATION {publication} SET (publish = 'insert')",),
        ExactnessError,
        "publication",
    ),
    Hazard("the publication is dropped", ("DROP PUBLICATION {publication}",), ExactnessError, "publication"),
    Hazard("the slot is dropped", ("SELECT pg_drop_replication_slot('{publication}')",), LogGone, "slot"),
    Hazard(
        "the slot is moved on",
        (
            "UPDATE orders SET amount = 2",
            "SELECT pg_replication_slot_advance('{publication}', pg_current_wal_lsn())",
        ),
        LogGone,
        "slot",
    ),
)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server on which things may be broken."""
    with throw_away_postgres() as server:
        yield server


def _prepare(server: PostgresServer) -> None:
    with server.connect() as connection:
        for statement in (
            "DROP SCHEMA IF EXISTS shop CASCADE",
            "CREATE SCHEMA shop",
            "SET search_path TO shop",
            "CREATE TYPE mood AS ENUM ('calm', 'glad')",
            "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10,2) NOT NULL, note text, felt mood)",
            "CREATE TABLE parts (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id)",
            "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (50)",
            "CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (50) TO (100)",
            "INSERT INTO orders SELECT n, 1, repeat('x', 200), 'glad' FROM generate_series(1, 2000) n",
            "INSERT INTO parts SELECT n FROM generate_series(0, 99) n",
        ):
            connection.execute(statement)
        for table in ("orders", "parts", "parts_low", "parts_high"):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        connection.execute("ANALYZE")


def _provoke(server: PostgresServer, hazard: Hazard) -> None:
    ((publication,),) = server.query("SELECT pubname FROM pg_publication")
    with server.connect() as connection:
        connection.execute("SET search_path TO shop")
        for statement in hazard.statements:
            connection.execute(statement.format(publication=publication))


@pytest.mark.parametrize("when", some(*WHEN[::-1]))
@pytest.mark.parametrize(
    "hazard",
    [pytest.param(hazard, id=hazard.name, marks=[] if hazard.name in FAST else pytest.mark.slow) for hazard in HAZARDS],
)
def test_a_hazard_inside_the_run_stops_it(
    hazard: Hazard, when: str, own_server: PostgresServer, spark: SparkSession, tmp_path: Path
) -> None:
    _prepare(own_server)
    tables = ["shop.orders", "shop.parts"]
    options: dict[str, Any] = {"chunk_rows": 300, "chunk_pause": 0.05, "on_schema_change": "fail"}
    run = Pipeline(spark, settings_of(own_server), tmp_path.as_uri(), tables, **options)
    run.record()
    try:
        with pytest.raises(hazard.error) as caught:
            run_through(run, when, lambda: _provoke(own_server, hazard))
    finally:
        run.release()
    assert hazard.names in str(caught.value).lower()
    assert "Hint:" in str(caught.value)
    with pytest.raises(CdcError):
        run.consolidate()
    assert not run.target.exists("shop.orders/_latest.json")
    soon(lambda: own_server.query("SELECT slot_name FROM pg_replication_slots"), [])
    assert own_server.query("SELECT pubname FROM pg_publication") == []


@pytest.mark.slow
def test_a_transaction_that_waits_for_a_standby_is_not_lost_between_log_and_reads(
    own_server: PostgresServer, spark: SparkSession, tmp_path: Path
) -> None:
    """Its commit is in the log before the slot's point, and no read sees it until the standby answers."""
    _prepare(own_server)
    own_server.set_standbys("nobody")
    run = Pipeline(spark, settings_of(own_server), tmp_path.as_uri(), ["shop.orders"])
    try:
        with ThreadPoolExecutor(2) as pool, own_server.connect() as watch, own_server.connect() as connection:
            writing = pool.submit(connection.execute, "UPDATE shop.orders SET amount = 77 WHERE id = 7")
            while not watch.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchone():
                time.sleep(0.01)
            recorded = pool.submit(run.record)
            time.sleep(1.5)
            assert not recorded.done(), "the position was recorded while a commit in it could not be seen"
            own_server.set_standbys("")
            writing.result()
            recorded.result()
        run.finish()
    finally:
        own_server.set_standbys("")
        run.release()
    _, rows = published(run.found["consolidate"]["published"]["shop.orders"])
    assert [str(row[1]) for row in rows if row[0] == 7] == ["77.00"]


UNSEEN = {
    "a label is renamed": ("ALTER TYPE shop.mood RENAME VALUE 'glad' TO 'happy'", SchemaChanged),
    "a field is added": ("ALTER TYPE shop.place ADD ATTRIBUTE shelf int", SchemaChanged),
    "a table leaves the publication": ("ALTER PUBLICATION {publication} DROP TABLE shop.orders", ExactnessError),
    "the publication tells less": ("ALTER PUBLICATION {publication} SET (publish = 'insert')", ExactnessError),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", UNSEEN)
def test_what_the_log_goes_by_and_nobody_sees_yet_stops_the_run(
    what: str, own_server: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are written while it waits for a standby, for none of this locks their table. The log tells of them as it
    says, also what they were before; the catalog does not show it for as long as the standby does not answer."""
    _prepare(own_server)
    own_server.query("CREATE TYPE shop.place AS (hall int); ALTER TABLE shop.orders ADD at shop.place DEFAULT ROW(1)")
    run = Pipeline(spark, settings_of(own_server), tmp_path.as_uri(), ["shop.orders"], on_schema_change="fail")
    run.record()
    ((publication,),) = own_server.query("SELECT pubname FROM pg_publication")
    statement, error = UNSEEN[what]
    settle, bound = waits.wait_until_visible, PostgresSource.bound_reads

    def answering(*arguments: Any) -> None:
        # The standby answers again only after the run has begun to wait for it.
        later = threading.Timer(1, own_server.set_standbys, [""])
        later.start()
        settle(*arguments)
        later.join()

    with (
        ThreadPoolExecutor(1) as pool,
        own_server.connect() as altering,
        own_server.connect(options="-c synchronous_commit=local") as writing,
    ):
        altered: list[Future[Any]] = []

        def after_the_reads(source: PostgresSource) -> UpperBound:
            own_server.set_standbys("nobody")
            altered.append(pool.submit(altering.execute, statement.format(publication=publication).encode()))
            wait_for(own_server, "wait_event = 'SyncRep'")
            writing.execute("UPDATE shop.orders SET amount = 77 WHERE id = 7")
            monkeypatch.setattr(waits, "wait_until_visible", answering)
            return bound(source)

        def read_all_and_the_log() -> None:
            run.snapshot()
            if error is SchemaChanged:
                own_server.set_standbys("")
            run.extract_delta()

        monkeypatch.setattr(PostgresSource, "bound_reads", after_the_reads)
        try:
            with pytest.raises(error):
                read_all_and_the_log()
        finally:
            own_server.set_standbys("")
            altered[0].result()
            run.release()
