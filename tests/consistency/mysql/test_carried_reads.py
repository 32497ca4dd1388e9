"""Tables that are altered after their read are not read again, if the change is one to one.

The oracle is the altered table itself: its rows when the run moves.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.tables.table import Evolution
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.jobs.restart import later_position
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.source import MysqlSource
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from airflow_provider_cdc.sources.planning.point import record_point
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.consistency.acting import DURING, act_during, spool_at_once

KEYED = ("orders", "visits", "straddled", "emptied", "quiet")
CARRIED = {"orders", "visits", "quiet", "bag"}

FIRST = (
    "ALTER TABLE orders ADD COLUMN extra INT NOT NULL DEFAULT 7 AFTER id, ALGORITHM=INSTANT",
    "ALTER TABLE visits RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "ALTER TABLE visits MODIFY mood ENUM('calm','glad','new')",
    "ALTER TABLE quiet ADD COLUMN extra VARCHAR(9) DEFAULT 'abc'",
    "ALTER TABLE bag ADD COLUMN extra INT DEFAULT 5 FIRST",
    "TRUNCATE TABLE emptied",
)
SECOND = (
    "ALTER TABLE orders ADD COLUMN more INT DEFAULT 9",
    "ALTER TABLE orders RENAME COLUMN a TO first_of_all",
    "ALTER TABLE bag DROP COLUMN b",
    "TRUNCATE TABLE emptied",
)


def _do(server: MysqlServer, schema: str, *statements: str) -> None:
    with server.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_require_primary_key = 0")
        for statement in statements:
            cursor.execute(statement)


def _write(server: MysqlServer, schema: str, number: int) -> None:
    """Change, add and delete rows of all tables, by the columns that all shapes have."""
    low = 10 * number
    for table in ("orders", "visits", "straddled", "emptied"):
        _do(
            server,
            schema,
            f"UPDATE {table} SET mood = 'glad' WHERE id BETWEEN {low} AND {low + 4}",
            f"DELETE FROM {table} WHERE id = {low + 5}",
            f"REPLACE INTO {table} (id, mood) VALUES ({1000 + number}, 'glad')",
        )
    _do(server, schema, f"UPDATE bag SET a = {number} LIMIT 3", f"INSERT INTO bag (a) VALUES ({number}), ({number})")


def _rows(server: MysqlServer, schema: str) -> dict[str, Counter[Any]]:
    tables = (*KEYED, "bag")
    return {table: Counter(map(tuple, server.query(f"SELECT * FROM {schema}.{table}"))) for table in tables}


@pytest.fixture
def tables(mysql: MysqlServer, schema: str) -> str:
    columns = "a INT DEFAULT 1, b INT DEFAULT 2, mood ENUM('calm','glad')"
    for table in KEYED:
        _do(mysql, schema, f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
        rows = ", ".join(f"({number}, {number}, {number + 1}, 'calm')" for number in range(60))
        _do(mysql, schema, f"INSERT INTO {table} VALUES {rows}")
    _do(mysql, schema, "CREATE TABLE bag (a INT, b INT)", "INSERT INTO bag VALUES (1, 2), (1, 2), (3, 4), (3, 5)")
    return schema


@pytest.mark.slow
# Without writers in the second read, it waits for a second piece until its patience ends.
@pytest.mark.parametrize("spools", [False, pytest.param(True, marks=pytest.mark.long)])
def test_rows_that_were_read_are_carried_over_schema_changes(
    mysql: MysqlServer,
    spark: SparkSession,
    tables: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spools: bool,
) -> None:
    """Also if the table is altered a second time. A table that was altered before its read had surely ended is read
    again."""
    if spools:
        spool_at_once(monkeypatch)
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{tables}.*"], chunk_rows=25)
    run.record()
    _write(mysql, tables, 0)
    ends_of_reads, straddled = MysqlSource.ends_of_reads, list[str]()

    def noted(source: MysqlSource, these: Any) -> Any:
        if not straddled and "straddled" in {table.name.name for table in these}:
            straddled.append("ALTER TABLE straddled RENAME COLUMN a TO b, RENAME COLUMN b TO a")
            _do(mysql, tables, *straddled)
        return ends_of_reads(source, these)

    def first() -> None:
        _write(mysql, tables, 1)
        _do(mysql, tables, *FIRST)
        _write(mysql, tables, 2)

    wanted: dict[str, Counter[Any]] = {}

    def second() -> None:
        _write(mysql, tables, 3)
        _do(mysql, tables, *SECOND)
        _write(mysql, tables, 4)

    def moved(*arguments: Any) -> InitialPoint:
        wanted.update(_rows(mysql, tables))
        point = record_point(*arguments)
        _write(mysql, tables, 5)
        return point

    monkeypatch.setattr(MysqlSource, "ends_of_reads", noted)
    monkeypatch.setattr(later_position, "record_point", moved)
    with monkeypatch.context() as patch:
        act_during(run, DURING[0], first, patch)
        act_during(run, DURING[1], second, patch)
        run.snapshot()
    run.extract_delta()
    run.consolidate()

    loaded = Run.load(run.run)
    # If pieces are recorded, the run finds some of the changes earlier.
    if not spools:
        assert [sorted(name.partition(".")[2] for name in restart.tables) for restart in loaded.manifest.restarts] == [
            ["emptied", "straddled"],
            ["emptied"],
        ]
        assert {name.partition(".")[2] for name in loaded.manifest.restarts[0].carried} == CARRIED
        assert {name.partition(".")[2] for name in loaded.manifest.restarts[1].carried} == {"orders", "bag"}
        kept = {entry.table.name.name for entry in loaded.manifest.tables if entry.basis}
        assert kept == {*CARRIED, "straddled"}
        assert loaded.result_of(SnapshotResult).tables
    for table, rows in wanted.items():
        columns, copied = published(run.found["consolidate"]["published"][f"{tables}.{table}"])
        assert columns == [row[0] for row in mysql.query(f"SHOW COLUMNS FROM {tables}.{table}")]
        assert Counter(map(tuple, copied)) == rows, table


@pytest.mark.slow
def test_a_read_is_carried_only_between_its_end_and_the_new_position(
    mysql: MysqlServer, spark: SparkSession, tables: str, tmp_path: Path
) -> None:
    run = Pipeline(spark, settings_of(mysql), tmp_path.as_uri(), [f"{tables}.orders"])
    run.record()
    manifest = Run.load(run.run).manifest
    source, was, start = MysqlSource(settings_of(mysql)), manifest.tables[0].table, manifest.initial
    (ended,) = source.ends_of_reads([was]).values()
    _write(mysql, tables, 1)
    before = _position(mysql)
    _do(mysql, tables, "ALTER TABLE orders ADD COLUMN extra INT NOT NULL DEFAULT 7")
    (late,) = source.ends_of_reads([was]).values()
    _write(mysql, tables, 2)
    end = _position(mysql)
    with session(settings_of(mysql)) as connection:
        (now,) = read_tables(connection, [was.name])

    def carried(**others: Any) -> Evolution:
        given: dict[str, Any] = {"table": was, "now": now, "ended": ended, "end": end} | others
        return source.carry_read(manifest.identity, start, **given)

    assert [era.columns for era in carried().eras] == [was.columns]
    with pytest.raises(SchemaChanged, match="may have come before the end of the read"):
        carried(ended=late)
    with pytest.raises(SchemaChanged, match="altered again"):
        carried(now=was)
    with pytest.raises(SchemaChanged, match="does not contain the schema change"):
        carried(end=before)
    # The default of the new column is in the log, also for a user who may not read the column.
    user = f"u_{tables}"[:32]
    mysql.query(f"CREATE USER {user}@'%' IDENTIFIED BY 'secret'")
    mysql.query(f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, RELOAD ON *.* TO {user}@'%'")
    mysql.query(f"GRANT SELECT (id, a, b, mood) ON {tables}.orders TO {user}@'%'")
    limited = MysqlSource(settings_of(mysql, user, "secret"))
    try:
        with pytest.raises(SchemaChanged, match="lacks SELECT on the table or on some of its columns"):
            limited.carry_read(manifest.identity, start, was, now, ended, end)
    finally:
        mysql.query(f"DROP USER {user}@'%'")
    _do(mysql, tables, "TRUNCATE TABLE orders")
    with pytest.raises(SchemaChanged, match="TRUNCATE"):
        carried()


def _position(server: MysqlServer) -> GtidSet:
    return GtidSet.parse(server.query("SELECT @@global.gtid_executed")[0][0])
