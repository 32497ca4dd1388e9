"""Whole runs publish Iceberg tables, and engines that share no code with this package read the source's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import name_of
from harness.lake_readers import opened_duckdb
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from harness.postgres_server import PostgresServer
from tests.interrupting import Interrupted, commits_fail

ORDERS = """
CREATE TABLE {schema}.orders (
    id BIGINT UNSIGNED NOT NULL PRIMARY KEY, small TINYINT, kind ENUM('new', 'paid', 'Ω'), price DECIMAL(38, 10),
    at DATETIME(6), moment TIMESTAMP(6) NULL, lasts TIME(6), note LONGTEXT, raw VARBINARY(100), ratio DOUBLE, day DATE,
    flags BIT(40), wide INT UNSIGNED)
"""
LINES = "CREATE TABLE {schema}.lines (a INT NOT NULL, b VARCHAR(20) NOT NULL, n INT, PRIMARY KEY (a, b))"


def night(
    spark: SparkSession,
    server: MysqlServer | PostgresServer,
    schema: str,
    target: Path,
    number: int,
    refresh: str = "auto",
    database: str = "",
    arrays: str = "text",
    slot: str = "",
    **options: Any,
) -> Pipeline:
    settings = settings_of(server)
    run = Pipeline(
        spark,
        replace(settings, database=database) if database else settings,
        target.as_uri(),
        [f"{schema}.*"],
        run_id=f"202601{number:02}T000000Z-00000000",
        refresh=refresh,
        chunk_rows=100,
        arrays=arrays,
        standing_slot=slot,
        lake=LakeOptions("iceberg", **options),
    )
    try:
        run.record()
        run.finish()
    except Exception:
        run.release()
        raise
    return run


def catalog_of(target: Path) -> Catalog:
    return load_catalog("default", type="sql", uri=f"sqlite:///{target}/_catalog.db", warehouse=target.as_uri())


def by_duckdb(catalog: Catalog, name: str, snapshot: int | None = None) -> list[tuple[Any, ...]]:
    table = catalog.load_table(name)
    version = f", snapshot_from_id = {snapshot}" if snapshot else ""
    with opened_duckdb() as connection:
        rows: list[tuple[Any, ...]] = connection.execute(
            f"FROM iceberg_scan('{table.metadata_location}'{version})"
        ).fetchall()
    return rows


def by_id(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: int(row[0]))


def by_polars(catalog: Catalog, name: str, snapshot: int | None = None) -> list[tuple[Any, ...]]:
    return pl.scan_iceberg(catalog.load_table(name), snapshot_id=snapshot).collect().rows()


def _lost(spark: SparkSession, server: MysqlServer, schema: str, target: Path, number: int) -> None:
    """A run that ends between the commits of its tables and its cut, and is never completed."""

    def end(commit: Callable[[], Any], table: str) -> Any:
        if table.endswith("cdc_cuts"):
            raise Interrupted
        return commit()

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, end)
        with pytest.raises(Interrupted):
            night(spark, server, schema, target, number)


@pytest.mark.slow
def test_nights_of_mysql_are_right_in_every_engine(
    spark: SparkSession, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    for statement in (ORDERS, LINES):
        mysql.query(statement.format(schema=schema))
    mysql.query(
        f"INSERT INTO {schema}.orders VALUES (18446744073709551615, -128, 'Ω', 9999999999999999999999999999.9999999999,"
        " '1000-01-01 00:00:00.000001', '1970-01-01 00:00:01.000001', '-838:59:59', REPEAT('z', 6000), X'FF00FF', -0.0,"
        f" '9999-12-31', b'1111', 4294967295), (0, {', '.join(['NULL'] * 12)})"
    )
    for start in range(0, 500, 250):
        values = ", ".join(f"({n}, 'b{n % 7}', {n})" for n in range(start, start + 250))
        mysql.query(f"INSERT INTO {schema}.lines VALUES {values}")
    expected, ids = [], []
    for number in (1, 2, 3):
        run = night(spark, mysql, schema, tmp_path, number)
        assert all(bool(plan.base) == (number > 1) for plan in run.plans), run.plans
        expected.append(Counter(tuple(row) for row in mysql.query(f"SELECT * FROM {schema}.lines")))
        catalog = catalog_of(tmp_path)
        assert Counter(by_duckdb(catalog, f"{schema}.lines")) == expected[-1]
        assert Counter(by_polars(catalog, f"{schema}.lines")) == expected[-1]
        ids.append({field.name: field.field_id for field in catalog.load_table(f"{schema}.lines").schema().fields})
        # The key has another type in the files: a decimal.
        assert Counter(row[0] for row in by_duckdb(catalog, f"{schema}.orders")) == Counter(
            key for (key,) in mysql.query(f"SELECT id FROM {schema}.orders")
        )
        mysql.query(f"INSERT INTO {schema}.orders (id) VALUES ({2**63 + number}), ({number})")
        mysql.query(f"UPDATE {schema}.orders SET small = {number} WHERE id IN (0, {2**64 - 1})")
        mysql.query(f"UPDATE {schema}.lines SET n = n + 1000 WHERE a % 50 = {number}")
        mysql.query(f"DELETE FROM {schema}.lines WHERE a % 50 = {number + 10}")
        mysql.query(f"INSERT INTO {schema}.lines (a, b) VALUES ({1000 + number}, 'new')")
        if number == 2:
            # The new column has the earlier name of another one.
            mysql.query(f"ALTER TABLE {schema}.lines RENAME COLUMN n TO m, ADD n INT DEFAULT 5")
            # This night renames the Iceberg column. The next one begins at the copy before it.
            _lost(spark, mysql, schema, tmp_path, 20)
            mysql.query(f"UPDATE {schema}.lines SET m = -1 WHERE a = 7")
    assert ids[0] == ids[1]
    assert ids[2] == {"a": ids[1]["a"], "b": ids[1]["b"], "m": ids[1]["n"], "n": ids[2]["n"]}
    assert ids[2]["n"] not in ids[1].values()
    table = catalog.load_table(f"{schema}.lines")
    for number, rows in enumerate(expected, 1):
        snapshot = table.metadata.snapshot_by_name(f"cdc-202601{number:02}T000000Z-00000000")
        assert snapshot is not None
        assert Counter(by_duckdb(catalog, f"{schema}.lines", snapshot.snapshot_id)) == rows
    # Another program adds and deletes rows: the next night reads that table in full, and no other one.
    foreign = {"a": pa.array([-1], pa.int32()), "b": ["foreign"], "m": [None], "n": [None]}
    table.append(pa.table(foreign, table.schema().as_arrow()))
    table.delete("a = 3")
    last = night(spark, mysql, schema, tmp_path, 4, on_foreign_commit="replace")
    reasons = {plan.table.name: plan.reason for plan in last.plans}
    assert "another program changed rows" in reasons["lines"]
    assert "rolled forward" in reasons["orders"]
    expected.append(Counter(tuple(row) for row in mysql.query(f"SELECT * FROM {schema}.lines")))
    assert Counter(by_duckdb(catalog, f"{schema}.lines")) == expected[-1]
    assert Counter(by_polars(catalog, f"{schema}.lines")) == expected[-1]


@pytest.mark.slow
def test_columns_of_postgresql_are_followed_by_their_numbers(
    spark: SparkSession, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """Nights of a table whose columns are renamed, swapped, retyped, dropped and made again; then the table is."""
    name = "public.t"
    changes = [
        [
            f"CREATE TABLE {name} (id int PRIMARY KEY, a text, b text, n int, few int2[], words text[])",
            (
                f"INSERT INTO {name} SELECT g, 'a' || g, 'b' || g, g, ARRAY[g, NULL], "
                "(ARRAY['', NULL, 'q\"', 'NULL'])[:g % 5] FROM generate_series(1, 250) g"
            ),
        ],
        [
            f"ALTER TABLE {name} RENAME a TO z",
            f"ALTER TABLE {name} RENAME b TO a",
            f"ALTER TABLE {name} ALTER n TYPE bigint, ADD more date DEFAULT '1000-03-15'",
        ],
        [
            f"ALTER TABLE {name} DROP a",
            f"ALTER TABLE {name} ADD a text",
            f"UPDATE {name} SET a = 'new' WHERE id % 2 = 0",
        ],
        [f"ALTER TABLE {name} ALTER n TYPE text USING 'n' || n"],
        [
            f"CREATE TABLE {name}2 (id int PRIMARY KEY, z text, n text)",
            f"INSERT INTO {name}2 VALUES (1, 'other', 'table')",
            f"DROP TABLE {name}",
            f"ALTER TABLE {name}2 RENAME TO t",
        ],
    ]
    expected, ids = [], []
    for number, statements in enumerate(changes, 1):
        for statement in [*statements, f"ALTER TABLE {name} REPLICA IDENTITY FULL"]:
            postgres.query(statement, database=database)
        options = {"arrays": "list", "on_type_change": "new_column", "slot": "columns"}
        last = night(spark, postgres, "public", tmp_path, number, database=database, **options)
        # Only the statements of the third night do not rewrite the table.
        assert ("rolled forward" in last.plans[0].reason) == (number == 3), last.plans[0].reason
        catalog = catalog_of(tmp_path)
        table = catalog.load_table(name)
        ids.append({field.name: field.field_id for field in table.schema().fields})
        expected.append(by_id(postgres.query(f"SELECT {', '.join(ids[-1])} FROM {name}", database=database)))
    first, second, third, fourth, fifth = ids
    assert (second["z"], second["a"], second["n"]) == (first["a"], first["b"], first["n"])
    assert third["a"] not in second.values()
    assert fourth == {**third, "n": fourth["n"]}
    assert fourth["n"] not in third.values()
    assert not {*fifth.values()} & {*fourth.values()}
    for number, rows in enumerate(expected, 1):
        snapshot = table.metadata.snapshot_by_name(f"cdc-202601{number:02}T000000Z-00000000")
        assert snapshot is not None
        scan = table.scan(snapshot_id=snapshot.snapshot_id)
        assert scan.to_arrow().column_names == list(ids[number - 1])
        assert by_id(by_duckdb(catalog, name, snapshot.snapshot_id)) == rows
        assert by_id(by_polars(catalog, name, snapshot.snapshot_id)) == rows
        assert by_id([tuple(row.values()) for row in scan.to_arrow().to_pylist()]) == rows
    drop_slot(replace(settings_of(postgres), database=database), "columns")


def drop_slot(settings: ConnectionSettings, option: str) -> None:
    with session(settings) as connection:
        slot = name_of(connection, option)
    slots.drop(settings, slot, slot)


@pytest.mark.slow
def test_lists_of_postgresql_are_rolled_forward(
    spark: SparkSession, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """The types of their elements differ in the files. Values that no list represents pass, or stop the run."""
    name = "public.t"
    settings = replace(settings_of(postgres), database=database)
    for statement in (
        f"CREATE TABLE {name} (id int PRIMARY KEY, few int2[], at time[], words text[])",
        f"ALTER TABLE {name} REPLICA IDENTITY FULL",
        (
            f"INSERT INTO {name} SELECT g, ARRAY[g, NULL], ARRAY['12:34:56.789', NULL]::time[], "
            "ARRAY['a' || g, NULL, ''] FROM generate_series(1, 500) g"
        ),
    ):
        postgres.query(statement, database=database)
    for number in (1, 2, 3):
        last = night(spark, postgres, "public", tmp_path, number, database=database, arrays="list", slot="lists")
        assert ("rolled forward" in last.plans[0].reason) == (number > 1), last.plans[0].reason
        truth = by_id(postgres.query(f"SELECT id, few, words FROM {name}", database=database))
        assert by_id((row[0], row[1], row[3]) for row in by_duckdb(catalog_of(tmp_path), name)) == truth
        for statement in (
            f"UPDATE {name} SET few = '[0:1]={{7,8}}' WHERE id = 9",
            f"UPDATE {name} SET few = few || {number}::int2, at = NULL WHERE id % 100 = {number} OR id = 9",
            f"UPDATE {name} SET few = NULL WHERE id = 9",
            f"INSERT INTO {name} VALUES ({1000 + number}, '{{}}', '{{}}', ARRAY['new'])",
        ):
            postgres.query(statement, database=database)
    at = {row[2][0] for row in by_duckdb(catalog_of(tmp_path), name) if row[2]}
    assert at == {((12 * 60 + 34) * 60 + 56) * 1_000_000 + 789_000}
    postgres.query(f"UPDATE {name} SET few = '{{{{1}}}}' WHERE id = 77", database=database)
    with pytest.raises(ValueNotRepresentable, match=r"t\.few: the array \{\{1\}\} does not fit into list"):
        night(spark, postgres, "public", tmp_path, 4, database=database, arrays="list", slot="lists")
    drop_slot(settings, "lists")
