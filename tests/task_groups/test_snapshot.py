"""The task group as the author of a DAG uses it, at parse time."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseHook, TaskGroup
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_cdc import Limits, Read, Refresh, SnapshotTaskGroup, Spark
from airflow_provider_cdc.errors import ConfigurationError
from harness.airflow_home import ROOT

STEPS = ["preflight", "lock_and_record", "snapshot", "extract_delta", "consolidate"]


def group(**arguments: Any) -> SnapshotTaskGroup:
    return SnapshotTaskGroup(**{"source_conn_id": "shop", "tables": ["shop.*"], "target": "s3://lake", **arguments})


def dag(**arguments: Any) -> DAG:
    return DAG("test", schedule=None, start_date=datetime(2025, 1, 1), **arguments)


def test_tasks_have_the_contract_s_ids_and_order() -> None:
    with dag() as parsed:
        group()
    assert [task.task_id for task in parsed.topological_sort()] == STEPS
    for before, after in pairwise(STEPS):
        assert after in parsed.get_task(before).downstream_task_ids


def test_two_groups_in_one_dag_need_a_prefix_for_one() -> None:
    with dag() as parsed:
        group() >> group(group_id="more", prefix_group_id=True)
    assert set(parsed.task_ids) == {*STEPS, *(f"more.{step}" for step in STEPS)}
    assert parsed.get_task("consolidate").downstream_task_ids == {"more.preflight"}
    assert parsed.get_task("more.snapshot").run_uri.operator.task_id == "more.lock_and_record"


def test_parsing_touches_no_connection_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("parsing a DAG must not look outside")

    monkeypatch.setattr(BaseHook, "get_connection", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with dag():
        group(target="s3://no-such-bucket/lake")


def test_group_survives_serialization_and_copying() -> None:
    with dag() as parsed:
        group(spark=Spark(conf={"spark.executor.cores": "2"}), read=Read(lock_through_read=True))
    loaded = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(parsed))
    assert set(loaded.task_ids) == set(STEPS)
    assert set(copy.deepcopy(parsed).task_ids) == set(STEPS)


@pytest.mark.parametrize(
    ("dag_arguments", "group_arguments", "parent_arguments", "retries"),
    [
        ({}, {}, {}, 2),
        ({"retries": 5}, {}, {}, 5),
        ({"retries": 5}, {"retries": 0}, {}, 0),
        ({}, {}, {"retries": 4}, 4),
    ],
)
def test_our_retries_give_way_to_everybody_else_s(
    dag_arguments: dict[str, Any], group_arguments: dict[str, Any], parent_arguments: dict[str, Any], retries: int
) -> None:
    with (
        dag(default_args=dag_arguments) as parsed,
        TaskGroup("parent", prefix_group_id=False, default_args=parent_arguments),
    ):
        group(default_args=group_arguments)
    for task in parsed.tasks:
        assert task.retries == retries
        assert task.retry_delay == timedelta(seconds=15)


def test_templates_keep_the_types_of_params_whatever_the_dag_says() -> None:
    with dag(render_template_as_native_obj=False) as parsed:
        group(
            tables="{{ params.tables }}",
            read=Read(chunk_rows="{{ params.chunk_rows }}", lock_through_read="{{ params.through }}"),
            spark=Spark(conf="{{ params.conf }}"),
            source_conn_id="{{ params.source }}",
        )
    params = {"tables": ["a.b"], "chunk_rows": 10, "through": True, "conf": {"spark.x": 1}, "source": "shop"}
    preflight, snapshot = parsed.get_task("preflight"), parsed.get_task("snapshot")
    preflight.render_template_fields({"params": params})
    assert preflight.tables == ["a.b"]
    assert preflight.chunk_rows == 10
    assert preflight.lock_through_read is True
    assert preflight.conf == {"spark.x": 1}
    snapshot.run_uri = "file:///lake/_runs/x"
    snapshot.render_template_fields({"params": params})
    assert (snapshot.conf, snapshot.source_conn_id) == ({"spark.x": 1}, "shop")


def test_what_was_published_can_be_handed_on() -> None:
    with dag() as parsed:
        copied = group()
    assert copied.published.operator is parsed.get_task("consolidate")
    assert copied.published.key == "published"
    assert copied.run_uri.key == "run_uri"


@pytest.mark.parametrize(
    ("given", "hint"),
    [("limit", "did you mean limits?"), ("zzz", "source_conn_id, tables, target"), ("tooltip_", "tooltip")],
)
def test_an_argument_that_nobody_knows_is_refused_with_the_ones_that_are_ours(given: str, hint: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=f"SnapshotTaskGroup has no argument '{given}'") as refused:
        group(**{given: 5})
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    "mapped",
    [
        lambda partial: partial.expand(source_conn_id=["eu", "us"]),
        lambda partial: partial.expand_kwargs(
            [{"source_conn_id": "eu"}, {"source_conn_id": "us", "read": Read(chunk_rows=5)}]
        ),
        lambda partial: partial.expand(source_conn_id=["eu"], refresh=["full", Refresh("auto")]),
        lambda partial: partial.expand(source_conn_id=["eu"], limits=[Limits(max_reads=1), Limits(max_reads=2)]),
    ],
)
def test_a_group_for_each_of_several_sources_has_the_same_tasks(mapped: Any) -> None:
    with dag() as parsed:
        made = mapped(SnapshotTaskGroup.partial(tables=["shop.*"], target="s3://lake/{source}", group_id="shop"))
        made >> group(group_id="after", prefix_group_id=True)
    assert set(parsed.task_ids) == {*STEPS, *(f"after.{step}" for step in STEPS)}
    assert made.published.operator is parsed.get_task("consolidate")
    for step in STEPS:
        assert parsed.get_task(step).get_closest_mapped_task_group().group_id == "each_shop"
        assert parsed.get_task(step).map_index_template == "{{ task.source_conn_id }}"
    assert parsed.get_task("after.preflight").get_closest_mapped_task_group() is None
    assert parsed.get_task("preflight").retries == 2
    loaded = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(parsed))
    assert loaded.get_task("preflight").get_parse_time_mapped_ti_count() == 2


@pytest.mark.parametrize(
    ("mapped", "what"),
    [
        (lambda: SnapshotTaskGroup.partial(limit=5), "has no argument 'limit'"),  # type: ignore[call-arg]
        (
            lambda: SnapshotTaskGroup.partial(refresh="auto").expand_kwargs([{"refresh": "full"}]),
            "refresh is set for all groups and for each group",
        ),
        (
            lambda: SnapshotTaskGroup.partial(limits=Limits(max_reads=1)).expand(limits=[Limits(max_reads=2)]),
            "limits is set for all groups",
        ),
        (
            lambda: SnapshotTaskGroup.partial().expand(limits=[Limits(max_reads=1), Limits(chunk_pause=1)]),
            "the values of limits set different options",
        ),
        (lambda: SnapshotTaskGroup.partial().expand(source_conn_ids=[["a"]]), "'source_conn_ids' cannot differ"),
        (lambda: SnapshotTaskGroup.partial().expand_kwargs([{"group_id": "a"}]), "'group_id' cannot differ"),
        (
            lambda: SnapshotTaskGroup.partial().expand_kwargs(["{{ x }}"]),  # type: ignore[list-item]
            "a list of objects, and the list must be known",
        ),
        (
            lambda: SnapshotTaskGroup.partial().expand_kwargs([{"source_conn_id": "a"}, {"tables": ["a.b"]}]),
            "an element of expand_kwargs has no",
        ),
    ],
)
def test_what_cannot_differ_from_source_to_source_is_refused(mapped: Any, what: str) -> None:
    with dag(), pytest.raises(ConfigurationError, match=what):
        mapped()


@pytest.mark.slow
def test_parsing_a_dag_does_not_import_what_only_its_tasks_need(tmp_path: Path) -> None:
    """Airflow parses DAG files all the time, each time in a new process."""
    file = tmp_path / "nightly.yaml"
    file.write_text("sources:\n  - {kind: mysql, source_conn_id: a, tables: [b.c], target: /lake}\n")
    code = """
import runpy, sys
from airflow.sdk import DAG
for name in sys.argv[1:]:
    runpy.run_path(name)
import airflow_provider_cdc.sensors.position, airflow_provider_cdc.sensors.published
import airflow_provider_cdc.sensors.runway
print({"numba", "numpy", "pandas", "psycopg", "pyarrow", "pymysql", "pyspark"} & {*sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, ROOT.glob("dags/*.py"))],
        env={**os.environ, "AIRFLOW__CDC__NIGHTLY": str(file)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "set()"
