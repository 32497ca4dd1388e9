"""The options as arguments of their own, as until version 0.3: they make the same tasks as objects, and say what to
write instead."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.sdk import DAG

import airflow_provider_cdc
from airflow_provider_cdc import (
    Allow,
    Iceberg,
    Lake,
    Limits,
    Merge,
    On,
    Read,
    Refresh,
    Retention,
    SnapshotTaskGroup,
    Spark,
    Table,
)
from airflow_provider_cdc.core.options.arguments import Arguments, declared
from airflow_provider_cdc.core.options.run import checked
from airflow_provider_cdc.core.storage.records import encode
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.preflight import PreflightOperator

SHARDS: dict[str, Any] = {"tables": ["shop_*.orders"], "merge": {"shop.orders": ["shop_*.orders"]}}

# All arguments that version 0.2 had, each with another value than the default, and the same in objects.
NEW_PLACES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"source_conn_id": "shop"}, {"source_conn_id": "shop"}),
    ({"tables": ["a.*"]}, {"tables": ["a.*"]}),
    ({"target": "s3://other"}, {"target": Lake("s3://other")}),
    ({"where": {"a.b": "id = 1"}}, {"tables": [Table("a.b", where="id = 1")]}),
    ({"columns": {"a.b": ["id"]}}, {"tables": [Table("a.b", columns=["id"])]}),
    ({"scratch": "s3://scratch"}, {"target": Lake("s3://lake", scratch="s3://scratch")}),
    ({"consistency": "watermark"}, {"read": Read(consistency="watermark")}),
    ({"unrepresentable": "null"}, {"on": On(unrepresentable="null")}),
    ({"arrays": "list"}, {"target": Lake("s3://lake", arrays="list")}),
    ({"missing_past": "fail"}, {"on": On(missing_past="fail")}),
    ({"spark_conn_id": "yarn"}, {"spark": Spark("yarn")}),
    ({"spark_conf": {"spark.x": "1"}}, {"spark": Spark(conf={"spark.x": "1"})}),
    ({"shared_app_seconds": 0}, {"spark": Spark(shared_app_seconds=0)}),
    ({"chunk_rows": 5}, {"read": Read(chunk_rows=5)}),
    ({"chunk_pause": 0.5}, {"limits": Limits(chunk_pause=0.5)}),
    ({"as_of": "2026-01-31"}, {"as_of": "2026-01-31"}),
    ({"as_of_wait_seconds": 600}, {}),
    ({"standing_slot": "nightly"}, {"refresh": Refresh(standing_slot="nightly")}),
    ({"standing_slot_hours": 5}, {"refresh": Refresh(standing_slot_hours=5)}),
    ({"refresh": "auto"}, {"refresh": Refresh("auto")}),
    ({"changes": True}, {"refresh": Refresh(changes=True)}),
    ({"on_feed_gap": "begin_anew"}, {"on": On(feed_gap="begin_anew")}),
    ({"keep": 7}, {"target": Lake("s3://lake", retention=7)}),
    ({"keep": 1, "keep_days": 30}, {"target": Lake("s3://lake", retention=Retention(1, days=30))}),
    ({"max_reads": 4}, {"limits": Limits(max_reads=4)}),
    ({"max_rows_per_second": 9}, {"limits": Limits(max_rows_per_second=9)}),
    ({"governor": {"threads_running": 40}}, {"limits": Limits(governor={"threads_running": 40})}),
    ({"scrub_days": 1}, {"refresh": Refresh(scrub_days=1)}),
    ({"scrub_gib": 50}, {"refresh": Refresh(scrub_gib=50)}),
    ({"lock_wait_seconds": 1}, {"read": Read(lock_wait_seconds=1)}),
    ({"lock_tries": 1}, {"read": Read(lock_tries=1)}),
    ({"lock_pause_seconds": 1}, {"read": Read(lock_pause_seconds=1)}),
    ({"lock_through_read": True}, {"read": Read(lock_through_read=True)}),
    ({"slot_wait_seconds": 1}, {"read": Read(slot_wait_seconds=1)}),
    ({"keep_slot": True}, {"read": Read(keep_slot=True)}),
    ({"format": "iceberg"}, {"target": Lake("s3://lake", format="iceberg")}),
    ({"format": "iceberg", "catalog_conn_id": "c"}, {"target": Lake("s3://lake", format=Iceberg("c"))}),
    (
        {"format": "iceberg", "table_name": "a.{table}"},
        {"target": Lake("s3://lake", format=Iceberg(table_name="a.{table}"))},
    ),
    ({"partition_by": {"a.b": ["day(at)"]}}, {"tables": [Table("a.b", partition_by=["day(at)"])]}),
    ({"sort_by": {"a.b": ["at"]}}, {"tables": [Table("a.b", sort_by=["at"])]}),
    ({"on_type_change": "new_column"}, {"on": On(type_change="new_column")}),
    ({"on_foreign_commit": "replace"}, {"on": On(foreign_commit="replace")}),
    ({"compression": "snappy"}, {"target": Lake("s3://lake", compression="snappy")}),
    ({"storage_conn_id": "aws"}, {"target": Lake("s3://lake", storage_conn_id="aws")}),
    ({"on_table_error": "skip"}, {"on": On(table_error="skip")}),
    ({"on_schema_change": "fail"}, {"on": On(schema_change="fail")}),
    ({"spool": "off"}, {"read": Read(spool="off")}),
    ({"on_short_log": "warn"}, {"on": On(short_log="warn")}),
    (SHARDS, {"tables": [Merge("shop.orders", ["shop_*.orders"])]}),
    ({**SHARDS, "origin_columns": True}, {"tables": [Merge("shop.orders", ["shop_*.orders"], origin_columns=True)]}),
    ({"on_collision": "origin_in_key"}, {"on": On(collision="origin_in_key")}),
    (
        {**SHARDS, "vanished_shards": ["shop_3.orders"]},
        {"tables": [Merge("shop.orders", ["shop_*.orders"], vanished_shards=["shop_3.orders"])]},
    ),
    ({**SHARDS, "column_order": "name"}, {"tables": [Merge("shop.orders", ["shop_*.orders"], column_order="name")]}),
    ({"concurrent_runs": "wait"}, {"on": On(concurrent_runs="wait")}),
    ({"concurrent_wait_seconds": 5}, {"on": On(concurrent_wait_seconds=5)}),
    ({"plan_only": True}, {"plan_only": True}),
    ({"source_conn_ids": ["cdc_*"]}, {"allow": Allow(source_conn_ids=["cdc_*"])}),
    ({"targets": ["s3://lake"]}, {"allow": Allow(targets=["s3://lake"])}),
    ({"strict_conf": True}, {"allow": Allow(strict_conf=True)}),
]  # fmt: skip
NAMES = {name: getattr(airflow_provider_cdc, name) for name in airflow_provider_cdc.__all__}
BASE: dict[str, Any] = {"source_conn_id": "eu", "tables": ["a.b"], "target": "s3://lake"}


def tasks(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the tasks of a group do: the options that preflight checks, and the attributes of the other tasks."""
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        SnapshotTaskGroup(**{**BASE, **arguments})
    preflight = dag.get_task("preflight")
    made: dict[str, Any] = {
        "options": encode(checked({name: getattr(preflight, name) for name in preflight.template_fields})),
        "limits": (preflight.allowed, preflight.strict_conf),
    }
    for task in dag.tasks:
        if task is not preflight:
            own = {name: repr(getattr(task, name)) for name in task.template_fields}
            made[task.task_id] = own, repr(task.outlets), getattr(task, "allowed", None)
    return made


