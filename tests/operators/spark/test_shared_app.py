"""One Spark application for several steps, only where this skips nothing that an author added around the tasks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_cdc import SnapshotTaskGroup, Spark
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator
from airflow_provider_cdc.operators.spark.step import SparkStepOperator, steps_after

Change = Callable[[SnapshotTaskGroup], object]


def after(change: Change, **more: Any) -> list[str]:
    """The steps that are done in the application of snapshot."""
    with DAG("shop", start_date=datetime(2026, 1, 1)) as dag:
        group = SnapshotTaskGroup(
            source_conn_id="{{ params.source }}",
            tables=["shop.*"],
            target="file:///lake",
            spark=Spark(conf="{{ params.conf }}"),
            **more,
        )
        EmptyOperator(task_id="before") >> group.preflight
        group.published >> EmptyOperator(task_id="after")
        change(group)
    return list(steps_after(dag.get_task(group.snapshot.task_id), SparkStepOperator))


def test_all_steps_after_the_first_are_done_in_its_application() -> None:
    assert after(lambda group: None) == ["extract_delta", "consolidate"]
    assert after(lambda group: None, prefix_group_id=True) == ["extract_delta", "consolidate"]


def test_a_task_beside_them_is_in_nobody_s_way() -> None:
    assert after(lambda group: group.snapshot >> EmptyOperator(task_id="x")) == ["extract_delta", "consolidate"]


def test_the_last_step_goes_on_with_nothing() -> None:
    with DAG("shop", start_date=datetime(2026, 1, 1)) as dag:
        SnapshotTaskGroup(source_conn_id="shop", tables=["shop.*"], target="file:///lake")
    assert list(steps_after(dag.get_task("consolidate"), SparkStepOperator)) == []


class OwnConsolidate(ConsolidateOperator):
    """One that looks before it publishes, say."""


def _set(name: str, value: Any) -> Change:
    return lambda group: setattr(group.consolidate, name, value)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda group: EmptyOperator(task_id="gate") >> group.consolidate, id="another task comes first"),
        pytest.param(
            lambda group: group.extract_delta >> EmptyOperator(task_id="gate") >> group.consolidate, id="one between"
        ),
        pytest.param(_set("conf", {"spark.executor.memory": "8g"}), id="other memory"),
        pytest.param(_set("spark_conn_id", "big"), id="another cluster"),
        pytest.param(_set("queue", "big"), id="queue"),
        pytest.param(_set("pool", "lake"), id="pool"),
        pytest.param(_set("pool_slots", 2), id="pool_slots"),
        pytest.param(_set("executor_config", {"x": 1}), id="executor_config"),
        pytest.param(_set("run_as_user", "lake"), id="run_as_user"),
        pytest.param(_set("trigger_rule", "none_failed"), id="trigger_rule"),
        pytest.param(_set("depends_on_past", True), id="depends_on_past"),
        pytest.param(_set("wait_for_downstream", True), id="wait_for_downstream"),
        pytest.param(_set("max_active_tis_per_dag", 1), id="max_active_tis_per_dag"),
        pytest.param(_set("_pre_execute_hook", print), id="pre_execute"),
        pytest.param(_set("on_execute_callback", [print]), id="on_execute_callback"),
        pytest.param(_set("execution_timeout", timedelta(hours=1)), id="execution_timeout"),
        pytest.param(_set("__class__", OwnConsolidate), id="a class of the author's"),
    ],
)
def test_what_decides_over_a_task_is_not_anticipated(change: Change) -> None:
    assert after(change) == ["extract_delta"]


def test_a_limit_on_a_step_is_none_on_several() -> None:
    assert after(lambda group: setattr(group.snapshot, "execution_timeout", timedelta(hours=1))) == []
