"""For a test: a DAG that cleans up."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_cdc.operators.clean import CleanOperator

with DAG("clean_up", schedule=None, params={"target": "", "dry_run": False}):
    CleanOperator(
        task_id="clean",
        source_conn_id="cdc_mysql",
        target="{{ params.target }}",
        days=0,
        dry_run="{{ params.dry_run }}",
    )
