"""Assets: those that are certain to be copied are named when a DAG is parsed, and every event has a copy."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessor, OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_cdc.assets import announce, copies_alias, outlets_of, table_asset
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

ALIAS = AssetAlias("x-cdc:d/g")
ORDERS = TableName("shop", "orders")


PRODUCTION = "AIRFLOW__CDC__PRODUCTION_TARGETS"
TARGETS = "AIRFLOW__CDC__TARGETS"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PRODUCTION, TARGETS):
        monkeypatch.delenv(name, raising=False)


def uris(tables: Any, conn_id: Any = "shop", on_table_error: str = "fail", target: Any = "s3://lake/raw") -> list[str]:
    alias, *assets = outlets_of(conn_id, tables, on_table_error, ALIAS, target=target)
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
    ("production", "targets", "plain", "apart"),
    [
        # As long as nothing shows that there is more than one lake, there is nothing to configure.
        ("", "", ["s3://lake/raw", "/data/lake"], []),
        ("", "s3://lake/raw", ["s3://lake/raw", "s3://lake/raw/{source}"], ["s3://lake/raw2", "/data/lake"]),
        ("", "s3://lake/{source}", ["s3://lake/shop/a"], ["s3://lake/crm"]),
        ("s3://lake/raw", "*", ["s3://lake/raw/a"], ["s3://sandbox/raw"]),
        ("shop=/data/lake, crm=s3://lake/raw", "", ["file:///data/lake/"], ["s3://lake/raw"]),
        ("sh*=s3://lake/day=*", "", ["s3://lake/day=1"], ["s3://lake/night"]),
        ("s3://lake/day=1 s3://other/*/b", "", ["s3://lake/day=1", "s3://other/a/b"], ["s3://other/a"]),
    ],
)
def test_copies_in_a_sandbox_are_not_the_asset_that_production_dags_wait_for(
    production: str, targets: str, plain: list[str], apart: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRODUCTION, production)
    monkeypatch.setenv(TARGETS, targets)
    assert table_asset("shop", "shop.orders").uri == "x-cdc://shop/shop/orders"
    for target in plain:
        assert table_asset("shop", "shop.orders", target=target) == table_asset("shop", "shop.orders")
        assert uris(["shop.orders"], target=target) == ["x-cdc://shop/shop/orders"]
    for target in apart:
        (uri,) = uris(["shop.orders"], target=target)
        assert uri.startswith("x-cdc://shop/shop/orders?target=")
        assert table_asset("shop", "shop.orders", target=target).uri == uri


@pytest.mark.parametrize(
    ("production", "targets"),
    [("", "s3://lake/raw s3://sandbox"), ("", "*"), ("", "s3://lake/*"), ("crm=s3://lake/raw", "s3://lake/raw")],
)
def test_a_dag_that_waits_for_copies_is_refused_where_nobody_can_tell_which_target_is_production(
    production: str, targets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRODUCTION, production)
    monkeypatch.setenv(TARGETS, targets)
    with pytest.raises(ConfigurationError, match="which target of shop is the production target") as refusal:
        table_asset("shop", "shop.orders")
    assert PRODUCTION in str(refusal.value)
    # The DAGs that copy go on.
    assert uris(["shop.orders"]) == ["x-cdc://shop/shop/orders?target=s3%3A%2F%2Flake%2Fraw"]


def test_a_setting_that_names_no_folder_is_told_when_the_dag_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("lake/raw", "s3://lake/{sorce}", "shop=lake"):
        monkeypatch.setenv(PRODUCTION, setting)
        with pytest.raises(ConfigurationError, match=PRODUCTION):
            uris("{{ params.tables }}")


def test_each_target_each_part_and_the_past_have_an_asset_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRODUCTION, "s3://lake/raw")
    found = {
        table_asset("shop", table, where=where, target=target, past=past).uri
        for table in ("shop.orders", "shop.orders?past=true", '"shop"."orders?target=a"')
        for where in (None, "id = 1")
        for target in (None, "s3://a", "s3://a/b", "s3://a/b&past=true", "/a/b&past=true", f"s3://{'a' * 1400}")
        for past in (False, True)
    }
    assert len(found) == 3 * 2 * 6 * 2
    assert all(uri.isascii() and len(uri) <= 1500 for uri in found)
    assert table_asset("shop", "shop.orders", past=True).uri == "x-cdc://shop/shop/orders?past=true"
    same_folders = (("/a b", "file:///a%20b/"), ("s3://a/%62", "s3://a/b"), ("s3://a/{source}", "s3://a/shop"))
    for written, otherwise in same_folders:
        assert table_asset("shop", "s.t", target=written) == table_asset("shop", "s.t", target=otherwise)


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


def test_a_table_that_may_be_left_out_or_a_source_or_target_that_is_not_known_is_not_named() -> None:
    assert uris(["shop.orders"], on_table_error="skip") == []
    assert uris(["shop.orders"], on_table_error="{{ params.x }}") == []
    assert uris(["shop.orders"], conn_id="{{ params.source }}") == []
    for target in ("{{ params.target }}/raw", "nowhere", "s3://lake/{sorce}", object()):
        assert uris(["shop.orders"], target=target) == []


def test_each_copy_has_one_event_and_what_is_named_for_the_graph_alone_has_none() -> None:
    """Airflow makes an event of each asset among the outlets of a task that succeeds."""
    foreign = Asset("somebody's own")
    outlets = [*outlets_of("shop", ["shop.orders", "shop.lines"], "fail", ALIAS, target="s3://lake/raw"), foreign]
    events = OutletEventAccessors()
    past = table_asset("shop", "shop.orders", past=True).uri
    people = "x-cdc://shop/crm/people"
    assert announce(events, outlets, [(past, {"rows": 1}), (people, {"rows": 2})]) == [ALIAS, foreign]
    told = [(event.dest_asset_key.uri, event.extra) for event in events[ALIAS].asset_alias_events]
    assert told == [(past, {"rows": 1}), (people, {"rows": 2})]
    assert [*events] == [ALIAS]
    # A task that was created without a group.
    orders, lines = (table_asset("shop", f"shop.{name}") for name in ("orders", "lines"))
    assert announce(events, [orders, lines], [(orders.uri, {"rows": 3})]) == [orders]
    assert events[orders].extra == {"rows": 3}


def test_a_partition_is_announced_beside_the_event_that_other_dags_wait_for() -> None:
    given: dict[str, Any] = {"target": "s3://lake/raw", "partition_key": "{{ ds }}"}
    outlets = outlets_of("shop", ["shop.orders", "shop.lines"], "fail", ALIAS, **given)
    orders, late = table_asset("shop", "shop.orders"), table_asset("shop", "shop.lines", past=True)
    events = OutletEventAccessors()
    kept = announce(events, outlets, [(orders.uri, {"rows": 1}), (late.uri, {"rows": 2})], "2026-01-01")
    assert kept == [ALIAS, orders, late]
    told = [(event.dest_asset_key.uri, event.extra) for event in events[ALIAS].asset_alias_events]
    assert told == [(orders.uri, {"rows": 1}), (late.uri, {"rows": 2})]
    for asset, rows in ((orders, 1), (late, 2)):
        assert (events[asset].partition_keys, events[asset].extra) == ({"2026-01-01"}, {"rows": rows})


@pytest.mark.parametrize(
    ("tables", "more"),
    [
        (["shop.*"], {}),
        (["shop.orders", "shop.l*"], {}),
        ("{{ params.tables }}", {}),
        (["shop.orders"], {"on_table_error": "skip"}),
        (["shop.orders"], {"in_part": True}),
    ],
)
def test_a_partition_of_a_table_that_is_not_known_is_refused_when_the_dag_is_parsed(tables: Any, more: Any) -> None:
    given = {"on_table_error": "fail", "target": "s3://lake/raw", "partition_key": "{{ ds }}", **more}
    with pytest.raises(ConfigurationError, match="partition_key: it is not known which tables"):
        outlets_of("shop", tables, alias=ALIAS, **given)


def test_a_partition_is_refused_where_airflow_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(OutletEventAccessor, "add_partitions")
    with pytest.raises(ConfigurationError, match=r"no partitions\n.*Airflow 3\.3"):
        outlets_of("shop", ["shop.orders"], "fail", ALIAS, target="s3://lake/raw", partition_key="{{ ds }}")


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
