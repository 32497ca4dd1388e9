"""A DAG as its author writes one, for the tests: the shards of two sources, as one table."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_cdc import Merge, MergedSnapshotTaskGroup

with DAG(
    "merged_shops",
    schedule=None,
    start_date=datetime(2025, 1, 1),
    default_args={"retries": 0},
    params={"target": "file:///nowhere"},
):
    MergedSnapshotTaskGroup(
        source_conn_ids=["eu", "us"],
        tables=[Merge("shop.orders", ["merged_shop.orders_*"], origin_columns=True)],
        target="{{ params.target }}",
        refresh="auto",
    )
