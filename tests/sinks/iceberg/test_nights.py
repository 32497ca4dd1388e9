"""Whole runs publish Iceberg tables, and engines that share no code with this package read the source's rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import SparkSession

from harness.lake_readers import opened_duckdb
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of

ORDERS = """
CREATE TABLE {schema}.orders (
    id BIGINT UNSIGNED NOT NULL PRIMARY KEY, small TINYINT, kind ENUM('new', 'paid', 'Ω'), price DECIMAL(38, 10),
    at DATETIME(6), moment TIMESTAMP(6) NULL, lasts TIME(6), note LONGTEXT, raw VARBINARY(100), ratio DOUBLE, day DATE,
    flags BIT(40), wide INT UNSIGNED)
"""
LINES = "CREATE TABLE {schema}.lines (a INT NOT NULL, b VARCHAR(20) NOT NULL, n INT, PRIMARY KEY (a, b))"


def night(spark: SparkSession, server: MysqlServer, schema: str, target: Path, number: int) -> Pipeline:
    run = Pipeline(
        spark,
        settings_of(server),
        target.as_uri(),
        [f"{schema}.*"],
        run_id=f"202601{number:02}T000000Z-00000000",
        refresh="auto",
        chunk_rows=100,
        format="iceberg",
    )
    run.record()
    run.finish()
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


def by_polars(catalog: Catalog, name: str, snapshot: int | None = None) -> list[tuple[Any, ...]]:
    return pl.scan_iceberg(catalog.load_table(name), snapshot_id=snapshot).collect().rows()


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
    expected = []
    for number in (1, 2, 3):
        night(spark, mysql, schema, tmp_path, number)
        expected.append(Counter(tuple(row) for row in mysql.query(f"SELECT * FROM {schema}.lines")))
        catalog = catalog_of(tmp_path)
        assert Counter(by_duckdb(catalog, f"{schema}.lines")) == expected[-1]
        assert Counter(by_polars(catalog, f"{schema}.lines")) == expected[-1]
        # The key has another type in the files: a decimal.
        assert Counter(row[0] for row in by_duckdb(catalog, f"{schema}.orders")) == Counter(
            key for (key,) in mysql.query(f"SELECT id FROM {schema}.orders")
        )
        mysql.query(f"INSERT INTO {schema}.orders (id) VALUES ({2**63 + number}), ({number})")
        mysql.query(f"UPDATE {schema}.orders SET small = {number} WHERE id IN (0, {2**64 - 1})")
        mysql.query(f"UPDATE {schema}.lines SET n = n + 1000 WHERE a % 50 = {number}")
        mysql.query(f"DELETE FROM {schema}.lines WHERE a % 50 = {number + 10}")
        mysql.query(f"INSERT INTO {schema}.lines VALUES ({1000 + number}, 'new', NULL)")
    table = catalog.load_table(f"{schema}.lines")
    for number, rows in enumerate(expected, 1):
        snapshot = table.metadata.snapshot_by_name(f"cdc-202601{number:02}T000000Z-00000000")
        assert snapshot is not None
        assert Counter(by_duckdb(catalog, f"{schema}.lines", snapshot.snapshot_id)) == rows
