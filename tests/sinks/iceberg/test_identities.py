"""Columns with an identity of their own: renamed ones stay, and others of the same name are others, in every engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType

from airflow_provider_cdc.errors import ConfigurationError
from harness.lake_readers import opened_duckdb
from tests.sinks.iceberg.runs import iceberg_table, rows_at, run_id_of, run_of
from tests.sinks.test_contract import ORDERS, Lake

ID = pa.field("id", pa.int32(), False)


def rows_of(**columns: Any) -> pa.Table:
    arrays = {name: pa.array([value]) for name, value in columns.items()}
    return pa.table({"id": pa.array([1], pa.int32()), **arrays}).cast(
        pa.schema([ID, *(pa.field(name, array.type) for name, array in arrays.items())])
    )


def publish(lake: Lake, number: int, rows: pa.Table, relation: int, **numbers: int) -> None:
    identities = {"id": f"{relation}/1"} | {name: f"{relation}/{number}" for name, number in numbers.items()}
    lake.sink.publish(run_of(lake, number, {ORDERS: rows}, ("id",), identities=identities))


def assert_rows(lake: Lake, number: int, expected: Mapping[str, Any]) -> None:
    """The row of a past run, by PyIceberg, DuckDB and Polars."""
    table = iceberg_table(lake)
    snapshot = table.metadata.snapshot_by_name(f"cdc-{run_id_of(number)}")
    assert snapshot is not None
    rows = [{"id": 1, **expected}]
    assert rows_at(lake, run_id_of(number)) == rows
    assert pl.scan_iceberg(table, snapshot_id=snapshot.snapshot_id).collect().to_dicts() == rows
    with opened_duckdb() as connection:
        source = f"iceberg_scan('{table.metadata_location}', snapshot_from_id = {snapshot.snapshot_id})"
        assert connection.execute(f"FROM {source}").to_arrow_table().to_pylist() == rows


def field_ids(lake: Lake) -> dict[str, int]:
    return {field.name: field.field_id for field in iceberg_table(lake).schema().fields}


@pytest.mark.slow
def test_a_renamed_column_stays_one_column_and_swapped_names_swap(lake: Lake) -> None:
    publish(lake, 1, rows_of(a="of a", b="of b"), 7, a=2, b=3)
    before = field_ids(lake)
    publish(lake, 2, rows_of(z="of a", b="of b"), 7, z=2, b=3)
    assert field_ids(lake) == {"id": before["id"], "z": before["a"], "b": before["b"]}
    publish(lake, 3, rows_of(b="of a", z="of b"), 7, b=2, z=3)
    assert field_ids(lake) == {"id": before["id"], "b": before["a"], "z": before["b"]}
    # A renamed column may have another type, too.
    publish(lake, 4, rows_of(c=7, z="of b"), 7, c=4, z=3)
    assert_rows(lake, 1, {"a": "of a", "b": "of b"})
    assert_rows(lake, 2, {"z": "of a", "b": "of b"})
    assert_rows(lake, 3, {"b": "of a", "z": "of b"})
    assert_rows(lake, 4, {"c": 7, "z": "of b"})
    # The renames are in the commits of the rows: a snapshot each, and no other.
    assert len(iceberg_table(lake).metadata.snapshots) == 4


@pytest.mark.slow
def test_a_column_of_the_same_name_with_another_identity_is_another_column(lake: Lake) -> None:
    publish(lake, 1, rows_of(c="old"), 7, c=2)
    before = field_ids(lake)
    publish(lake, 2, rows_of(c=5), 7, c=3)
    assert field_ids(lake)["c"] != before["c"]
    assert iceberg_table(lake).schema().find_field("c").field_type == LongType()
    publish(lake, 3, rows_of(c="of another table"), 8, c=3)
    assert not {*field_ids(lake).values()} & {*before.values()}
    assert_rows(lake, 1, {"c": "old"})
    assert_rows(lake, 2, {"c": 5})
    assert_rows(lake, 3, {"c": "of another table"})


@pytest.mark.slow
def test_a_table_without_recorded_identities_goes_on_and_then_has_them(lake: Lake) -> None:
    lake.sink.publish(run_of(lake, 1, {ORDERS: rows_of(a="of a", b="of b")}, ("id",)))
    before = field_ids(lake)
    assert "cdc.columns" not in iceberg_table(lake).properties
    publish(lake, 2, rows_of(a="of a", b="of b"), 7, a=2, b=3)
    assert field_ids(lake) == before
    recorded = json.loads(iceberg_table(lake).properties["cdc.columns"])
    assert recorded == {str(before["id"]): "7/1", str(before["a"]): "7/2", str(before["b"]): "7/3"}
    publish(lake, 3, rows_of(z="of a", b="of b"), 7, z=2, b=3)
    assert field_ids(lake)["z"] == before["a"]
    assert_rows(lake, 1, {"a": "of a", "b": "of b"})
    assert_rows(lake, 3, {"z": "of a", "b": "of b"})


def test_an_older_run_under_the_old_name_does_not_rename_back(lake: Lake) -> None:
    publish(lake, 1, rows_of(a="first"), 7, a=2)
    older = run_of(lake, 2, {ORDERS: rows_of(a="older")}, ("id",), identities={"id": "7/1", "a": "7/2"})
    publish(lake, 3, rows_of(z="newest"), 7, z=2)
    lake.sink.publish(older)
    assert [*field_ids(lake)] == ["id", "z"]
    assert iceberg_table(lake).scan().to_arrow().to_pylist() == [{"id": 1, "z": "newest"}]
    assert_rows(lake, 2, {"a": "older"})


def test_two_runs_that_gave_one_field_id_to_two_columns_of_one_name_do_not_mix_them(lake: Lake) -> None:
    publish(lake, 1, rows_of(), 7)
    later, earlier = (
        run_of(lake, number, {ORDERS: rows_of(c=f"of {attnum}")}, ("id",), identities={"id": "7/1", "c": f"7/{attnum}"})
        for number, attnum in ((3, 3), (2, 2))
    )
    lake.sink.publish(earlier)
    with pytest.raises(ConfigurationError, match="changed the table's columns meanwhile"):
        lake.sink.publish(later)
    assert_rows(lake, 2, {"c": "of 2"})


@pytest.mark.slow
def test_a_changed_type_gets_a_new_column_only_with_the_option(lake: Lake) -> None:
    publish(lake, 1, rows_of(c="text", d=2.5, e=[1]), 7, c=2, d=3, e=4)
    with pytest.raises(ConfigurationError, match=r"c \(string became long\), e \(list<long> became string\)"):
        publish(lake, 2, rows_of(c=7, d=2.5, e="[1]"), 7, c=2, d=3, e=4)
    lake.options = {"on_type_change": "new_column"}
    before = field_ids(lake)
    publish(lake, 2, rows_of(c=7, d=2.5, e="[1]"), 7, c=2, d=3, e=4)
    after = field_ids(lake)
    assert (before["id"], before["d"]) == (after["id"], after["d"])
    assert before["c"] != after["c"]
    # The new column has the identity now.
    publish(lake, 3, rows_of(renamed=8, d=2.5, e="[2]"), 7, renamed=2, d=3, e=4)
    assert field_ids(lake)["renamed"] == after["c"]
    publish(lake, 4, rows_of(renamed="text again", d=2.5, e="[2]"), 7, renamed=2, d=3, e=4)
    assert iceberg_table(lake).schema().find_field("renamed").field_type == StringType()
    assert_rows(lake, 1, {"c": "text", "d": 2.5, "e": [1]})
    assert_rows(lake, 2, {"c": 7, "d": 2.5, "e": "[1]"})
    assert_rows(lake, 3, {"renamed": 8, "d": 2.5, "e": "[2]"})
    assert_rows(lake, 4, {"renamed": "text again", "d": 2.5, "e": "[2]"})
    assert iceberg_table(lake).scan("renamed = 'text again'").to_arrow().num_rows == 1
