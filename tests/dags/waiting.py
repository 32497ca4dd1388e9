"""For a test: DAGs of consumers that wait for copies. Environment variables set the names."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_cdc.assets import table_asset
from airflow_provider_cdc.lake import read_latest
from airflow_provider_cdc.sensors.position import PositionSensor
from airflow_provider_cdc.sensors.published import PublishedSensor

TARGET, TABLE, TOLD = os.environ["TEST_TARGET"], os.environ["TEST_TABLE"], os.environ["TEST_TOLD"]
ORDERS = table_asset("cdc_mysql", TABLE)

with DAG("report", schedule=ORDERS, start_date=datetime(2025, 1, 1), catchup=False):

    @task
    def report(triggering_asset_events: Any = None) -> None:
        copy = read_latest(TARGET, TABLE)
        assert copy is not None
        events = [event.extra for event in triggering_asset_events[ORDERS]]
        Path(TOLD).write_text(json.dumps({"events": events, "latest": copy.run_id}))

    report()

with DAG("waiting", schedule=None, start_date=datetime(2025, 1, 1)):
    for deferrable in (True, False):
        how: dict[str, Any] = {"deferrable": deferrable, "poke_interval": 2, "timeout": 600}
        name = "deferred" if deferrable else "poking"
        caught_up = PositionSensor(
            task_id=f"caught_up_{name}", source_conn_id="cdc_mysql", position="{{ dag_run.conf['position'] }}", **how
        )
        published = PublishedSensor(
            task_id=f"published_{name}", target=TARGET, table=TABLE, position="{{ dag_run.conf['position'] }}", **how
        )
        caught_up >> published
