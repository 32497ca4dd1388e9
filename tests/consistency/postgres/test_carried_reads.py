"""Tables that are altered after their read are not read again, if the change is one to one.

The oracle is the altered table itself: its rows when the run moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.jobs.restart import later_position
from airflow_provider_cdc.sources.planning.point import record_point
from airflow_provider_cdc.sources.postgres.source import PostgresSource
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from tests.consistency.acting import DURING, act_during, spool_at_once
from tests.consistency.postgres.servers import ENDS, primary_of
from tests.seeds import some

FIRST = {
    "orders": "ALTER TABLE orders ADD extra int NOT NULL DEFAULT 7; ALTER TABLE orders ALTER extra SET DEFAULT 8",
    "visits": "ALTER TABLE visits RENAME a TO x; ALTER TABLE visits RENAME b TO a; ALTER TABLE visits RENAME x TO b",
    "quiet": "ALTER TABLE quiet ADD extra text DEFAULT 'abc', ALTER c TYPE varchar(30)",
    "anew": "ALTER TABLE anew DROP c; ALTER TABLE anew ADD c varchar(20) DEFAULT 'new'",
    "emptied": "TRUNCATE emptied",
    "converted": "ALTER TABLE converted ALTER a TYPE bigint",
    # Only the log shows that the table had another name.
    "briefly": "ALTER TABLE briefly RENAME TO other; UPDATE other SET m = 5 WHERE id = 30; "
    "ALTER TABLE other RENAME TO briefly; ALTER TABLE briefly ADD extra int DEFAULT 5",
    "bag": "ALTER TABLE bag ADD extra int DEFAULT 5",
}
SECOND = {
    "orders": "ALTER TABLE orders ADD more int DEFAULT 9; ALTER TABLE orders RENAME a TO first_of_all",
    "emptied": "TRUNCATE emptied",
}
TABLES = (*FIRST, "straddled")


@pytest.fixture(scope="module", params=some(*ENDS))
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with primary_of(request.param) as server:
        yield server


@pytest.fixture
def tables(primary: PostgresServer) -> Iterator[str]:
    schema = "carried"
    primary.query(f"CREATE SCHEMA {schema}")
    for table in TABLES:
        key = "" if table == "bag" else " PRIMARY KEY"
        _do(
            primary,
            schema,
            f"CREATE TABLE {table} (id int{key}, a int DEFAULT 1, b int DEFAULT 2, m int, c varchar(20) DEFAULT 'x')",
            f"ALTER TABLE {table} REPLICA IDENTITY FULL",
            f"INSERT INTO {table} SELECT i, i, i + 1, 0, 'row ' || i FROM generate_series(0, 60) i",
            # Its number shows that a later column has been there before.
            f"ALTER TABLE {table} ADD last int",
            f"ALTER TABLE {table} DROP last",
        )
    yield schema
    primary.query(f"DROP SCHEMA {schema} CASCADE")


def _do(server: PostgresServer, schema: str, *statements: str) -> None:
    with server.connect() as connection:
        connection.execute(f"SET search_path TO {schema}")
        for statement in statements:
            connection.execute(statement)


def _write(server: PostgresServer, schema: str, number: int) -> None:
    """Change, add and delete rows of all tables but one, by the columns that all shapes have."""
    low = 10 * number
    for table in set(TABLES) - {"quiet"}:
        _do(
            server,
            schema,
            f"UPDATE {table} SET m = {number}, c = 'now {number}' WHERE id BETWEEN {low} AND {low + 4}",
            f"DELETE FROM {table} WHERE id = {low + 5}",
            f"INSERT INTO {table} (id, m) VALUES ({1000 + number}, 1) ON CONFLICT DO NOTHING",
            f"UPDATE {table} SET m = m + 1 WHERE id >= 1000",
        )


def _rows(server: PostgresServer, schema: str) -> dict[str, Counter[Any]]:
    return {table: Counter(map(tuple, server.query(f"SELECT * FROM {schema}.{table}"))) for table in TABLES}


def _columns(server: PostgresServer, schema: str, table: str) -> list[str]:
    sql = f"SELECT attname FROM pg_attribute WHERE attrelid = '{schema}.{table}'::regclass AND attnum > 0"
    return [name for (name,) in server.query(f"{sql} AND NOT attisdropped ORDER BY attnum")]


@pytest.mark.slow
@pytest.mark.parametrize("spools", some(True, False))
def test_rows_that_were_read_are_carried_over_schema_changes(
    primary: PostgresServer,
    spark: SparkSession,
    tables: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spools: bool,
) -> None:
    """Also if the table is altered a second time, and if the source has let its log go. A table that was altered before
    its read had surely ended is read again."""
    if spools:
        spool_at_once(monkeypatch)
        waiting = PostgresSource.waiting

        def growing(*given: Any) -> Any:
            primary.query("SELECT pg_logical_emit_message(true, 'test', '')")
            return waiting(*given)._replace(again=0)

        monkeypatch.setattr(PostgresSource, "waiting", growing)
    run = Pipeline(spark, settings_of(primary), tmp_path.as_uri(), [f"{tables}.*"], chunk_rows=25)
    run.record()
    _write(primary, tables, 0)
    ends_of_reads, straddled = PostgresSource.ends_of_reads, list[str]()

    def noted(source: PostgresSource, these: Any) -> Any:
        if not straddled and "straddled" in {table.name.name for table in these}:
            # The names and types stay, so no other check notices this between two chunks.
            straddled.append(FIRST["anew"].replace("anew", "straddled"))
            _do(primary, tables, *straddled)
        return ends_of_reads(source, these)

    def first() -> None:
        _write(primary, tables, 1)
        _do(primary, tables, *FIRST.values())
        _write(primary, tables, 2)

    wanted: dict[str, Counter[Any]] = {}

    def second() -> None:
        _write(primary, tables, 3)
        _do(primary, tables, *SECOND.values())
        _write(primary, tables, 4)

    def moved(*arguments: Any) -> InitialPoint:
        wanted.update(_rows(primary, tables))
        point = record_point(*arguments)
        _write(primary, tables, 5)
        return point

    monkeypatch.setattr(PostgresSource, "ends_of_reads", noted)
    monkeypatch.setattr(later_position, "record_point", moved)
    with monkeypatch.context() as patch:
        act_during(run, DURING[0], first, patch)
        act_during(run, DURING[1], second, patch)
        run.snapshot()
    run.extract_delta()
    run.consolidate()

    loaded = Run.load(run.run)
    restarts = loaded.manifest.restarts
    carried = {"orders", "visits", "quiet"}
    again = {*TABLES} - carried
    assert [sorted(name.partition(".")[2] for name in restart.tables) for restart in restarts] == [
        sorted(again),
        ["emptied"],
    ]
    assert {name.partition(".")[2] for name in restarts[0].carried} == carried
    assert {name.partition(".")[2] for name in restarts[1].carried} == {"orders"}
    starts = {entry.start for entry in loaded.manifest.tables if entry.basis and entry.basis.table}
    assert {bool(loaded.pieces(start)) for start in starts} == {spools}
    for table, rows in wanted.items():
        columns, copied = published(run.found["consolidate"]["published"][f"{tables}.{table}"])
        assert columns == _columns(primary, tables, table)
        assert Counter(map(tuple, copied)) == rows, table
