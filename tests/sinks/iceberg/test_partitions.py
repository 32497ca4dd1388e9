"""Partitioned tables: every file has rows of one partition, and no engine misses a row by it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection

from airflow_provider_cdc.core.parquet import partitions
from airflow_provider_cdc.core.tables.table import Layout, TableName, layout_of
from airflow_provider_cdc.errors import ConfigurationError
from harness.lake_readers import opened_duckdb
from tests.seeds import seeds, some
from tests.sinks.iceberg.runs import again_of, iceberg_table, rows_at, run_id_of, run_of
from tests.sinks.test_contract import ORDERS, Lake

ID = pa.field("id", pa.int64(), False)


def micros(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64()).view(pa.timestamp("us"))


YEAR = 366 * 86_400_000_000
MOMENTS = [0, -1, 1, -YEAR, YEAR, 50 * YEAR, -60 * YEAR, 86_400_000_000, 86_399_999_999, -86_400_000_001, None]
KINDS: dict[str, tuple[pa.Array, Sequence[str]]] = {
    "int32": (
        pa.array([0, -1, 1, 2**31 - 1, -(2**31), 34, 17, None], pa.int32()),
        ("c", "bucket(3, c)", "bucket(1000000, c)"),
    ),
    "int64": (pa.array([0, -1, 1, 2**63 - 1, -(2**63), 34, None]), ("c", "bucket(3, c)")),
    "uint64": (pa.array([0, 1, 2**64 - 1, 2**63, 127, 128, None], pa.uint64()), ("c", "bucket(3, c)")),
    "decimal": (
        pa.array([*map(Decimal, ("0.00", "14.20", "-0.01", "-9999999.99", "1.27", "1.28")), None], pa.decimal128(9, 2)),
        ("c", "bucket(3, c)"),
    ),
    "text": (
        pa.array(["", "a", "iceberg", "ä😀x", "z" * 5000, "z" * 5001, "a/b=c%2F d", "null", None]),
        ("c", "bucket(3, c)", "truncate(1, c)", "truncate(3, c)"),
    ),
    "binary": (pa.array([b"", b"\x00\x01\x02\x03", b"\xff" * 9, b"\xff", None]), ("bucket(3, c)",)),
    "date": (
        pa.array([0, -1, 1, 20000, -30000, 31, 365, None], pa.int32()).view(pa.date32()),
        ("c", "bucket(3, c)", "year(c)", "month(c)", "day(c)"),
    ),
    "time": (micros(*MOMENTS), ("c", "bucket(3, c)", "year(c)", "hour(c)")),
    "late": (micros(*(one for one in MOMENTS if one is None or one >= 0)), ("month(c)", "day(c)")),
    "moment": (
        micros(*MOMENTS).cast(pa.int64()).view(pa.timestamp("us", "UTC")),
        ("c", "bucket(3, c)", "hour(c)"),
    ),
    "bool": (pa.array([True, False, None]), ("c",)),
}
"""Values at the ends of each type, and the transforms of it."""


def table_of(values: pa.Array) -> pa.Table:
    return pa.table([pa.array(range(len(values))), values], pa.schema([ID, pa.field("c", values.type)]))


def publish(lake: Lake, number: int, rows: pa.Table, layout: Layout) -> None:
    lake.sink.publish(run_of(lake, number, {ORDERS: rows}, ("id",), layout=layout))


def files_of(table: Table) -> list[tuple[Any, pa.Table]]:
    """The partition and the rows of each data file."""
    return [
        (task.file.partition, pq.read_table(task.file.file_path.removeprefix("file://"), partitioning=None))
        for task in table.scan().plan_files()
    ]


def assert_each_file_is_in_its_partition(table: Table) -> None:
    schema, spec = table.schema(), table.spec()
    for partition, rows in files_of(table):
        for index, field in enumerate(spec.fields):
            source = schema.find_field(field.source_id)
            transform = field.transform.transform(source.field_type)
            column = rows[source.name]
            if pa.types.is_temporal(column.type):
                column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
            assert {transform(value) for value in column.to_pylist()} == {partition[index]}


CASES = [(name, transform) for name, (_, transforms) in KINDS.items() for transform in transforms]


@pytest.mark.slow
@pytest.mark.parametrize("kind", some(*KINDS, plain=2))
def test_filters_on_partitioned_columns_miss_no_row(lake: Lake, kind: str) -> None:
    values, transforms = KINDS[kind]
    for number, transform in enumerate(transforms, 1):
        name = TableName("shop", f"t{number}")
        rows = table_of(values)
        run = run_of(lake, number, {name: rows}, ("id",), layout=layout_of([transform], []))
        lake.sink.publish(run)
        table = iceberg_table(lake, name)
        assert not table.spec().is_unpartitioned()
        assert_each_file_is_in_its_partition(table)
        assert len(files_of(table)) > 1
        stored = table.scan().to_arrow().sort_by("id")
        assert stored["c"].cast(values.type).combine_chunks() == values if kind != "uint64" else True
        check_filters(table, stored)


def check_filters(table: Table, stored: pa.Table) -> None:
    column = stored["c"]
    everything = pl.scan_iceberg(table)
    with opened_duckdb() as connection:
        source = f"iceberg_scan('{table.metadata_location}')"
        nulls = {row["id"] for row in stored.filter(column.is_null()).to_pylist()}
        assert {row[0] for row in connection.execute(f"SELECT id FROM {source} WHERE c IS NULL").fetchall()} == nulls
        assert set(table.scan("c IS NULL").to_arrow()["id"].to_pylist()) == nulls
        for value in column.drop_null().to_pylist():
            predicates: dict[str, Any] = {"=": EqualTo, ">=": GreaterThanOrEqual, "<": LessThan}
            for sign, predicate in predicates.items():
                compared = {
                    "=": stored.filter(pa.compute.equal(column, value)),
                    ">=": stored.filter(pa.compute.greater_equal(column, value)),
                    "<": stored.filter(pa.compute.less(column, value)),
                }[sign]
                ids = set(compared["id"].to_pylist())
                found = connection.execute(f"SELECT id FROM {source} WHERE c {sign} ?", [value]).fetchall()
                assert {row[0] for row in found} == ids, (sign, value)
                literal = value.isoformat() if hasattr(value, "isoformat") else value
                assert set(table.scan(predicate("c", literal)).to_arrow()["id"].to_pylist()) == ids, (sign, value)
                shown = pl.col("c")
                by_polars = {"=": shown == value, ">=": shown >= value, "<": shown < value}[sign]
                assert set(everything.filter(by_polars).collect()["id"].to_list()) == ids, (sign, value)


LAYOUT = layout_of(["country", "month(at)"], ["at desc", "id"])


def some_rows(seed: int, count: int = 60) -> pa.Table:
    chance = random.Random(seed)
    return pa.table(
        {
            "id": range(count),
            "country": [chance.choice(["de", "fr", "ä/b", "", None]) for _ in range(count)],
            "at": micros(*(chance.choice([0, 1, YEAR // 12, None]) for _ in range(count))),
        },
        pa.schema([ID, ("country", pa.string()), ("at", pa.timestamp("us"))]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_files_are_kept_replaced_and_put_back(lake: Lake, seed: int) -> None:
    rows = [some_rows(seed), some_rows(seed + 1).slice(0, 20)]
    first = run_of(lake, 1, {ORDERS: rows[0]}, ("id",), layout=LAYOUT)
    lake.sink.publish(first)
    lake.sink.publish(again_of(run_of(lake, 2, {ORDERS: rows[1]}, ("id",), layout=LAYOUT), first))
    publish(lake, 3, rows[1], LAYOUT)
    # The files of the first run are no longer those of the head, and come back.
    lake.sink.publish(again_of(run_of(lake, 4, {ORDERS: rows[1]}, ("id",), layout=LAYOUT), first))
    table = iceberg_table(lake)
    assert_each_file_is_in_its_partition(table)
    both = pa.concat_tables(rows).to_pylist()
    for number, expected in ((1, rows[0].to_pylist()), (2, both), (3, rows[1].to_pylist()), (4, both)):
        found = rows_at(lake, run_id_of(number))
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert [field.name for field in table.spec().fields] == ["country", "at_month"]


@pytest.mark.slow
def test_the_sort_order_is_a_property_of_the_table_and_follows_the_option(lake: Lake) -> None:
    publish(lake, 1, some_rows(1), LAYOUT)
    ids = {field.name: field.field_id for field in iceberg_table(lake).schema().fields}

    def order() -> list[tuple[int, SortDirection, NullOrder]]:
        fields = iceberg_table(lake).sort_order().fields
        return [(field.source_id, field.direction, field.null_order) for field in fields]

    descending = (ids["at"], SortDirection.DESC, NullOrder.NULLS_LAST)
    ascending = (ids["id"], SortDirection.ASC, NullOrder.NULLS_FIRST)
    assert order() == [descending, ascending]
    publish(lake, 2, some_rows(1), layout_of(["country", "month(at)"], ["id"]))
    assert order() == [ascending]
    publish(lake, 3, some_rows(1), LAYOUT)
    assert order() == [descending, ascending]
    assert len(iceberg_table(lake).metadata.sort_orders) == 2
    # Without the option, the order stays.
    publish(lake, 4, some_rows(1), layout_of(["country", "month(at)"], []))
    assert order() == [descending, ascending]


@pytest.mark.slow
def test_an_order_of_a_column_that_was_dropped_is_dropped(lake: Lake) -> None:
    publish(lake, 1, some_rows(1), layout_of([], ["at"]))
    publish(lake, 2, some_rows(1).drop(["at"]), layout_of([], []))
    assert iceberg_table(lake).sort_order().is_unsorted
    older = run_of(lake, 3, {ORDERS: some_rows(1).drop(["at"])}, ("id",))
    publish(lake, 4, some_rows(1), layout_of([], ["at"]))
    assert len(iceberg_table(lake).sort_order().fields) == 1
    # A run that is older than the newest copy leaves the table's order as it is.
    lake.sink.publish(older)
    assert len(iceberg_table(lake).sort_order().fields) == 1
    assert rows_at(lake, run_id_of(3)) == some_rows(1).drop(["at"]).to_pylist()


@pytest.mark.parametrize("transform", ["month(c)", "day(c)"])
def test_times_before_1970_are_refused_where_an_engine_would_miss_them(lake: Lake, transform: str) -> None:
    with pytest.raises(ConfigurationError, match="times before 1970"):
        publish(lake, 1, table_of(micros(0, -1)), layout_of([transform], []))


@pytest.mark.parametrize(
    ("partition", "sort", "message"),
    [
        (["nowhere"], [], "partition_by names the column nowhere"),
        ([], ["nowhere desc"], "sort_by names the column nowhere"),
        (["day(country)"], [], "day needs a date or a time"),
        (["truncate(3, id)"], [], "truncate needs text"),
        (["week(at)"], [], "is not a transform"),
        (["bucket(0, id)"], [], "is not a transform"),
        (["id", "identity(id)"], [], "names a field twice"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_before_the_run(
    lake: Lake, partition: list[str], sort: list[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        publish(lake, 1, some_rows(1), layout_of(partition, sort))


def test_another_partitioning_than_the_table_has_is_refused_before_the_run(lake: Lake) -> None:
    publish(lake, 1, some_rows(1), LAYOUT)
    before = iceberg_table(lake).metadata
    for partition in ([], ["country"], ["country", "year(at)"], ["month(at)", "country"]):
        with pytest.raises(
            ConfigurationError, match=r"is partitioned by identity\(country\), month\(at\), and"
        ) as refusal:
            publish(lake, 2, some_rows(1), layout_of(partition, []))
        assert "drop" in refusal.value.hint
    lake.options = {"on_type_change": "new_column"}
    retyped = some_rows(1).set_column(1, "country", pa.array([7] * 60))
    with pytest.raises(ConfigurationError, match="dropped the column country, or created it anew"):
        publish(lake, 2, retyped.cast(pa.schema([ID, ("country", pa.int64()), ("at", pa.timestamp("us"))])), LAYOUT)
    assert iceberg_table(lake).metadata == before


@pytest.mark.slow
def test_too_many_partitions_are_refused_and_waiting_rows_are_bounded(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table_of(pa.array([f"{number % 100} {'x' * 1000}" for number in range(2000)]))
    monkeypatch.setattr(partitions, "PENDING_BYTES", 100_000)
    publish(lake, 1, rows, layout_of(["c"], []))
    assert sorted(row["id"] for row in rows_at(lake, run_id_of(1))) == [*range(2000)]
    assert len(files_of(iceberg_table(lake))) == 100
    monkeypatch.setattr(partitions, "MOST_PARTITIONS", 99)
    with pytest.raises(ConfigurationError, match="more than 99 partitions"):
        publish(lake, 2, rows, layout_of(["c"], []))
