"""Dates and times that Python cannot hold (before the year 1, after the year 9999) are partition values like others."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from datetime import date, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.tables.table import TableName, layout_of
from airflow_provider_cdc.errors import ConfigurationError
from harness.lake_readers import opened_duckdb
from harness.pipeline import settings_of
from harness.postgres_server import PostgresServer
from harness.spark_iceberg import spark_reader
from tests.sinks.catalogs import spark_catalog
from tests.sinks.iceberg.runs import iceberg_table, run_of
from tests.sinks.iceberg.test_nights import catalog_of, drop_slot, night
from tests.sinks.test_contract import ORDERS, Lake

DAY = 86_400_000_000
# 4714 BC, 1 BC, the years 1, 1969 to 9999, 10000, 20000, 292194, 294246; PostgreSQL's last day is in 5874897.
DAYS = [-2_440_588, -719_163, -719_162, -1, 0, 2_932_896, 2_932_897, 6_585_321, 106_000_000, 2_145_031_948, None]
LAST_HOUR = 2**31 * 3_600_000_000 - 1
LATE = [0, 1, 2_932_897 * DAY - 1, 2_932_897 * DAY, 6_585_321 * DAY, LAST_HOUR, None]
MOMENTS = [-2_440_588 * DAY, -719_162 * DAY - 1, -719_162 * DAY, -1, *LATE]
KINDS: dict[str, tuple[pa.DataType, list[int | None], tuple[str, ...]]] = {
    "date": (pa.date32(), DAYS, ("c", "bucket(3, c)", "year(c)", "month(c)", "day(c)", "bucket(3, id)")),
    "time": (pa.timestamp("us"), MOMENTS, ("c", "bucket(3, c)", "year(c)", "hour(c)", "bucket(3, id)")),
    "late": (pa.timestamp("us"), LATE, ("month(c)", "day(c)")),
    "moment": (pa.timestamp("us", "UTC"), LATE, ("c", "bucket(3, c)", "year(c)", "month(c)", "day(c)", "hour(c)")),
}
"""By type: days or microseconds since 1970, and the partitionings of a table with these values."""
PYTHON_DAYS = ("0001-01-02", "1970-01-01", "9999-12-31")
"""Dates that Python has, so PyIceberg and Polars can compare with them."""


def publish(lake: Lake, number: int, transform: str, kind: str) -> Table:
    """The table of one column ``c``, by its partitioning."""
    name = TableName("shop", f"t{number}")
    type_, values, _ = KINDS[kind]
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("c", type_)])
    rows = pa.table([pa.array(range(len(values))), pa.array(values, type_)], schema)
    lake.sink.publish(run_of(lake, number, {name: rows}, ("id",), layout=layout_of([transform], [])))
    return iceberg_table(lake, name)


def pairs(rows: pa.Table) -> list[tuple[int, int | None]]:
    column = rows["c"].cast(pa.int32() if rows["c"].type == pa.date32() else pa.int64())
    return sorted(zip(rows["id"].to_pylist(), column.to_pylist(), strict=True))


def matches(values: list[int | None], sign: str, number: int) -> list[int]:
    compare = {"=": operator.eq, ">=": operator.ge, "<": operator.lt}[sign]
    return [row for row, value in enumerate(values) if value is not None and compare(value, number)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_finds_them(lake: Lake, kind: str) -> None:
    type_, values, transforms = KINDS[kind]
    is_date, zone = type_ == pa.date32(), "+00:00" if kind == "moment" else ""
    shown = "DATE '1970-01-01' + {}::INT" if is_date else "make_timestamp({})"
    shown = f"({shown})::TIMESTAMPTZ" if zone else f"({shown})"
    for number, transform in enumerate(transforms, 1):
        table = publish(lake, number, transform, kind)
        assert pairs(table.scan().to_arrow()) == [*enumerate(values)]
        frame = pl.scan_iceberg(table)
        assert pairs(frame.collect().to_arrow()) == [*enumerate(values)]
        with opened_duckdb() as connection:
            source = f"iceberg_scan('{table.metadata_location}')"
            as_number = "c - DATE '1970-01-01'" if is_date else "epoch_us(c)"
            assert connection.execute(f"SELECT id, {as_number} FROM {source} ORDER BY id").fetchall() == [
                *enumerate(values)
            ]
            for sign, value in product(("=", ">=", "<"), values[:-1]):
                found = connection.execute(f"SELECT id FROM {source} WHERE c {sign} {shown.format(value)} ORDER BY id")
                assert [row for (row,) in found.fetchall()] == matches(values, sign, value or 0), (
                    transform,
                    sign,
                    value,
                )
        for sign, day in product(("=", ">=", "<"), PYTHON_DAYS):
            edge = date.fromisoformat(day) if is_date else datetime.fromisoformat(f"{day}T00:00:00{zone}")
            as_micros = np.datetime64(day, "D" if is_date else "us").astype(int).item()
            predicate = {"=": EqualTo, ">=": GreaterThanOrEqual, "<": LessThan}[sign]("c", edge.isoformat())
            wanted = matches(values, sign, as_micros)
            assert sorted(table.scan(predicate).to_arrow()["id"].to_pylist()) == wanted, (transform, sign, day)
            by_polars = {"=": pl.col("c") == edge, ">=": pl.col("c") >= edge, "<": pl.col("c") < edge}[sign]
            assert sorted(frame.filter(by_polars).collect()["id"]) == wanted, (transform, sign, day)


@pytest.mark.long
def test_spark_finds_them(lake: Lake) -> None:
    queries = ["SELECT 1"]
    expected: list[list[tuple[Any, ...]]] = []
    for kind, (_, values, transforms) in KINDS.items():
        number, literal = {
            "date": ("unix_date(c)", "date_from_unix_date({})"),
            "moment": ("unix_micros(c)", "timestamp_micros({}L)"),
        }.get(kind, ("unix_micros(cast(c AS timestamp))", "cast(timestamp_micros({}L) AS timestamp_ntz)"))
        for transform in transforms:
            table = f"`default`.{'.'.join(publish(lake, len(expected) + 1, transform, kind).name())}"
            cases = [*product(("=", ">=", "<"), values[:-1])]
            queries += [
                f"SELECT id, {number} FROM {table}",
                " UNION ALL ".join(
                    f"SELECT {case}, id FROM {table} WHERE c {sign} {literal.format(value)}"
                    for case, (sign, value) in enumerate(cases)
                ),
            ]
            expected += [
                [*enumerate(values)],
                [(case, row) for case, (sign, value) in enumerate(cases) for row in matches(values, sign, value or 0)],
            ]
    with spark_reader() as spark:
        _, *answers = spark.sql(queries, spark_catalog(lake.storage))
    for query, (rows, _), wanted in zip(queries[1:], answers, expected, strict=True):
        assert sorted(rows) == wanted, query[:100]


def test_an_hour_that_iceberg_cannot_number_is_refused(lake: Lake) -> None:
    for at in (LAST_HOUR + 1, -LAST_HOUR - 2):
        rows = pa.table([pa.array([0]), pa.array([at], pa.timestamp("us"))], ["id", "c"])
        with pytest.raises(ConfigurationError, match="245,000 years away"):
            lake.sink.publish(run_of(lake, 1, {ORDERS: rows}, layout=layout_of(["hour(c)"], [])))


FAR = "'10000-01-01'", "'5874897-12-31'", "'0044-03-15 BC'", "'4714-11-24 BC'", "'2026-01-31'", "NULL"


@pytest.mark.slow
def test_nights_of_rows_that_move_between_far_dates(
    spark: SparkSession, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    layouts = {
        "t1": ["d"],
        "t2": ["day(d)"],
        "t3": ["year(ts)", "bucket(2, tz)"],
        "t4": ["hour(ts)"],
        "t5": ["tz"],
        "t6": [],
    }
    for name in layouts:
        for statement in (
            f"CREATE TABLE {name} (id int, d date, ts timestamp, tz timestamptz, PRIMARY KEY (id))",
            f"ALTER TABLE {name} REPLICA IDENTITY FULL",
            (
                f"INSERT INTO {name} SELECT g, d::date, '20000-01-01'::timestamp + interval '1 year' * (g % 3), "
                "'0044-03-15 BC'::timestamptz - interval '1 day' * (g % 2) "
                f"FROM generate_series(1, 400) g, LATERAL (SELECT (ARRAY[{', '.join(FAR)}])[g % 6 + 1] d) one"
            ),
        ):
            postgres.query(statement, database=database)
    # Its key is a date.
    for statement in (
        "CREATE TABLE t7 (d date PRIMARY KEY, id int)",
        "ALTER TABLE t7 REPLICA IDENTITY FULL",
        "INSERT INTO t7 SELECT '9999-12-01'::date + g, g FROM generate_series(1, 400) g",
    ):
        postgres.query(statement, database=database)
    partition_by = {f"public.{name}": fields for name, fields in layouts.items() if fields}
    for number in (1, 2, 3):
        last = night(
            spark, postgres, "public", tmp_path, number, database=database, slot="far", partition_by=partition_by
        )
        for plan in last.plans:
            assert ("rolled forward" in plan.reason) == (number > 1), plan.reason
        catalog = catalog_of(tmp_path)
        with opened_duckdb() as connection:
            for name in (*layouts, "t7"):
                times = ", epoch_us(ts), epoch_us(tz)" if name != "t7" else ""
                source = f"iceberg_scan('{catalog.load_table(f'public.{name}').metadata_location}')"
                found = connection.execute(f"SELECT id, d - DATE '1970-01-01'{times} FROM {source}").fetchall()
                assert Counter(found) == Counter(truth(postgres, database, name)), name
                filtered = connection.execute(f"SELECT id FROM {source} WHERE d = DATE '10000-01-01'").fetchall()
                assert Counter(row for (row,) in filtered) == Counter(
                    row[0] for row in truth(postgres, database, name) if row[1] == 2_932_897
                )
        for name in layouts:
            for statement in (
                f"UPDATE {name} SET d = '5874897-12-30', ts = ts + interval '1 year' WHERE id % 100 = {number}",
                f"UPDATE {name} SET d = '10000-01-01', tz = '4714-11-24 00:00+00 BC' WHERE id % 100 = {number + 10}",
                f"UPDATE {name} SET d = NULL, ts = NULL WHERE id % 100 = {number + 20}",
                f"DELETE FROM {name} WHERE id % 100 = {number + 30}",
                f"INSERT INTO {name} VALUES ({1000 + number}, '12345-06-07', '12345-06-07', '12345-06-07Z')",
            ):
                postgres.query(statement, database=database)
        postgres.query(f"UPDATE t7 SET id = -id WHERE id % 100 = {number}", database=database)
        postgres.query(f"INSERT INTO t7 VALUES ('{20000 + number}-01-01', {1000 + number})", database=database)
    drop_slot(replace(settings_of(postgres), database=database), "far")


def truth(postgres: PostgresServer, database: str, name: str) -> list[tuple[Any, ...]]:
    micros = ", ".join(f"(extract(epoch from {column}) * 1000000)::bigint" for column in ("ts", "tz"))
    times = f", {micros}" if name != "t7" else ""
    return [
        tuple(row) for row in postgres.query(f"SELECT id, d - '1970-01-01'::date{times} FROM {name}", database=database)
    ]
