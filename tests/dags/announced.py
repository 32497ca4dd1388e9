"""For a test: a DAG whose only task announces the copies of a run that is already published."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_cdc.assets import copies_alias, table_asset
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator

with DAG("announced", schedule=None, start_date=datetime(2025, 1, 1), params={"run_uri": ""}):
    ConsolidateOperator(
        task_id="consolidate",
        source_conn_id="shop",
        run_uri="{{ params.run_uri }}",
        outlets=[copies_alias("announced", "group"), table_asset("shop", "shop.orders")],
    )
