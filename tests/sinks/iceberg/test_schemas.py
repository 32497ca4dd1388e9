"""Columns that change between runs: every snapshot shows its own, and no old value shows under a new column."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError
from harness.lake_readers import opened_duckdb
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.seeds import some
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.runs import again_of, iceberg_table, rows_at, run_id_of, run_of
from tests.sinks.test_contract import ORDERS, Lake


def publish(lake: Lake, number: int, rows: pa.Table, key: tuple[str, ...] = ("id",)) -> None:
    lake.sink.publish(run_of(lake, number, {ORDERS: rows}, key))


def by_duckdb(lake: Lake, what: str, number: int | None = None) -> list[tuple[Any, ...]]:
    table = iceberg_table(lake)
    tag = table.metadata.snapshot_by_name(f"cdc-{run_id_of(number)}") if number else None
    version = f", snapshot_from_id = {tag.snapshot_id}" if tag else ""
    with opened_duckdb() as connection:
        source = f"iceberg_scan('{table.metadata_location}'{version})"
        rows: list[tuple[Any, ...]] = connection.execute(what.format(t=source)).fetchall()
        return rows


def ids(values: Sequence[int]) -> pa.Array:
    return pa.array(values, pa.int32())


def schema_of(number: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("id", pa.int32(), False), pa.field("c", number)])


@pytest.mark.slow
def test_added_dropped_and_added_again_with_another_type(lake: Lake) -> None:
    text = pa.table({"id": ids([1, 2]), "c": ["old", "older"]}, schema_of(pa.string()))
    publish(lake, 1, text)
    publish(lake, 2, text.select(["id"]))
    number = pa.table({"id": ids([1, 2]), "c": pa.array([7, None], pa.int64())}, schema_of(pa.int64()))
    publish(lake, 3, number)
    publish(lake, 4, number.append_column("more", pa.array([True, False])))
    expected = [
        [{"id": 1, "c": "old"}, {"id": 2, "c": "older"}],
        [{"id": 1}, {"id": 2}],
        [{"id": 1, "c": 7}, {"id": 2, "c": None}],
        [{"id": 1, "c": 7, "more": True}, {"id": 2, "c": None, "more": False}],
    ]
    for run, rows in enumerate(expected, 1):
        assert rows_at(lake, run_id_of(run)) == rows
        assert by_duckdb(lake, "FROM {t} ORDER BY id", run) == [tuple(row.values()) for row in rows]
    assert by_duckdb(lake, "SELECT id FROM {t} WHERE c = 7") == [(1,)]


@pytest.mark.slow
def test_widened_columns_keep_files_and_filters(lake: Lake) -> None:
    def rows(number: pa.DataType, real: pa.DataType, digits: int, base: int) -> pa.Table:
        schema = pa.schema(
            [
                pa.field("id", pa.int32(), False),
                ("n", number),
                ("f", real),
                ("d", pa.decimal128(digits, 2)),
                ("many", pa.list_(number)),
            ]
        )
        return pa.table({"id": [base], "n": [base], "f": [base + 0.5], "d": [Decimal(base)], "many": [[base]]}, schema)

    first = run_of(lake, 1, {ORDERS: rows(pa.int32(), pa.float32(), 9, 1)}, ("id",))
    lake.sink.publish(first)
    wide = rows(pa.int64(), pa.float64(), 18, 2**31 - 1)
    second = again_of(run_of(lake, 2, {ORDERS: wide}, ("id",)), first)
    lake.sink.publish(second)
    for condition in ("n < 5", "f < 5", "d < 5", "n = 1", "d = 1"):
        assert by_duckdb(lake, f"SELECT id FROM {{t}} WHERE {condition}") == [(1,)], condition
        assert iceberg_table(lake).scan(condition).to_arrow()["id"].to_pylist() == [1], condition
    assert [row["many"] for row in rows_at(lake, second.run_id)] in ([[1], [2**31 - 1]], [[2**31 - 1], [1]])
    # A narrower column needs no change of the table, whose column has all of its values.
    publish(lake, 3, rows(pa.int32(), pa.float32(), 9, 4))
    assert iceberg_table(lake).schema().find_field("n").field_type == LongType()
    assert [row["n"] for row in rows_at(lake, run_id_of(3))] == [4]
    assert by_duckdb(lake, "SELECT id FROM {t} WHERE n = 4 AND d = 4") == [(4,)]


def test_a_type_that_cannot_follow_is_refused_before_anything_is_committed(lake: Lake) -> None:
    publish(lake, 1, pa.table({"id": ids([1]), "c": ["old"]}, schema_of(pa.string())))
    before = iceberg_table(lake).metadata
    with pytest.raises(ConfigurationError, match=r"cannot be widened.*: c \(string became long\)") as refusal:
        publish(lake, 2, pa.table({"id": ids([1]), "c": [1]}, schema_of(pa.int64())))
    assert "drop" in refusal.value.hint
    with pytest.raises(ConfigurationError, match="column c cannot be copied"):
        publish(lake, 2, pa.table({"id": ids([1]), "c": pa.array([1], pa.decimal256(50, 0))}))
    assert iceberg_table(lake).metadata == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.decimal128(5, 2), pa.decimal128(9, 1)),
        (pa.decimal128(5, 2), pa.decimal128(9, 4)),
        (pa.binary(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.string()), pa.list_(pa.binary())),
        (pa.uint32(), pa.uint64()),
    ],
)
def test_a_change_that_readers_do_not_follow_is_refused(lake: Lake, before: pa.DataType, after: pa.DataType) -> None:
    """PyIceberg permits some of them, and shows other values of earlier copies."""

    def rows(kind: pa.DataType) -> pa.Table:
        return pa.table({"id": ids([1]), "c": pa.array([None], kind)}, schema_of(kind))

    publish(lake, 1, rows(before))
    metadata = iceberg_table(lake).metadata
    with pytest.raises(ConfigurationError, match=r"cannot be widened to them: c \("):
        publish(lake, 2, rows(after))
    assert iceberg_table(lake).metadata == metadata


def test_the_key_makes_the_identifier_fields(lake: Lake) -> None:
    rows = pa.table({"id": ids([1]), "c": ["a"]}, schema_of(pa.string()))
    publish(lake, 1, rows)
    assert iceberg_table(lake).schema().identifier_field_names() == {"id"}
    # A column that may have been null stays optional, and is no identifier field. The others alone identify no row.
    publish(lake, 2, rows, ("id", "c"))
    assert iceberg_table(lake).schema().identifier_field_names() == set()
    publish(lake, 3, rows.select(["c"]), ("c",))
    assert iceberg_table(lake).schema().identifier_field_names() == set()
    assert rows_at(lake, run_id_of(1)) == [{"id": 1, "c": "a"}]


def test_an_older_run_does_not_take_back_the_newer_one_s_columns(lake: Lake) -> None:
    narrow = pa.table({"id": ids([1])}, schema_of(pa.string()).remove(1))
    publish(lake, 1, narrow)
    older = run_of(lake, 2, {ORDERS: narrow}, ("id",))
    publish(lake, 3, pa.table({"id": ids([1]), "c": ["new"]}, schema_of(pa.string())))
    lake.sink.publish(older)
    assert iceberg_table(lake).schema().find_field("c").field_type == StringType()
    assert iceberg_table(lake).scan().to_arrow().to_pylist() == [{"id": 1, "c": "new"}]
    assert rows_at(lake, older.run_id) == [{"id": 1}]


@pytest.mark.parametrize("other", ["another name", "another type"])
def test_two_runs_that_gave_one_field_id_to_two_columns_do_not_mix_them(lake: Lake, other: str) -> None:
    narrow = pa.table({"id": ids([1])}, schema_of(pa.string()).remove(1))
    publish(lake, 1, narrow)
    a = run_of(lake, 3, {ORDERS: narrow.append_column("a", pa.array(["of a"]))}, ("id",))
    column = ("b", pa.array(["of b"])) if other == "another name" else ("a", pa.array([7]))
    b = run_of(lake, 2, {ORDERS: narrow.append_column(*column)}, ("id",))
    lake.sink.publish(b)
    with pytest.raises(ConfigurationError, match="changed the table's columns meanwhile"):
        lake.sink.publish(a)
    assert rows_at(lake, b.run_id) == [{"id": 1, column[0]: column[1][0].as_py()}]


def test_two_runs_that_added_the_same_column_both_publish(lake: Lake) -> None:
    narrow = pa.table({"id": ids([1])}, schema_of(pa.string()).remove(1))
    publish(lake, 1, narrow)
    runs = [run_of(lake, n, {ORDERS: narrow.append_column("a", pa.array([f"of {n}"]))}, ("id",)) for n in (2, 3)]
    for run in reversed(runs):
        lake.sink.publish(run)
    assert [rows_at(lake, run.run_id)[0]["a"] for run in runs] == ["of 2", "of 3"]
    assert len({schema.schema_id for schema in iceberg_table(lake).metadata.schemas}) == 2


def test_files_with_a_column_that_was_dropped_and_added_again_are_not_kept(lake: Lake) -> None:
    rows = pa.table({"id": ids([1]), "c": ["old"]}, schema_of(pa.string()))
    first = run_of(lake, 1, {ORDERS: rows}, ("id",))
    lake.sink.publish(first)
    publish(lake, 2, rows.select(["id"]))
    again = again_of(run_of(lake, 3, {ORDERS: rows}, ("id",)), first)
    with pytest.raises(ConfigurationError, match="the column c differs from the column"):
        lake.sink.publish(again)


@pytest.mark.parametrize("name", some("a.b", "a'b\"c`", "ä ö", "select", "x" * 60, "A", "é/%", "1", plain=2))
def test_odd_names_of_columns(lake: Lake, name: str) -> None:
    rows = pa.table({"id": ids([1]), name: ["v"]}, pa.schema([pa.field("id", pa.int32(), False), (name, pa.string())]))
    publish(lake, 1, rows)
    publish(lake, 2, rows.select(["id"]))
    publish(lake, 3, rows)
    assert rows_at(lake, run_id_of(3)) == rows_at(lake, run_id_of(1)) == rows.to_pylist()
    assert by_duckdb(lake, "FROM {t}") == [(1, "v")]


@pytest.mark.slow
def test_a_table_that_iceberg_cannot_take_is_left_out_but_a_clash_of_names_stops_the_run(
    mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    no_spark = cast(Any, SimpleNamespace())

    def begun(number: int, on_table_error: str, lake: LakeOptions | None = None) -> Run:
        pipeline = Pipeline(
            no_spark,
            settings_of(mysql),
            tmp_path.as_uri(),
            [f"{schema}.*"],
            run_id=run_id_of(number),
            on_table_error=on_table_error,
            lake=lake or LakeOptions("iceberg"),
        )
        pipeline.record()
        return Run.load(pipeline.run)

    for name in ("kept", "foreign"):
        mysql.query(f"CREATE TABLE {schema}.{name} (id INT PRIMARY KEY, v INT)")
    assert begun(1, "skip").manifest.skipped == {}
    with_rows = plain_catalog(Storage(tmp_path.as_uri())).load_table((schema, "foreign"))
    with_rows.append(pa.table({"id": [1], "v": [1]}, with_rows.schema().as_arrow()))
    with pytest.raises(ConfigurationError, match="no run of this package published it"):
        begun(2, "fail")
    manifest = begun(2, "skip").manifest
    assert [entry.table.name.name for entry in manifest.tables] == ["kept"]
    assert "no run of this package published it" in manifest.skipped[f"{schema}.foreign"]
    mysql.query(f"DROP TABLE {schema}.kept")
    with pytest.raises(ConfigurationError, match="no run of this package published it"):
        begun(3, "skip")
    mysql.query(f"CREATE TABLE {schema}.kept (id INT PRIMARY KEY, v INT)")
    with pytest.raises(ConfigurationError, match="table_name"):
        begun(4, "skip", LakeOptions("iceberg", table_name="{schema}.one"))
