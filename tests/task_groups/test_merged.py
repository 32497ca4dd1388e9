"""The group for several sources as the author of a DAG uses it, at parse time."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_cdc import Lake, Merge, MergedSnapshotTaskGroup
from airflow_provider_cdc.errors import ConfigurationError
from tests.consistency.merge_matrix import REFUSED_ACROSS


def group(**arguments: Any) -> MergedSnapshotTaskGroup:
    given = {
        "source_conn_ids": ["eu", "us"],
        "tables": [Merge("shop.orders", ["shop_*.orders"])],
        "target": "s3://lake",
    }
    return MergedSnapshotTaskGroup(**{**given, **arguments})


def dag() -> DAG:
    return DAG("test", schedule=None, start_date=datetime(2025, 1, 1))


def test_all_checks_come_before_all_reads_and_positions_are_recorded_in_order() -> None:
    with dag() as parsed:
        vanished = ["eu:shop_3.orders", "asia"]
        group(tables=[Merge("shop.orders", ["shop_*.orders"], vanished_shards=vanished)], refresh="auto")
    after = {task.task_id: task.downstream_task_ids for task in parsed.tasks}
    for source in ("eu", "us"):
        assert after[f"cdc_merged.{source}.preflight"] >= {"cdc_merged.check_merged"}
        assert f"cdc_merged.{source}.lock_and_record" in after["cdc_merged.check_merged"]
        assert after[f"cdc_merged.{source}.consolidate"] == {"cdc_merged.publish_merged"}
    assert "cdc_merged.us.lock_and_record" in after["cdc_merged.eu.lock_and_record"]
    eu, us = (parsed.get_task(f"cdc_merged.{source}.preflight") for source in ("eu", "us"))
    assert (eu.tables, eu.target, eu.refresh, eu.keep) == (["shop_*.orders"], "s3://lake/_sources/{source}", "auto", 1)
    assert (eu.vanished_shards, us.vanished_shards) == (["shop_3.orders"], [])
    # The copies of one source are not announced, because they are not the merged table.
    consolidate = parsed.get_task("cdc_merged.eu.consolidate")
    assert (consolidate.outlets, consolidate.reports_lineage) == ([], False)
    assert len(parsed.get_task("cdc_merged.publish_merged").outlets) == 1
    assert set(DagSerialization.deserialize_dag(DagSerialization.serialize_dag(parsed)).task_ids) == {*parsed.task_ids}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        *((case.argument, "MergedSnapshotTaskGroup does not have") for case in REFUSED_ACROSS),
        ({"tables": ["shop.*"]}, "the merged tables must be known"),
        ({"tables": [Merge("shop.orders", ["shop_*.orders"]), "shop.x"]}, "cannot copy shop.x"),
        ({"source_conn_ids": ["eu"]}, "two or more"),
        ({"source_conn_ids": ["eu", "eu"]}, "two or more"),
        ({"source_conn_ids": ["e.u", "e_u"]}, "two or more"),
        ({"source_conn_ids": ["eu", "{{ params.source }}"]}, "cannot be one of the sources"),
        ({"target": "s3://lake/{source}"}, "one folder"),
        ({"tables": "{{ params.tables }}"}, "must be known"),
        ({"vanished_shards": ["eu"]}, "neither a source that is gone nor a shard"),
        ({"vanished_shards": ["asia:shop_3.orders"]}, "neither a source that is gone nor a shard"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_several_sources_cannot_have_is_refused(arguments: dict[str, Any], what: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=what):
        group(**arguments)


def test_the_arguments_of_version_0_2_do_the_same() -> None:
    tasks = []
    for arguments in (
        {"merge": {"shop.orders": ["shop_*.orders"]}, "tables": (), "keep": 7, "vanished_shards": ["asia"]},
        {
            "tables": [Merge("shop.orders", ["shop_*.orders"], vanished_shards=["asia"])],
            "target": Lake("s3://lake", retention=7),
        },
    ):
        with dag() as parsed, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            group(**arguments)
        assert len(caught) == ("merge" in arguments)
        tasks.append([[repr(getattr(one, name)) for name in one.template_fields] for one in parsed.tasks])
    assert tasks[0] == tasks[1]


def test_unknown_arguments_are_refused() -> None:
    with dag(), pytest.raises(ConfigurationError, match="no argument 'refersh'"):
        group(refersh="auto")
