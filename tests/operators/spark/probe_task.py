"""Executes a Spark step as a task: ``python probe_task.py LAKE SCHEMA``. The step is `probe_step`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.operators.spark.launchers.client import launcher
from tests.runs import manifest_of


def execute(lake: str, schema: str) -> None:
    orders = RunTable(Table(TableName(schema, "orders"), (Column("id", "int", False),), ("id",)), "watermark", "")
    tables: Any = {"tables": (orders,)}
    run = Run.create(manifest_of(Storage(lake), **tables)).folder
    launcher.spark_app = lambda name: Path(__file__).with_name("probe_step.py")
    when = datetime(2026, 1, 1, tzinfo=UTC)
    context: Any = {
        "ti": SimpleNamespace(
            dag_id="días", task_id="snapshot", map_index=-1, try_number=1, xcom_push=lambda **_: None
        ),
        "dag_run": SimpleNamespace(dag_id="días", run_id="r", run_after=when),
        "outlet_events": OutletEventAccessors(),
    }
    task = SnapshotOperator(task_id="t", source_conn_id="shop", run_uri=run.uri, spark_conn_id="spark")
    assert task.execute(context)["counts"]["rows"] == 3


if __name__ == "__main__":
    execute(*sys.argv[1:])
