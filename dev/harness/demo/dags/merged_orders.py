"""The DAG of ``dev/demo shards``: the orders of two servers, as one table."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_cdc.task_groups.merged import MergedSnapshotTaskGroup

with DAG(
    "merged_orders",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    params={"target": "file:///nowhere"},
    default_args={"retries": 0},
):
    MergedSnapshotTaskGroup(
        source_conn_ids=["cdc_eu", "cdc_us"],
        merge={"shop.orders": ["shop_*.orders"]},
        target="{{ params.target }}",
        origin_columns=True,
        refresh="auto",
    )
