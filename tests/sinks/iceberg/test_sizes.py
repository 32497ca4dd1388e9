"""Empty tables, many tables, many files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sinks.base import TableChange
from tests.interrupting import commits_fail
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.runs import again_of, iceberg_table, rows_at, run_of
from tests.sinks.test_contract import ORDERS, Lake


def test_a_table_without_rows_is_a_table_and_may_be_so_again(lake: Lake) -> None:
    empty = pa.table({"id": pa.array([], pa.int64())})
    one = pa.table({"id": pa.array([1], pa.int64())})
    for number, rows in enumerate((empty, one, empty, one), 1):
        run = run_of(lake, number, {ORDERS: rows})
        lake.sink.publish(run)
        assert rows_at(lake, run.run_id) == rows.to_pylist()
        assert iceberg_table(lake).scan().to_arrow().num_rows == rows.num_rows
        told = lake.sink.latest(ORDERS)
        assert told is not None
        assert (told.run_id, told.rows, len(told.files)) == (run.run_id, rows.num_rows, rows.num_rows)


def requests_of(lake: Lake, count: int, patch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests to the catalog of a run that publishes so many tables."""
    rows = pa.table({"id": pa.array([1], pa.int64())})
    run = run_of(lake, 1, {TableName("shop", f"t{number}"): rows for number in range(count)})
    requests: Counter[str] = Counter()

    def counted(commit: Callable[[], Any], table: str) -> Any:
        requests["commit"] += 1
        return commit()

    commits_fail(patch, counted)
    load = SqlCatalog.load_table

    def loaded(*arguments: Any, **named: Any) -> Any:
        requests["load"] += 1
        return load(*arguments, **named)

    patch.setattr(SqlCatalog, "load_table", loaded)
    lake.sink.publish(run)
    return requests


@pytest.mark.parametrize("count", [5, pytest.param(500, marks=pytest.mark.long)])
def test_requests_grow_with_the_tables_only(lake: Lake, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = requests_of(lake, count, monkeypatch)
    assert requests["commit"] == count + 1
    # For each table: one by the sink, one by PyIceberg's own SQL catalog in the commit, and one that confirms the
    # commit before the cut; the rest is for the cuts.
    assert requests["load"] <= 3 * count + 6
    rows = plain_catalog(lake.storage).load_table("cdc.cdc_cuts").scan().to_arrow()
    assert rows.num_rows == count


@pytest.mark.long
def test_ten_thousand_files_of_one_table(lake: Lake) -> None:
    first = run_of(lake, 1, {ORDERS: pa.table({"id": pa.array([1], pa.int64())})})
    (file,) = first.tables[0].added
    folder = lake.files_of(first, ORDERS)
    with folder.filesystem.open_input_stream(folder.path(file.name)) as stream:
        content = stream.read()
    files = []
    for number in range(10_000):
        name = f"part-{number:06}-{first.run_id}-copy.parquet"
        with folder.filesystem.open_output_stream(folder.path(name)) as stream:
            stream.write(content)
        files.append(replace(file, name=name))
    change: TableChange = replace(first.tables[0], added=tuple(files))
    first = replace(first, tables=(change,))
    lake.sink.publish(first)
    second = run_of(lake, 2, {ORDERS: pa.table({"id": pa.array([2], pa.int64())})})
    lake.sink.publish(again_of(second, replace(first, tables=(replace(change, added=tuple(files[20:])),))))
    assert len(list(iceberg_table(lake).scan().plan_files())) == 9_981
