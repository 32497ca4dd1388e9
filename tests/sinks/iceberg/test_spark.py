"""Spark SQL, with Iceberg's own library, reads tables at one cut, and the same rows as DuckDB and Polars."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.digest.totals import Digest
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.run.table_files import TableFileWriter
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.lake import read_cut
from airflow_provider_cdc.sinks.base import Publication
from airflow_provider_cdc.sinks.iceberg.cut_table import Cut
from harness.lake_readers import opened_duckdb
from harness.spark_iceberg import spark_reader
from tests.interrupting import Interrupted, commits_fail
from tests.sinks.catalogs import spark_catalog
from tests.sinks.iceberg.runs import again_of, run_id_of, run_of
from tests.sinks.test_contract import LINES, ORDERS, Lake

WIDTHS = (8, 16, 32, 64)
SIGNED = {f"int{width}": [-(2 ** (width - 1)), 2 ** (width - 1) - 1] for width in WIDTHS}
UNSIGNED = {f"uint{width}": [0, 2**width - 1] for width in WIDTHS}
LONG = "z" * 5000
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{name: (pa.type_for_alias(name), values) for name, values in (SIGNED | UNSIGNED).items()},
    "bool": (pa.bool_(), [False, True]),
    "float": (pa.float32(), [-0.0, math.inf]),
    "double": (pa.float64(), [math.nan, 1.7976931348623157e308]),
    "text": (pa.string(), ["", LONG]),
    "enum": (pa.dictionary(pa.int32(), pa.string()), ["new", "Ω"]),
    "bytes": (pa.binary(), [b"", b"\x00\xff" * 3000]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "price": (pa.decimal128(38, 10), [Decimal("-9999999999999999999999999999.9999999999"), Decimal("0.0000000001")]),
    "small": (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("999.99")]),
    "at": (pa.timestamp("us"), [datetime(1, 1, 1, 0, 0, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [datetime(1970, 1, 1, 0, 0, 1, 1, UTC), datetime(2106, 2, 7, 6, 28, 15, 999999, UTC)],
    ),
    "lasts": (pa.duration("us"), [timedelta(hours=-838, minutes=-59), timedelta(hours=838)]),
    "clock": (pa.time64("us"), [time(0, 0), time(23, 59, 59, 999999)]),
    "vector": (pa.list_(pa.float32()), [[], [0.5, None]]),
}
"""By column: the type of a copy, and two values at the type's ends."""


def rows_of(night: int) -> pa.Table:
    """Rows with each value, and nulls. The key is 10 times the night and more."""
    values = {name: pa.array([*ends, None], kind) for name, (kind, ends) in COLUMNS.items()}
    return pa.table({"id": pa.array([10 * night, 10 * night + 1, 10 * night + 2], pa.int64()), **values})


def comparable(rows: list[tuple[Any, ...]]) -> list[list[str]]:
    """The rows as text, sorted by their key: NaN equals NaN, and -0.0 does not equal 0.0."""

    def plain(value: Any) -> Any:
        if isinstance(value, datetime) and value.tzinfo:
            return value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, Decimal):
            # Engines write zeros after the point, or do not.
            return value.normalize(Context(prec=38))
        return value

    return [[repr(plain(value)) for value in row] for row in sorted(rows, key=lambda row: int(row[0]))]


def by_duckdb(cut: Cut, table: str) -> list[list[str]]:
    with opened_duckdb() as connection:
        return comparable(connection.execute(f"FROM {cut[table].duckdb()}").fetchall())


def by_polars(cut: Cut, table: str) -> list[list[str]]:
    return comparable(cut[table].to_polars().collect().rows())


def without_first_row(run: Publication) -> Publication:
    """The same run, which deletes the first row of the file that it keeps, by position."""
    changes = []
    for change in run.tables:
        assert change.place is not None
        place, published = change.place, rows_of(1).schema
        files = TableFileWriter(
            Staging(Storage(place.folder)), published, place.schema(published), "", run.run_id, "id", place.location
        )
        changes.append(replace(change, kept=(files.write_deletes(change.kept[0], np.array([0]), Digest(1, 0)),)))
    return replace(run, tables=tuple(changes))


def end_before_lines(commit: Any, table: str) -> Any:
    if table == str(LINES):
        raise Interrupted
    return commit()


@pytest.mark.long
def test_spark_reads_tables_of_all_types_at_one_cut_by_tag_and_by_snapshot(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = [run_of(lake, night, {ORDERS: rows_of(night), LINES: rows_of(night)}) for night in (1, 2, 3)]
    nights[1] = without_first_row(again_of(nights[1], nights[0]))
    cuts = []
    for night in nights[:2]:
        lake.sink.publish(night)
        cut = read_cut(lake.storage.uri)
        assert cut is not None
        cuts.append(cut)
    # The third run ends between the commits of its tables.
    commits_fail(monkeypatch, end_before_lines)
    with pytest.raises(Interrupted):
        lake.sink.publish(nights[2])

    queries = []
    for cut in cuts:
        tag = f"VERSION AS OF 'cdc-{cut.run_id}'"
        for orders, lines in (
            [cut[str(table)].spark("default") for table in (ORDERS, LINES)],
            [f"`default`.{table} {tag}" for table in (ORDERS, LINES)],
        ):
            queries += [f"SELECT * FROM {orders}", f"SELECT l.* FROM {orders} o JOIN {lines} l ON o.id = l.id"]
    heads = "SELECT o.id FROM `default`.shop.orders o JOIN `default`.shop.lines l ON o.id = l.id"
    with spark_reader() as spark:
        *answers, (torn, _) = spark.sql([*queries, heads], spark_catalog(lake.storage))
    assert torn == []
    for number, (rows, wrong_filters) in enumerate(answers):
        cut = cuts[number // 4]
        table = str((ORDERS, LINES)[number % 2])
        assert cut.run_id == run_id_of(number // 4 + 1)
        assert sorted(row[0] for row in rows) == [[10, 11, 12], [11, 12, 20, 21, 22]][number // 4]
        for engine in (by_duckdb, by_polars):
            assert comparable(rows) == engine(cut, table), queries[number]
        assert not wrong_filters, queries[number]
