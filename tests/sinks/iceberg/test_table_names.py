"""Names of tables that a dot, a quote or a template could mix up: each table has an Iceberg table of its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.base import Prepared, Sink
from airflow_provider_cdc.sinks.iceberg.catalog import identifier_in, name_of
from airflow_provider_cdc.sinks.registry import LakeSettings, open_sink

ORDERS, LINES = TableName("shop", "orders"), TableName("shop", "lines")


@pytest.mark.parametrize(
    "identifier",
    [
        ("shop", "orders"),
        ("a", "b.c"),
        ("a.b", "c"),
        ("a", ".", "..b"),
        ("a", 'say "b.c"'),
        ("a", '"'),
        ("ünï", "we ird\nb`c"),
        ("a", '."b".'),
    ],
)
def test_name_of_a_table_is_read_back(identifier: tuple[str, ...]) -> None:
    assert identifier_in(name_of(identifier)) == identifier


def test_names_of_different_tables_differ() -> None:
    assert len({name_of(one) for one in (("a", "b.c"), ("a.b", "c"), ("a", "b", "c"), ("a", '"b.c"'))}) == 4


@pytest.mark.parametrize(
    "template",
    ["{schema}", "raw.", ".raw", "raw.{nothing}", "raw.{}", "raw.{table[x]}", "raw.{table", "raw.{table!z}", "raw..x"],
)
def test_preflight_refuses_a_template_that_makes_no_name(template: str, tmp_path: Path) -> None:
    sink = open_sink(LakeSettings("iceberg", table_name=template), Storage(str(tmp_path)))
    with pytest.raises(ConfigurationError, match="is no template of the names of tables"):
        sink.check_names([ORDERS])


@pytest.mark.parametrize(
    ("template", "tables", "message"),
    [
        ("raw.{schema}", [ORDERS, LINES], "shop.lines and shop.orders would be one Iceberg table"),
        ("raw.{table}", [ORDERS, TableName("other", "orders")], "other.orders and shop.orders would be one"),
        ("{schema}.{table}", [TableName("cdc", "cdc_cuts")], "cdc.cdc_cuts and the table of cuts would be one"),
    ],
)
def test_preflight_refuses_two_tables_in_one(
    template: str, tables: list[TableName], message: str, tmp_path: Path
) -> None:
    sink = open_sink(LakeSettings("iceberg", table_name=template), Storage(str(tmp_path)))
    with pytest.raises(ConfigurationError, match=message):
        sink.check_names(tables)
    sink.check_names([TableName("shop", "cdc_cuts")])


@pytest.mark.parametrize("name", ["a#b", "a%20b", "a?b", "a*b", "{a}", "[a]"])
def test_preflight_refuses_a_folder_that_readers_would_not_find(name: str, tmp_path: Path) -> None:
    for target in (str(tmp_path / name), (tmp_path / name).as_uri()):
        with pytest.raises(ConfigurationError, match="would look for the files elsewhere"):
            open_sink(LakeSettings("iceberg"), Storage(target)).check_ready()


@pytest.mark.parametrize("name", ["a b", "ünï☃", "100%", "a'b", "a;b&c=d"])
def test_preflight_accepts_other_folders(name: str, tmp_path: Path) -> None:
    for target in (str(tmp_path / name), (tmp_path / name).as_uri()):
        open_sink(LakeSettings("iceberg"), Storage(target)).check_ready()


def test_two_runs_cannot_fill_one_table(tmp_path: Path) -> None:
    def sink() -> Sink:
        return open_sink(LakeSettings("iceberg", table_name="raw.{schema}"), Storage(str(tmp_path)))

    columns = pa.schema([pa.field("id", pa.int32(), False)])
    sink().prepare("20260101T000000Z-00000001", [Prepared(ORDERS, columns, ("id",))])
    sink().prepare("20260102T000000Z-00000002", [Prepared(ORDERS, columns, ("id",))])
    with pytest.raises(ConfigurationError, match=r"has copies of shop\.orders, and would get those of shop\.lines"):
        sink().prepare("20260103T000000Z-00000003", [Prepared(LINES, columns, ("id",))])
