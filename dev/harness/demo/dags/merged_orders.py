"""The DAG of ``dev/demo shards``: the orders of two servers, as one table."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_cdc import Merge, MergedSnapshotTaskGroup

with DAG(
    "merged_orders",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    params={"target": "file:///nowhere"},
    default_args={"retries": 0},
):
    MergedSnapshotTaskGroup(
        source_conn_ids=["cdc_eu", "cdc_us"],
        tables=[Merge("shop.orders", ["shop_*.orders"], origin_columns=True)],
        target="{{ params.target }}",
        refresh="auto",
    )
