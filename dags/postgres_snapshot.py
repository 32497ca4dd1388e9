"""Copy PostgreSQL tables to Parquet, all of them exactly as they were at one LSN. Triggered by hand or by the API."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

with DAG(
    "postgres_snapshot",
    description="PostgreSQL tables in the lake, all exact at one LSN",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["cdc", "postgres"],
    render_template_as_native_obj=True,
    params={
        "source_conn_id": Param(
            "cdc_postgres",
            type="string",
            minLength=1,
            title="Source",
            description="Connection to the PostgreSQL database, of type cdc_postgres or postgres.",
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
            description="auto picks per table: watermark reads in short statements, exported in one snapshot. lock is "
            "for MySQL.",
        ),
        "unrepresentable": Param(
            "error",
            type="string",
            enum=["error", "null", "string"],
            title="Values without an Arrow type",
            description="Infinite dates, NaN in numeric(p,s): error stops, null counts them, string makes the columns "
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
        "keep_slot": Param(
            False,
            type="boolean",
            title="Keep the slot",
            description="Leave the publication and the replication slot there, to stream on from the copy's LSN.",
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
        keep_slot="{{ params.keep_slot }}",
    )
