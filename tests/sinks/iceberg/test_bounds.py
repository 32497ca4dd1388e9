"""Filters on extreme values return what a full scan returns, whatever files the bounds have readers skip."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.parquet import writer as parquet_writer
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.sinks.base import Prepared, Publication, TableChange
from harness.lake_readers import opened_duckdb
from tests.seeds import seeds
from tests.sinks.iceberg.runs import WHEN, iceberg_table, run_id_of
from tests.sinks.test_contract import MYSQL, ORDERS, SERVER, Lake

LONG = "z" * 5000
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (
        pa.string(),
        [
            *("", "a", "b", "A", LONG, "z" * 15, "z" * 16, "z" * 17, "z" * 40, "\ud7ff" * 20, "\U0010ffff" * 20),
            *("\uffff" * 17, "a" * 15 + "\ud7ff\ud7ff", "a" * 15 + "\U0010ffff" * 3, "ä" * 20, "\x00", "'", " "),
        ],
    ),
    "raw": (pa.binary(), [b"", b"\x00", b"\xff", b"\xff" * 16, b"\xff" * 20, b"\xff" * 5000, b"a" * 30, b"\x7f\xff"]),
    "int": (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1]),
    "unsigned": (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    "long": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "digits": (
        pa.decimal128(38, 10),
        [Decimal(n) for n in ("0", "1", "-1", "1E-10", "-1E-10", "9" * 28, "-" + "9" * 28)],
    ),
    "money": (pa.decimal128(9, 2), [Decimal(n) for n in ("0", "0.01", "-0.01", "9999999.99", "-9999999.99", "1.28")]),
    "real": (pa.float64(), [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), 5e-324, 1.7e308]),
    "single": (pa.float32(), [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf")]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]),
    "at": (
        pa.timestamp("us"),
        [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(9999, 12, 31, 23, 59, 59, 999999)],
    ),
    "moment": (
        pa.timestamp("us", "UTC"),
        [datetime(1, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)],
    ),
}
OPERATORS: dict[str, Callable[[pa.Array, Any], pa.Array]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def write(lake: Lake, rows: pa.Table, group_rows: int) -> None:
    """Publish rows in files of four row groups each."""
    run_id = run_id_of(1)
    place = lake.sink.prepare(run_id, [Prepared(ORDERS, rows.schema)])[ORDERS]
    schema, files = place.schema(rows.schema), []
    staging = Staging(Storage(place.folder))
    for at in range(0, rows.num_rows, 4 * group_rows):
        with (
            pytest.MonkeyPatch.context() as patch,
            staging.writer(f"part-{at:06}-{run_id}", schema) as one,
        ):
            patch.setattr(parquet_writer, "ROW_GROUP_ROWS", group_rows)
            one.write(rows.slice(at, 4 * group_rows).cast(schema))
        files += one.files
    change = TableChange(ORDERS, tuple(files), place=place)
    position = f"{SERVER}:1-1"
    lake.sink.publish(Publication(run_id, staging, (change,), "initial_gtid_set", position, WHEN, WHEN, MYSQL))


def rows_of(choice: random.Random, count: int) -> pa.Table:
    columns = {}
    for name, (kind, values) in VALUES.items():
        # Files of few different values, so that bounds are narrow.
        few = [choice.sample([*values, None], min(3, len(values))) for _ in range(count)]
        columns[name] = pa.array([choice.choice(few[at // 8 * 8]) for at in range(count)], kind)
    return pa.table({"id": pa.array(range(count), pa.int64()), **columns})


def check(
    lake: Lake, rows: pa.Table, connection: duckdb.DuckDBPyConnection, name: str, operator: str, value: Any
) -> None:
    kind = VALUES[name][0]
    # Iceberg has no unsigned columns.
    column, scalar = rows[name], pa.scalar(value, kind)
    expected = sorted(rows.filter(OPERATORS[operator](column, scalar))["id"].to_pylist())
    table = iceberg_table(lake)
    told = f"{name} {operator} {value!r}"[:80]
    parameter = Decimal(value) if name == "unsigned" else value
    query = f"SELECT id FROM iceberg_scan('{table.metadata_location}') WHERE \"{name}\" {operator} ?"
    assert sorted(row[0] for row in connection.execute(query, [parameter]).fetchall()) == expected, f"DuckDB: {told}"
    column_of = pl.col(name)
    literal = pl.lit(parameter, pl.Decimal(20, 0)) if name == "unsigned" else pl.lit(value, pl.Series(column).dtype)
    conditions = {
        "=": column_of == literal,
        "<": column_of < literal,
        "<=": column_of <= literal,
        ">": column_of > literal,
        ">=": column_of >= literal,
    }
    by_polars = pl.scan_iceberg(table).filter(conditions[operator]).select("id").collect()["id"].to_list()
    assert sorted(by_polars) == expected, f"Polars: {told}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *seeds()])
def test_random_filters(lake: Lake, seed: int) -> None:
    choice = random.Random(seed)
    rows = rows_of(choice, 64 if seed == 0 else 160)
    write(lake, rows, choice.choice((1, 2, 3)))
    names = [name for name in VALUES for _ in range(1 if seed == 0 else 12)]
    with opened_duckdb() as connection:
        for name in names:
            values = VALUES[name][1]
            check(lake, rows, connection, name, choice.choice([*OPERATORS]), choice.choice(values))


def test_a_value_too_long_for_parquet_s_statistics_is_found(lake: Lake) -> None:
    rows = pa.table({"id": pa.array([0, 1, 2, 3], pa.int64()), "text": ["a", "b", LONG, LONG]})
    write(lake, rows, 2)
    table = iceberg_table(lake)
    (file,) = (Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files())
    assert pq.ParquetFile(file).num_row_groups == 2
    with opened_duckdb() as connection:
        check(lake, rows, connection, "text", "=", LONG)
    assert table.scan(f"text = '{LONG}'").to_arrow().num_rows == 2


def test_the_year_0_is_found(lake: Lake) -> None:
    before, after = -62_167_219_200_000_000, -62_000_000_000_000_000
    rows = pa.table({"id": pa.array([0, 1], pa.int64()), "at": pa.array([before, after], pa.timestamp("us"))})
    write(lake, rows, 1)
    query = f"SELECT id FROM iceberg_scan('{iceberg_table(lake).metadata_location}') WHERE \"at\" "
    with opened_duckdb() as connection:
        assert connection.execute(query + "< '0001-01-01'").fetchall() == [(0,)]
        assert connection.execute(query + "> '0001-01-01'").fetchall() == [(1,)]


def test_a_nan_is_no_bound(lake: Lake) -> None:
    rows = pa.table({"id": pa.array([0, 1, 2], pa.int64()), "real": [float("nan"), 1.5, -2.0]})
    write(lake, rows, 3)
    with opened_duckdb() as connection:
        check(lake, rows, connection, "real", "<", 1.6)
    assert iceberg_table(lake).scan("real < 1.6").to_arrow().num_rows == 2
