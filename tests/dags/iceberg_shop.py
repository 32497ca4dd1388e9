"""A DAG as its author writes one, for the tests: Iceberg tables in a catalog of a database, with files in S3."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

with DAG(
    "iceberg_shop",
    schedule=None,
    start_date=datetime(2025, 1, 1),
    params={"tables": ["shop.*"], "target": "file:///nowhere", "events": "file:///nowhere"},
):
    SnapshotTaskGroup(
        source_conn_id="shop",
        tables="{{ params.tables }}",
        target="{{ params.target }}",
        format="iceberg",
        catalog_conn_id="lake",
        storage_conn_id="store",
        table_name="raw.{schema}_{table}",
        spark_conf={"spark.eventLog.enabled": "true", "spark.eventLog.dir": "{{ params.events }}"},
    )