@pytest.mark.parametrize(("flat", "objects"), NEW_PLACES, ids=lambda given: "-".join(given))
def test_each_argument_of_version_0_2_does_the_same_in_its_new_place(
    flat: dict[str, Any], objects: dict[str, Any]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old = tasks(flat)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AirflowProviderDeprecationWarning)
        assert old == tasks(objects)
    told = [one for one in caught if one.category is AirflowProviderDeprecationWarning]
    assert len(told) == (not flat.keys() <= Arguments.__annotations__.keys())
    for one in told:
        assert one.filename == __file__
        # The lines of the warning are the arguments to write.
        lines = [line for line in str(one.message).splitlines()[1:] if "without" not in line]
        written = eval(f"dict({' '.join(lines)})", NAMES)
        with warnings.catch_warnings():
            warnings.simplefilter("error", AirflowProviderDeprecationWarning)
            new = tasks({name: value for name, value in flat.items() if name in Arguments.__annotations__} | written)
        if "spark_conf" not in flat:
            assert old == new


def test_no_argument_of_version_0_2_is_lost() -> None:
    old = {name for flat, _ in NEW_PLACES for name in flat}
    newer = {"partition_key", "read_conn_ids", "log_conn_id", "replica_wait_seconds"}
    assert {one.name for one in declared()} - newer | {"source_conn_ids", "targets", "strict_conf"} == old


def test_templates_of_whole_mappings_work_as_before_and_say_where_they_belong() -> None:
    with pytest.warns(AirflowProviderDeprecationWarning, match="'name': 'shop.orders', 'where'"):
        group = tasks_of(tables="{{ params.tables }}", where="{{ params.where }}")
    group.preflight.render_template_fields({"params": {"tables": ["a.b"], "where": {"a.b": "id = 1"}}})
    assert (group.preflight.tables, group.preflight.where) == (["a.b"], {"a.b": "id = 1"})


def test_conditions_of_a_pattern_do_not_add_tables_to_the_run() -> None:
    with pytest.warns(AirflowProviderDeprecationWarning, match="Table") as told:
        tasks_of(tables=["a.b", "a.c"], where={"a.*": "id = 1"}, columns={"a.c": ["id"]})
    (text,) = (str(one.message) for one in told)
    assert "[Table('a.b', where='id = 1'), Table('a.c', where='id = 1', columns=['id'])]" in text


def tasks_of(**arguments: Any) -> SnapshotTaskGroup:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)):
        return SnapshotTaskGroup(**{**BASE, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"refresh": Refresh(changes=True), "changes": False},
        {"target": Lake("s3://lake", retention=7), "keep": 8},
        {"allow": Allow(strict_conf=True), "targets": ["s3://lake"]},
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_option_that_is_set_in_both_ways_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        tasks_of(**arguments)


def test_operators_take_both() -> None:
    with pytest.warns(AirflowProviderDeprecationWarning, match=r"limits=Limits\(max_reads=4\)"):
        old = PreflightOperator(task_id="a", **{**BASE, "max_reads": 4})
    new = PreflightOperator(task_id="b", **BASE, limits=Limits(max_reads=4))
    assert old.max_reads == new.max_reads == 4
