"""Tables that are altered after their read are carried over a one-to-one change with Iceberg targets, too, and the
columns of the Iceberg tables follow the source's.

The oracle is the altered table itself when the run moves. Two engines that share no code with this package read the
Iceberg tables.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.jobs.restart import later_position
from airflow_provider_cdc.sources.planning.point import record_point
from harness.lake_readers import iceberg_rows
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.consistency.acting import DURING, act_during
from tests.sinks.iceberg.test_nights import catalog_of

NIGHTLY = {
    "swapped": "a INT, b VARCHAR(20)",
    "remade": "a INT DEFAULT 1, p INT",
    "parted": "p INT, a INT",
    "shared": "a INT, b INT",
}
FRESH = "a INT DEFAULT 1, n INT UNSIGNED"
BAG = "CREATE TABLE {schema}.bag (a INT, b INT)"
FIRST = (
    # By their names, the Iceberg columns could not take these values.
    "ALTER TABLE {schema}.swapped RENAME COLUMN a TO b, RENAME COLUMN b TO a, ALGORITHM=INSTANT",
    "ALTER TABLE {schema}.remade DROP COLUMN a, ADD COLUMN a INT DEFAULT 7",
    # The partition field is of the dropped column.
    "ALTER TABLE {schema}.parted DROP COLUMN p, ADD COLUMN p INT DEFAULT 3",
    "ALTER TABLE {schema}.shared RENAME COLUMN a TO c",
    # Iceberg cannot widen long to decimal, but no snapshot has the column.
    "ALTER TABLE {schema}.fresh RENAME COLUMN a TO c, MODIFY n BIGINT UNSIGNED",
    "ALTER TABLE {schema}.bag RENAME COLUMN b TO c, ADD COLUMN b INT DEFAULT 5",
)
SECOND = (
    "ALTER TABLE {schema}.swapped RENAME COLUMN a TO words",
    "ALTER TABLE {schema}.remade ADD COLUMN more INT DEFAULT 9 AFTER id",
    "ALTER TABLE {schema}.parted RENAME COLUMN a TO c",
)
LAKE = LakeOptions(
    "iceberg",
    partition_by={"*.remade": ["bucket(4, p)"], "*.parted": ["p"]},
    sort_by={"*.remade": ["a desc"]},
)


def _do(server: MysqlServer, schema: str, *statements: str) -> None:
    with server.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_require_primary_key = 0")
        for statement in statements:
            cursor.execute(statement.format(schema=schema))


def _create(server: MysqlServer, schema: str, table: str, columns: str) -> None:
    second = "'text'" if "VARCHAR" in columns else "number"
    _do(
        server,
        schema,
        f"CREATE TABLE {{schema}}.{table} (id BIGINT UNSIGNED PRIMARY KEY, {columns})",
        f"INSERT INTO {{schema}}.{table} WITH RECURSIVE n (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM n "
        f"WHERE number < 59) SELECT number, number % 5, {second} FROM n",
    )


def _write(server: MysqlServer, schema: str, number: int) -> None:
    """Add and delete rows by the columns that all shapes have, and change rows by the columns of the first shape."""
    for table in (*NIGHTLY, "fresh"):
        _do(
            server,
            schema,
            f"DELETE FROM {{schema}}.{table} WHERE id = {10 * number + 5}",
            f"REPLACE INTO {{schema}}.{table} (id) VALUES ({1000 + number})",
        )
    _do(
        server,
        schema,
        f"UPDATE {{schema}}.swapped SET b = {number} WHERE id BETWEEN {10 * number} AND {10 * number + 2}",
        f"UPDATE {{schema}}.remade SET a = 100, p = {number} WHERE id = {10 * number}",
        f"UPDATE {{schema}}.bag SET a = {number} LIMIT 2",
        f"INSERT INTO {{schema}}.bag (a) VALUES ({number}), ({number})",
    )


def _rows(server: MysqlServer, schema: str) -> dict[str, tuple[list[str], Counter[Any]]]:
    return {
        table: (
            [row[0] for row in server.query(f"SHOW COLUMNS FROM {schema}.{table}")],
            Counter(map(tuple, server.query(f"SELECT * FROM {schema}.{table}"))),
        )
        for (table,) in server.query(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
        )
    }


def _ids(table: Table) -> dict[str, int]:
    return {field.name: field.field_id for field in table.schema().fields}


@pytest.mark.slow
def test_rows_are_carried_over_schema_changes_and_iceberg_columns_follow(
    mysql: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose Iceberg columns another program changed meanwhile is read again, and so is one whose partition
    column was dropped and added."""
    for table, definition in NIGHTLY.items():
        _create(mysql, schema, table, definition)
    runs = [f"2026010{number}T000000Z-00000000" for number in (1, 2, 3)]

    def pipeline(number: int, refresh: str = "full") -> Pipeline:
        settings = settings_of(mysql)
        return Pipeline(
            spark, settings, tmp_path.as_uri(), [f"{schema}.*"], run_id=runs[number], refresh=refresh, lake=LAKE
        )

    last = pipeline(0)
    last.record()
    last.finish()
    catalog = catalog_of(tmp_path)
    before = {table: _ids(catalog.load_table(f"{schema}.{table}")) for table in NIGHTLY}
    at_night = _rows(mysql, schema)
    _create(mysql, schema, "fresh", FRESH)
    _do(mysql, schema, BAG, "INSERT INTO {schema}.bag VALUES (1, 2), (1, 2), (3, 4), (3, 5)")

    run, wanted = pipeline(1), dict[str, tuple[list[str], Counter[Any]]]()
    run.record()
    _write(mysql, schema, 0)

    def first() -> None:
        _write(mysql, schema, 1)
        _do(mysql, schema, *FIRST)
        with catalog.load_table(f"{schema}.shared").update_schema() as update:
            update.rename_column("a", "b_of_another")
        _write(mysql, schema, 2)

    def second() -> None:
        _write(mysql, schema, 3)
        _do(mysql, schema, *SECOND)
        _write(mysql, schema, 4)

    def moved(*arguments: Any) -> InitialPoint:
        wanted.update(_rows(mysql, schema))
        point = record_point(*arguments)
        _write(mysql, schema, 5)
        return point

    monkeypatch.setattr(later_position, "record_point", moved)
    with monkeypatch.context() as patch:
        act_during(run, DURING[0], first, patch)
        act_during(run, DURING[1], second, patch)
        run.snapshot()
    run.extract_delta()
    run.consolidate()

    restarts = Run.load(run.run).manifest.restarts
    assert {name.partition(".")[2] for name in restarts[0].carried} == {"swapped", "remade", "fresh", "bag"}
    assert {name.partition(".")[2] for name in restarts[0].tables} == {"parted", "shared"}
    assert not restarts[1].tables
    assert {name.partition(".")[2] for name in restarts[1].carried} == {"swapped", "remade", "parted"}
    after = {table: _ids(catalog.load_table(f"{schema}.{table}")) for table in wanted}
    was = before["swapped"]
    assert after["swapped"] == {"id": was["id"], "b": was["a"], "words": was["b"]}
    was = before["remade"]
    assert (after["remade"]["id"], after["remade"]["p"]) == (was["id"], was["p"])
    was = before["parted"]
    assert after["parted"] == {"id": was["id"], "c": was["a"], "p": was["p"]}
    was = before["remade"]
    assert not {after["remade"]["a"], after["remade"]["more"]} & {*was.values()}
    assert catalog.load_table(f"{schema}.remade").sort_order().fields[0].source_id == after["remade"]["a"]
    for name, present in wanted.items():
        columns, copied = iceberg_rows(tmp_path, f"{schema}.{name}", runs[1])
        assert (columns, Counter(copied)) == present, name
        loaded = catalog.load_table(f"{schema}.{name}")
        assert Counter(pl.scan_iceberg(loaded).collect().rows()) == present[1], name
        # Readers find the columns of a file by their ids.
        for file in loaded.inspect.files()["file_path"].to_pylist():
            fields = pq.read_schema(file.removeprefix("file://"))
            assert {one.name: int(one.metadata[b"PARQUET:field_id"]) for one in fields} == after[name], file
    for name, past in at_night.items():
        columns, copied = iceberg_rows(tmp_path, f"{schema}.{name}", runs[0])
        assert (columns, Counter(copied)) == past, name
    assert all(plan.base == runs[1] for plan in pipeline(2, "auto").preflight())
