"""For a test: a DAG whose copies are partitions, a DAG that runs for each partition, and one that runs for each copy.
Environment variables set the names."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, PartitionedAssetTimetable, task

from airflow_provider_cdc import Lake, SnapshotTaskGroup
from airflow_provider_cdc.assets import table_asset

TARGET, TABLE, TOLD = os.environ["TEST_TARGET"], os.environ["TEST_TABLE"], Path(os.environ["TEST_TOLD"])
COPIES = table_asset("cdc_mysql", TABLE)
WHEN: Any = {"start_date": datetime(2025, 1, 1), "catchup": False}


@task
def tell(name: str, dag_run: Any = None, triggering_asset_events: Any = None) -> None:
    events = [event.extra for event in triggering_asset_events[COPIES]]
    key = getattr(dag_run, "partition_key", None)
    file = TOLD / f"{name}-{dag_run.run_id.replace('/', '_')}"
    file.write_text(json.dumps({"key": key, "events": events}))
    # Whoever waits for the file reads a whole one.
    file.rename(file.with_name(f"{file.name}.json"))


with DAG("copying", schedule=None, **WHEN):
    lake = Lake(TARGET, partition_key="{{ dag_run.conf['day'] }}")
    SnapshotTaskGroup(source_conn_id="cdc_mysql", tables=[TABLE], target=lake)

with DAG("partitions", schedule=PartitionedAssetTimetable(assets=COPIES), **WHEN):
    tell("partitions")

with DAG("copies", schedule=COPIES, **WHEN):
    tell("copies")
