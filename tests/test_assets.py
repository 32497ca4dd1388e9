"""Assets: those that are sure to be copied are named when a DAG is parsed, and no event tells of what is no copy."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_cdc.assets import announce, copies_alias, outlets_of, table_asset
from airflow_provider_cdc.core.table import TableName
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

ALIAS = AssetAlias("x-cdc:d/g")
ORDERS = TableName("shop", "orders")


def uris(tables: Any, conn_id: str = "shop", on_table_error: str = "fail") -> list[str]:
    alias, *assets = outlets_of(conn_id, tables, on_table_error, ALIAS)
    assert alias is ALIAS
    return [asset.uri for asset in assets if isinstance(asset, Asset)]


def test_a_table_has_one_asset_whoever_names_it() -> None:
    assert table_asset("cdc_mysql", "shop.orders") == table_asset("cdc_mysql", "shop.orders")
    assert table_asset("cdc_mysql", "shop.orders").uri == "x-cdc://cdc_mysql/shop/orders"
    assert table_asset("cdc_mysql", ORDERS) == table_asset("cdc_mysql", "shop.orders")
    for none in ("shop.*", "orders", ""):
        with pytest.raises(ConfigurationError):
            table_asset("cdc_mysql", none)
    tables = ("b/c.d", "c.d", "ä.ö", "A.B", "a.b.c", '"a.b".c')
    odd = {table_asset(conn, table).uri for conn in ("a", "a/b") for table in tables}
    assert len(odd) == 2 * len(tables)
    assert all(uri.isascii() for uri in odd)


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        (["shop.orders", "shop.lines"], ["shop/orders", "shop/lines"]),
        (["shop.orders", "shop.orders", "crm.*"], ["shop/orders"]),
        (['"my.shop"."a*"'], ["my.shop/a%2A"]),
        (["shop.*"], []),
        (["shop.orders", "!shop.orders"], []),
        ("{{ params.tables }}", []),
        (["{{ params.table }}"], []),
        (["nonsense"], []),
    ],
)
def test_only_tables_that_are_sure_to_be_copied_are_named(tables: Any, named: list[str]) -> None:
    assert uris(tables) == [f"x-cdc://shop/{name}" for name in named]


def test_a_table_that_may_be_left_out_or_a_source_that_is_not_known_is_not_named() -> None:
    assert uris(["shop.orders"], on_table_error="skip") == []
    assert uris(["shop.orders"], on_table_error="{{ params.x }}") == []
    assert uris(["shop.orders"], conn_id="{{ params.source }}") == []


def test_each_copy_has_one_event_and_what_was_not_copied_has_none() -> None:
    outlets = outlets_of("shop", ["shop.orders", "crm.*"], "fail", ALIAS)
    events = OutletEventAccessors()
    announce(events, outlets, "shop", {ORDERS: {"rows": 1}, TableName("crm", "people"): {"rows": 2}})
    assert events[table_asset("shop", "shop.orders")].extra == {"rows": 1}
    (event,) = events[ALIAS].asset_alias_events
    assert event.dest_asset_key.uri == "x-cdc://shop/crm/people"
    assert event.extra == {"rows": 2}


def test_a_group_announces_its_copies_and_others_can_be_scheduled_on_them() -> None:
    with DAG("made", schedule=None, start_date=datetime(2025, 1, 1)) as made:
        group = SnapshotTaskGroup(source_conn_id="shop", tables=["shop.orders"], target="s3://lake")
    assert group.copies == copies_alias("made", "cdc_snapshot")
    with DAG(
        "used", schedule=[table_asset("shop", "shop.orders"), group.copies], start_date=datetime(2025, 1, 1)
    ) as used:
        pass
    for dag in (made, used):
        DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    names = [outlet.name for outlet in made.get_task("consolidate").outlets]
    assert names == ["x-cdc:made/cdc_snapshot", "x-cdc://shop/shop/orders"]
    assert not any(task.outlets for task in made.tasks if task.task_id != "consolidate")
