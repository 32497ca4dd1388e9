"""A DAG as its author writes one, for the tests: Iceberg tables in a catalog of a database, with files in S3."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_cdc import Iceberg, Lake, SnapshotTaskGroup, Spark

with DAG(
    "iceberg_shop",
    schedule=None,
    start_date=datetime(2025, 1, 1),
    params={"tables": ["shop.*"], "target": "file:///nowhere", "events": "file:///nowhere"},
):
    SnapshotTaskGroup(
        source_conn_id="shop",
        tables="{{ params.tables }}",
        target=Lake(
            "{{ params.target }}",
            format=Iceberg("lake", table_name="raw.{schema}_{table}"),
            storage_conn_id="store",
        ),
        spark=Spark(conf={"spark.eventLog.enabled": "true", "spark.eventLog.dir": "{{ params.events }}"}),
    )
