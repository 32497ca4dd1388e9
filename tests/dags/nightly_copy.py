"""For tests: a DAG as an author would write it, with templates, a stock connection and a task that reads the copies."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_cdc import Read, SnapshotTaskGroup, Spark
from airflow_provider_cdc.notifications.failure import FailureNotifier

with DAG(
    "nightly_copy",
    schedule="@daily",
    start_date=datetime(2025, 1, 1),
    catchup=False,
    default_args={"retry_delay": timedelta(0), "on_failure_callback": FailureNotifier()},
    params={"tables": ["shop.*"], "target": "file:///nowhere"},
):

    @task
    def refresh(published: dict[str, Any]) -> list[str]:
        return sorted(published)

    shop = SnapshotTaskGroup(
        source_conn_id="stock_mysql",
        tables="{{ params.tables }}",
        target="{{ params.target }}/raw",
        # One application, however slow the machine is.
        spark=Spark(conf={"spark.ui.enabled": "false"}, shared_app_seconds=3600),
        read=Read(chunk_rows=50),
        group_id="shop",
        prefix_group_id=True,
    )
    refresh(shop.published)
