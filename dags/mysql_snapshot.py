"""Copy MySQL tables to Parquet, all of them exactly as they were at one GTID set. Triggered by hand or by the API."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

with DAG(
    "mysql_snapshot",
    description="MySQL tables in the lake, all exact at one GTID set",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["cdc", "mysql"],
    render_template_as_native_obj=True,
    params={
        "source_conn_id": Param(
            "cdc_mysql",
            type="string",
            minLength=1,
            title="Source",
            description="Connection to the MySQL server, of type cdc_mysql or mysql.",
        ),
        "tables": Param(
            type="array",
            items={"type": "string", "minLength": 3},
            minItems=1,
            title="Tables",
            description="One schema.table a line; * matches any run of characters, ! leaves out: shop.*, !shop._*_gho",
        ),
        "target": Param(
            type="string",
            minLength=1,
            title="Target",
            description="URI of the folder to publish in, such as s3://bucket/lake or file:///data/lake.",
        ),
        "consistency": Param(
            "auto",
            type="string",
            enum=["auto", "watermark", "lock", "exported"],
            title="Consistency",
            description="auto picks per table: watermark takes no lock, lock a short one. exported is not for MySQL.",
        ),
        "unrepresentable": Param(
            "error",
            type="string",
            enum=["error", "null", "string"],
            title="Values without an Arrow type",
            description="Zero dates, DECIMAL beyond 38 digits: error stops, null counts them, string makes the columns "
            "text.",
        ),
        "spark_conn_id": Param(
            "spark_default",
            type="string",
            minLength=1,
            title="Spark",
            description="Connection to Spark, in client mode.",
        ),
        "chunk_rows": Param(
            100_000,
            type="integer",
            minimum=1,
            title="Rows per chunk",
            description="How many rows one statement reads, about.",
        ),
    },
):
    SnapshotTaskGroup(
        source_conn_id="{{ params.source_conn_id }}",
        tables="{{ params.tables }}",
        target="{{ params.target }}",
        consistency="{{ params.consistency }}",
        unrepresentable="{{ params.unrepresentable }}",
        spark_conn_id="{{ params.spark_conn_id }}",
        chunk_rows="{{ params.chunk_rows }}",
    )
