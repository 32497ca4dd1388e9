"""The DAGs of `bench dag`: the same small copy with one Spark application, and with one application for each step."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_cdc import SnapshotTaskGroup, Spark

for name, seconds in (("small", 60.0), ("small_apart", 0.0)):
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        SnapshotTaskGroup(
            source_conn_id="bench",
            tables=["bench.small_*"],
            target=os.environ["BENCH_TARGET"],
            spark=Spark(shared_app_seconds=seconds),
        )
    globals()[name] = dag
