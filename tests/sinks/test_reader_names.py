"""Preflight warns of exactly the columns that a reader misreads or refuses, and the documented calls read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import time
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.lake import LatestCopy, open_dataset, read_latest
from airflow_provider_cdc.sinks.base import Publication, TableChange
from airflow_provider_cdc.sinks.reader_warnings import RESERVED, reader_warnings
from harness.lake_readers import opened_duckdb
from harness.spark_iceberg import spark_reader
from tests.sinks.catalogs import spark_catalog
from tests.sinks.iceberg.runs import WHEN, iceberg_table, run_id_of, run_of
from tests.sinks.test_contract import MYSQL, SERVER, Lake

ROWS = 12
NAMES: list[tuple[str, ...]] = [
    ("plain",),
    ("snapshot",),
    ("SnapShot",),
    ("k",),
    ("K",),
    ("A", "a"),
    ("É", "é"),
    ("\u212a", "k1", "K1"),
    ("İ", "i"),
    ("ID",),
    *((name,) for name in RESERVED),
    ("_FILE", "_Partition", "file_path", "pos"),
    ("_change_type", "_change_ordinal", "_commit_snapshot_id"),
    ("filename", "file_row_number", "file_index", "rowid"),
    ("_metadata", "__index_level_0__", "index"),
    ("a.b", "a"),
    ('a"b', "a`b", "a'b", "a/b", "a\\b"),
    (" ", "a ", "\t", "\x01"),
    (" ,;{}()\n\t=", "a=b"),
    ("é" * 64, "😀", "1", "1a"),
    ("element", "list", "key", "value"),
    # The same letter, composed and decomposed.
    ("é", "e\u0301"),
]
"""The columns of each table, besides its key `id`."""


def rows_of(names: Sequence[str]) -> pa.Table:
    texts = {name: pa.array([f"{at}-{row}" for row in range(ROWS)]) for at, name in enumerate(names)}
    schema = pa.schema([pa.field("id", pa.int64(), False), *(pa.field(name, pa.string()) for name in names)])
    return pa.table({"id": range(ROWS), **texts}, schema)


TABLES = {TableName("shop", f"t{number}"): rows_of(names) for number, names in enumerate(NAMES)}
Find = Callable[[str, str], list[int]]
"""A function that returns the ids of the rows whose column has a value."""


def warned(lake: Lake, tables: dict[TableName, pa.Table]) -> set[TableName]:
    """The tables with a column that preflight names."""
    found = set()
    for table, rows in tables.items():
        for warning in reader_warnings(lake.storage.uri, lake.format, {table: rows.schema}):
            if warning.startswith(str(table)):
                found.add(table)
    return found


def is_right(names: Sequence[str], read: Callable[[], list[tuple[Any, ...]]], find: Find) -> bool:
    """Return whether a reader returns the rows, and finds a row by the value of each column."""
    expected = [tuple(row.values()) for row in rows_of(names).to_pylist()]
    try:
        return sorted(read()) == expected and all(find(name, f"{at}-7") == [7] for at, name in enumerate(names))
    except Exception:
        return False


def quoted(name: str, quote: str = '"') -> str:
    return quote + name.replace(quote, quote * 2) + quote


def by_duckdb(source: str, names: Sequence[str]) -> bool:
    with opened_duckdb() as connection:

        def find(name: str, value: str) -> list[int]:
            query = f"SELECT id FROM {source} WHERE {quoted(name)} = ?"
            return [row for (row,) in connection.execute(query, [value]).fetchall()]

        # Columns that DuckDB adds are at the end.
        rows = connection.execute(f"FROM {source}").fetchall()
        return is_right(names, lambda: [row[: len(names) + 1] for row in rows], find)


def by_spark(spark: SparkSession, files: Sequence[str], names: Sequence[str]) -> bool:
    def find(name: str, value: str) -> list[int]:
        matching = spark.read.parquet(*files).where(f.col(quoted(name, "`")) == value)
        return [row.id for row in matching.select("id").collect()]

    return is_right(names, lambda: [tuple(row) for row in spark.read.parquet(*files).collect()], find)


def by_pyiceberg(table: Table, names: Sequence[str]) -> bool:
    equal: Any = EqualTo

    def find(name: str, value: str) -> list[int]:
        ids: list[int] = table.scan(equal(name, value)).to_arrow()["id"].to_pylist()
        return ids

    return is_right(names, lambda: [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()], find)


def paths(copy: LatestCopy) -> list[str]:
    return [file.removeprefix("file://") for file in copy.locations]


@contextmanager
def setting(spark: SparkSession, name: str) -> Iterator[None]:
    spark.conf.set(name, "true")
    try:
        yield
    finally:
        spark.conf.unset(name)


def publish_parquet(lake: Lake, tables: dict[TableName, pa.Table]) -> Iterator[tuple[TableName, LatestCopy]]:
    """Publish copies of two files each."""
    staging = Staging(lake.scratch.folder(run_id_of(1)))
    changes = []
    for table, rows in tables.items():
        files = []
        for at in (0, 1):
            with staging.writer(f"chunks/{folder_name(table)}/part-{at:06}", rows.schema) as writer:
                writer.write(rows.slice(at * ROWS // 2, ROWS // 2))
            files += writer.files
        changes.append(TableChange(table, tuple(files)))
    position = f"{SERVER}:1-1"
    lake.sink.publish(
        Publication(run_id_of(1), staging, tuple(changes), "initial_gtid_set", position, WHEN, WHEN, MYSQL)
    )
    for table in tables:
        copy = read_latest(lake.storage.uri, str(table))
        assert copy is not None
        yield table, copy


@pytest.mark.slow
def test_columns_of_parquet_copies_that_readers_misread(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake("parquet", Storage((tmp_path / "k=7").as_uri()))
    misread = set()
    for table, copy in publish_parquet(lake, TABLES):
        expected, files = TABLES[table], copy.locations
        names = expected.column_names[1:]
        if not (by_duckdb(f"read_parquet({files})", names) and by_spark(spark, files, names)):
            misread.add(table)
        # The calls in the documentation.
        if duckdb.read_parquet(files, hive_partitioning=False).columns == expected.column_names:
            assert by_duckdb(f"read_parquet({files}, hive_partitioning = false)", names), names
        else:
            assert len({name.lower() for name in expected.column_names}) <= len(names)
        with setting(spark, "spark.sql.caseSensitive"):
            assert by_spark(spark, files, names), names
        assert pl.read_parquet(files).to_arrow().cast(expected.schema) == expected, names
        assert open_dataset(copy).to_table() == expected, names
        assert pq.read_table(paths(copy), partitioning=None) == expected, names
    # Spark confuses these two only in Iceberg tables.
    misread |= {table for table, rows in TABLES.items() if "İ" in rows.column_names}
    assert misread == warned(lake, TABLES)


def test_columns_that_readers_take_from_the_path_of_the_target(tmp_path: Path) -> None:
    lake = Lake("parquet", Storage((tmp_path / "k=7").as_uri()))
    plain = TableName("shop", "t0")
    ((_, copy),) = publish_parquet(lake, {plain: TABLES[plain]})
    columns = ["id", "plain", "k", "snapshot"]
    assert duckdb.sql(f"FROM read_parquet({copy.locations})").columns == columns
    # pandas calls this function.
    assert pq.read_table(paths(copy)).column_names == columns
    (warning,) = reader_warnings(lake.storage.uri, "parquet", {plain: TABLES[plain].schema})
    assert "k=" in warning


@pytest.mark.slow
def test_times_in_parquet_copies_that_spark_refuses(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake("parquet", Storage(tmp_path.as_uri()))
    values = [time(1, 2, 3), None, *[time(23, 59, 59, 999999)] * (ROWS - 2)]
    tables = {
        TableName("shop", "clocks"): pa.table({"id": range(ROWS), "c": pa.array(values, pa.time64("us"))}),
        TableName("shop", "lists"): pa.table({"c": pa.array([[one] for one in values], pa.list_(pa.time64("us")))}),
    }
    clocks, lists = (copy.locations for _, copy in publish_parquet(lake, tables))
    for files in (clocks, lists):
        with pytest.raises(AnalysisException, match="TIME is not supported"):
            spark.read.parquet(*files)
        with setting(spark, "spark.sql.timeType.enabled"):
            assert spark.read.parquet(*files).count() == ROWS
    micros = spark.read.schema("id long, c long").parquet(*clocks).orderBy("id").collect()
    assert [row.c for row in micros][:3] == [3_723_000_000, None, 86_399_999_999]
    assert warned(lake, tables) == {*tables}


@pytest.mark.long
def test_columns_of_iceberg_tables_that_readers_misread(tmp_path: Path) -> None:
    lake = Lake("iceberg", Storage((tmp_path / "k=7").as_uri()))
    lake.sink.publish(run_of(lake, 1, TABLES, ("id",)))
    misread, queries = set(), ["SELECT 1"]
    for table, rows in TABLES.items():
        names, loaded = rows.column_names[1:], iceberg_table(lake, table)
        if not (by_pyiceberg(loaded, names) and by_duckdb(f"iceberg_scan('{loaded.metadata_location}')", names)):
            misread.add(table)
        assert pl.scan_iceberg(loaded).collect().to_arrow().cast(rows.schema).sort_by("id") == rows, names
        name = f"`default`.{table}"
        queries += [f"SELECT * FROM {name}"]
        queries += [f"SELECT id FROM {name} WHERE {quoted(one, '`')} = '{at}-7'" for at, one in enumerate(names)]
    catalog = spark_catalog(lake.storage)
    with spark_reader() as spark:
        _, *answers = spark.sql(queries, catalog)
        _, *with_setting = spark.sql(queries, catalog | {"spark.sql.caseSensitive": "true"})
    misread |= {*misread_by_spark(answers)}
    assert misread == warned(lake, TABLES)
    assert {*misread_by_spark(with_setting)} == {
        table for table in TABLES if {*TABLES[table].column_names} & {*RESERVED}
    }


def misread_by_spark(answers: Sequence[tuple[list[tuple[Any, ...]], list[str]]]) -> Iterator[TableName]:
    remaining = iter(answers)
    for table, rows in TABLES.items():
        names = rows.column_names[1:]
        all_rows, *found = (next(remaining)[0] for _ in rows.column_names)
        if sorted(all_rows) != [tuple(row.values()) for row in rows.to_pylist()] or found != [[(7,)]] * len(names):
            yield table
