"""For a test: a slow copy of all tables of a database. Environment variables set the names."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Limits, Read, SnapshotTaskGroup

with DAG("limited_shop", schedule=None, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)}):
    SnapshotTaskGroup(
        source_conn_id="cdc_shop",
        tables=["public.*"],
        target=os.environ["TEST_TARGET"],
        read=Read(chunk_rows=60),
        limits=Limits(max_rows_per_second=150),
    )
