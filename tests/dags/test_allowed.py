"""The shipped DAGs accept what Airflow's administrator allows, and reject typing errors."""

from __future__ import annotations

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.operators.lock_and_record import LockAndRecordOperator
from airflow_provider_cdc.operators.preflight import PreflightOperator
from harness.airflow_home import ROOT

SETTINGS = ("AIRFLOW__CDC__SOURCE_CONN_IDS", "AIRFLOW__CDC__TARGETS")


def operators(dag_id: str) -> tuple[PreflightOperator, LockAndRecordOperator]:
    bag = DagBag(ROOT / "dags" / f"{dag_id}.py")
    assert not bag.import_errors
    tasks = bag.dags[dag_id].task_dict
    preflight, recording = tasks["preflight"], tasks["lock_and_record"]
    assert isinstance(preflight, PreflightOperator)
    assert isinstance(recording, LockAndRecordOperator)
    assert preflight.allowed == recording.allowed
    assert preflight.strict_conf
    return preflight, recording


@pytest.mark.parametrize("dag_id", ["copy_tables", "mysql_snapshot", "postgres_snapshot"])
def test_shipped_dags_publish_only_where_they_were_told_to(dag_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for task in operators(dag_id):
        with pytest.raises(PreflightError, match="AIRFLOW__CDC__TARGETS"):
            task.allowed.check(f"cdc_{task.task_id}", "s3://lake/raw")
        with pytest.raises(PreflightError, match="does not allow warehouse"):
            task.allowed.check("warehouse", "s3://lake/raw")
    monkeypatch.setenv(SETTINGS[0], "shop, cdc_*")
    monkeypatch.setenv(SETTINGS[1], "s3://lake/raw/{source},\n/data/lake")
    for task in operators(dag_id):
        task.allowed.check("shop", "s3://lake/raw/shop")
        task.allowed.check("cdc_x", "file:///data/lake/x")
        task.allowed.check("cdc_x", "file:///data/lake/x", "/data/lake/_work")
        with pytest.raises(PreflightError, match="parameter scratch"):
            task.allowed.check("cdc_x", "file:///data/lake/x", "/data/work")
        for conn_id, target in (
            ("shop", "s3://lake/raw/cdc_x"),
            ("shopping", "s3://lake/raw/shopping"),
            ("shop", "/data"),
        ):
            with pytest.raises(PreflightError, match="does not allow"):
                task.allowed.check(conn_id, target)
