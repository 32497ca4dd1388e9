"""`preflight` of a second run waits for the first run of the same tables, or refuses to begin."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_cdc import Allow, On, SnapshotTaskGroup
from airflow_provider_cdc.core.liveness import FOLDER
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.operators.planning import dag_run_state
from airflow_provider_cdc.operators.preflight import PreflightOperator
from airflow_provider_cdc.triggers.pause import PauseTrigger
from harness.mysql_server import MysqlServer
from harness.s3_server import s3_environment
from tests.runs import publish

Begin = Callable[..., Any]


class Deployment:
    """The DAG runs of one DAG, of which each has a task group, and Airflow's states of them."""

    def __init__(self, schema: str, target: str) -> None:
        self.schema = schema
        self.target = target
        self.states: dict[str, str] = {}
        self.tasks: dict[str, dict[str, str]] = {}
        self.outputs: dict[str, dict[str, Any]] = {}

    def context(self, dag: DAG, name: str, task_id: str) -> Any:
        dag_run = SimpleNamespace(dag_id="d", run_id=name, run_after=datetime(2026, 1, 1, tzinfo=UTC), conf={})
        outputs = self.outputs.setdefault(name, {})
        instance = SimpleNamespace(
            dag_id="d",
            task_id=task_id,
            map_index=-1,
            try_number=1,
            get_dr_count=lambda dag_id, run_ids: sum(one in self.states for one in run_ids),
            get_dagrun_state=lambda dag_id, run_id: self.states[run_id],
            get_task_states=lambda dag_id, task_ids, run_ids: {run_ids[0]: self.tasks.get(run_ids[0], {})},
            xcom_push=lambda key, value: outputs.update({key: value}),
        )
        return {"dag": dag, "dag_run": dag_run, "ti": instance}

    def group(self, **options: Any) -> tuple[DAG, SnapshotTaskGroup]:
        given = {"tables": [f"{self.schema}.a*"], **options}
        with DAG("d", schedule=None) as dag:
            values = {"source_conn_id": "shop", "target": self.target, "spark_conn_id": "spark", **given}
            group = SnapshotTaskGroup.of_options(values, Allow(), group_id="g", prefix_group_id=True)
        return dag, group

    def preflight(self, name: str, state: str = "running", **options: Any) -> None:
        self.states[name] = state
        dag, group = self.group(**options)
        group.preflight.execute(self.context(dag, name, "g.preflight"))

    def begin(self, name: str, **options: Any) -> Run:
        """Run the first two tasks of a DAG run."""
        self.preflight(name, **options)
        dag, group = self.group(**options)
        task, outputs = group.lock_and_record, self.outputs[name]
        for key in ("plan", "options", "skipped", "missed_past", "may_miss_past", "request"):
            setattr(task, key, outputs[key])
        task.execute(self.context(dag, name, task.task_id))
        return Run.load(Storage(outputs["run_uri"]))


