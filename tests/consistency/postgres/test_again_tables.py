"""Tables without REPLICA IDENTITY FULL that are logged in unusual ways: not all columns, foreign publications."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.jobs.snapshot import reread
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.consistency.postgres.servers import ENDS, VERSIONS


@pytest.fixture(params=ENDS)
def own(request: pytest.FixtureRequest, postgres_factory: PostgresFactory) -> PostgresServer:
    server = postgres_factory(None, request.param)
    virtual = ", thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL" if request.param >= 18 else ""
    server.query(
        f"""
        CREATE TABLE made (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, note text{virtual});
        INSERT INTO made (id, n, note) SELECT i, i, 'x' FROM generate_series(1, 100) i;
        CREATE TABLE tree (note text, id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF tree FOR VALUES FROM (0) TO (50);
        CREATE TABLE high (id int NOT NULL, n int, note text);
        ALTER TABLE tree ATTACH PARTITION high FOR VALUES FROM (50) TO (500);
        INSERT INTO tree (id, n) SELECT i, i FROM generate_series(1, 99) i
        """
    )
    return server


def write(server: PostgresServer) -> None:
    server.query(
        """
        UPDATE made SET n = -n WHERE id % 7 = 0; DELETE FROM made WHERE id % 7 = 1;
        UPDATE made SET id = id + 1000 WHERE id % 7 = 2; INSERT INTO made (id, n) VALUES (1, 5), (0, 0);
        UPDATE tree SET id = id + 200 WHERE id < 20; DELETE FROM tree WHERE id % 7 = 1;
        UPDATE tree SET n = 0, note = repeat('y', 5000) WHERE id % 7 = 2
        """
    )


def check(server: PostgresServer, run: Pipeline) -> None:
    """Write during a run, and compare: nothing is written after the view."""
    run.record()
    write(server)
    found = run.finish()
    assert run.found["snapshot"]["keys_again"] > 60
    for name, rows in found["published"].items():
        truth: Counter[Any] = Counter(tuple(row) for row in server.query(f"SELECT * FROM {name}"))
        assert Counter(published(rows)[1]) == truth, name


@pytest.mark.slow
def test_generated_columns_need_not_be_in_the_log(
    own: PostgresServer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do keys have to fit into one statement."""
    monkeypatch.setattr(reread, "LOOKUP_BYTES", 20)
    check(own, Pipeline(spark, settings_of(own), tmp_path.as_uri(), ["public.*"]))


# Each version tells in one way; the other way in dev/soak.
@pytest.mark.parametrize(
    ("own", "told"),
    [
        pytest.param(version, told, marks=[] if version == fast else pytest.mark.long)
        for told, fast in (
            ("FOR TABLE made, low, high", ENDS[0]),
            ("FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)", ENDS[-1]),
        )
        for version in ENDS
    ],
    indirect=["own"],
)
def test_a_publication_of_others_may_tell_of_partitions_as_it_likes(
    own: PostgresServer, spark: SparkSession, tmp_path: Path, told: str
) -> None:
    own.query(f"CREATE PUBLICATION theirs {told}")
    settings = dataclasses.replace(settings_of(own), options={"publication": "theirs"})
    check(own, Pipeline(spark, settings, tmp_path.as_uri(), ["public.*"]))


@pytest.mark.long
def test_a_partition_may_compute_a_virtual_column_otherwise(
    postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path
) -> None:
    """Reads of the root return what the root computes; so do conditions, and rows that are read again."""
    server = postgres_factory(None, _with_virtual_columns())
    server.query(
        """
        CREATE TABLE tree (id int PRIMARY KEY, n int, "the twice" numeric(9,2) GENERATED ALWAYS AS (n * 2.005) VIRTUAL)
            PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF tree ("the twice" GENERATED ALWAYS AS (n * -3) VIRTUAL)
            FOR VALUES FROM (0) TO (50);
        CREATE TABLE high PARTITION OF tree FOR VALUES FROM (50) TO (500);
        INSERT INTO tree SELECT i, i FROM generate_series(1, 99) i
        """
    )
    where = '"the twice" > 20'
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["public.tree"], where={"public.tree": where})
    run.record()
    server.query("UPDATE tree SET n = 1000 WHERE id IN (1, 98); DELETE FROM tree WHERE id = 60")
    found = run.finish()
    truth: Counter[Any] = Counter(tuple(row) for row in server.query(f"SELECT * FROM tree WHERE {where}"))
    assert len(truth) > 80
    assert Counter(published(found["published"]["public.tree"])[1]) == truth


def test_an_altered_virtual_column_stops_the_run(
    postgres_factory: PostgresFactory, spark: SparkSession, tmp_path: Path
) -> None:
    """The server refuses that of tables that are published. Those without a key are not."""
    server = postgres_factory(None, _with_virtual_columns())
    server.query(
        "CREATE TABLE made (n int, twice int GENERATED ALWAYS AS (n * 2) VIRTUAL); INSERT INTO made VALUES (1), (2)"
    )
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["public.made"], on_schema_change="fail")
    run.record()
    server.query("ALTER TABLE made ALTER COLUMN twice SET EXPRESSION AS (n * 3)")
    with pytest.raises(SchemaChanged, match="twice"):
        run.finish()
    run.release()


def _with_virtual_columns() -> int:
    if VERSIONS[-1] < 18:
        pytest.skip("no PostgreSQL here has virtual columns")
    return VERSIONS[-1]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["through the root", "partition by partition"])
def test_keys_of_many_partitions_are_searched_where_they_are(
    own: PostgresServer, spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """Also those that moved, and those that are equal to others; and where the root alone hides its rows."""
    partitions = "".join(
        f"CREATE TABLE many_{month} PARTITION OF many FOR VALUES FROM ('2026-{month:02}-01') TO ('2026-{month:02}-28');"
        for month in range(1, 13)
    )
    own.query(
        f"""
        CREATE ROLE reader LOGIN REPLICATION PASSWORD 'secret'; GRANT CREATE ON DATABASE postgres TO reader;
        CREATE SCHEMA tree AUTHORIZATION reader; SET ROLE reader; SET search_path TO tree;
        CREATE TABLE many (day date, amount numeric, note text, PRIMARY KEY (day, amount)) PARTITION BY RANGE (day);
        {partitions} CREATE TABLE many_rest PARTITION OF many DEFAULT;
        INSERT INTO many SELECT date '2026-01-01' + i, i, 'x' FROM generate_series(0, 399) i
        """
    )
    run = Pipeline(spark, settings_of(own, "reader", "secret"), tmp_path.as_uri(), ["tree.many"], chunk_rows=20)
    run.record()
    own.query(
        """
        SET search_path TO tree;
        UPDATE many SET note = 'y' WHERE amount % 3 = 0; DELETE FROM many WHERE amount % 7 = 1;
        UPDATE many SET day = day + 40 WHERE amount % 11 = 2;
        UPDATE many SET amount = amount + 0.00 WHERE amount % 5 = 3;
        INSERT INTO many VALUES ('2026-03-28', 7.0, 'new'), ('2030-01-01', 7.00, 'new'), ('2026-02-11', 1.5, 'new')
        """
    )
    if way == "partition by partition":
        own.query("ALTER TABLE tree.many ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    found = run.finish()
    assert run.found["snapshot"]["keys_again"] > 250
    truth: Counter[Any] = Counter(tuple(row) for row in own.query("SELECT day, amount::text, note FROM tree.many"))
    assert Counter(published(found["published"]["tree.many"])[1]) == truth