@pytest.fixture
def airflow(mysql: MysqlServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    fields = {"host": mysql.host, "port": mysql.port, "login": "root"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "cdc_mysql", **fields}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    for name in ("a1", "a2", "b"):
        mysql.query(f"CREATE TABLE {schema}.{name} (id int PRIMARY KEY)")
    monkeypatch.setattr(dag_run_state, "POLL_SECONDS", 0.05)
    return Deployment(schema, tmp_path.as_uri())


@pytest.mark.slow
def test_a_second_run_is_refused_until_the_first_one_has_ended(airflow: Deployment) -> None:
    first = airflow.begin("first")
    with pytest.raises(AirflowFailException, match="other runs of the same tables are under way") as told:
        airflow.preflight("second", concurrent_runs="refuse")
    assert first.run_id in str(told.value)
    assert "DAG run first of the DAG d is running" in str(told.value)
    airflow.preflight("elsewhere", concurrent_runs="refuse", tables=[f"{airflow.schema}.b"])
    airflow.preflight("planned", concurrent_runs="refuse", plan_only=True)
    airflow.preflight("beside")
    publish(first)
    airflow.preflight("third", concurrent_runs="refuse")
    with pytest.raises(AirflowFailException, match="third of the DAG d is running"):
        airflow.preflight("fourth", concurrent_runs="refuse")


@pytest.mark.slow
@pytest.mark.parametrize("why", ["published", "failed", "a task failed"])
def test_a_second_run_waits_until_the_first_one_has_ended(
    airflow: Deployment, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = airflow.begin("first", concurrent_runs="wait")
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) < 3:
            return
        if why == "published":
            publish(first)
        elif why == "failed":
            airflow.states["first"] = "failed"
        else:
            airflow.tasks["first"] = {"g.snapshot": "failed", "g.extract_delta": "upstream_failed"}

    # Only this module: other threads sleep, too.
    monkeypatch.setattr("airflow_provider_cdc.operators.planning.dag_run_state.time", SimpleNamespace(sleep=nap))
    surveys: list[int] = []
    survey = PreflightOperator._survey

    def counted(self: PreflightOperator, *arguments: Any) -> Any:
        surveys.append(1)
        return survey(self, *arguments)

    monkeypatch.setattr(PreflightOperator, "_survey", counted)
    airflow.preflight("second", concurrent_runs="wait")
    assert naps == [0.05] * 3
    assert len(surveys) == 2, "the tables are surveyed again, because the wait may have been long"
    assert airflow.outputs["second"]["plan"]


@pytest.mark.slow
def test_runs_of_two_deployments_of_airflow_see_each_other_on_s3(
    airflow: Deployment, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    one, other = (Deployment(airflow.schema, f"s3://lake/{airflow.schema}") for _ in range(2))
    first = one.begin("first", concurrent_runs="refuse")
    with pytest.raises(AirflowFailException, match="Airflow does not know its DAG run, but the last write") as told:
        other.preflight("second", concurrent_runs="refuse")
    assert first.run_id in str(told.value)
    with pytest.raises(AirflowFailException, match="under way"):
        other.preflight("third", concurrent_runs="wait", concurrent_wait_seconds=0.1)
    publish(first)
    other.preflight("fourth", concurrent_runs="wait")
    with pytest.raises(AirflowFailException, match="Airflow does not know its DAG run"):
        one.preflight("fifth", concurrent_runs="refuse")


def test_a_wait_has_an_end(airflow: Deployment) -> None:
    airflow.begin("first")
    with pytest.raises(AirflowFailException, match="under way"):
        airflow.preflight("second", concurrent_runs="wait", concurrent_wait_seconds=0.1)
    folder = Storage(airflow.target).folder("_runs", FOLDER)
    assert [folder.read_json(name)["over"] for name in folder.files()] == [True]


@pytest.mark.slow
def test_a_run_does_not_wait_for_a_group_that_comes_after_it_in_the_cleared_dag_run(
    airflow: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag, first = airflow.group(concurrent_runs="refuse")
    with dag:
        second = SnapshotTaskGroup(
            source_conn_id="shop",
            target=airflow.target,
            spark_conn_id="spark",
            group_id="h",
            prefix_group_id=True,
            tables=[f"{airflow.schema}.a*"],
            on=On(concurrent_runs="refuse"),
        )
    first >> second
    airflow.states["first"] = "running"
    context = airflow.context(dag, "first", "h.preflight")
    # The second group has begun, and fails. Then the whole DAG run is cleared.
    second.preflight.execute(context)
    first.preflight.execute(airflow.context(dag, "first", "g.preflight"))
    # A group that does not come after the other one is waited for.
    with pytest.raises(AirflowFailException, match="under way"):
        airflow.preflight("another", concurrent_runs="refuse")


@pytest.mark.slow
def test_a_run_waits_in_the_triggerer_if_airflow_defers_by_default(
    airflow: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = airflow.begin("first")
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    with pytest.raises(TaskDeferred) as deferred:
        airflow.preflight("second", concurrent_runs="wait")
    assert isinstance(deferred.value.trigger, PauseTrigger)
    publish(first)
    dag, group = airflow.group(concurrent_runs="wait")
    resumed = getattr(group.preflight, deferred.value.method_name)
    resumed(airflow.context(dag, "second", "g.preflight"), event=None)
    assert airflow.outputs["second"]["plan"]
