"""Copy PostgreSQL tables to Parquet, all of them exactly as they were at one LSN. Triggered by hand or by the API.

Whoever may trigger this DAG fills in its params, but its tasks have Airflow's rights. So it takes only the connections
and targets that whoever runs Airflow names in its configuration, section `cdc`, as comma-separated lists:

- `source_conn_ids` (`AIRFLOW__CDC__SOURCE_CONN_IDS`), by default `cdc_*`: the connections made for this purpose.
- `targets` (`AIRFLOW__CDC__TARGETS`), such as `s3://bucket/lake`: the folders in which, or below which, it may publish.
  There is no default: where data may be written to is nothing to be guessed.

`*` stands for any run of characters in an id or in a part of a path, and alone for anything.
"""

from __future__ import annotations

from airflow.configuration import conf
from airflow.sdk import DAG, Param

from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

SOURCE_CONN_IDS = conf.get("cdc", "source_conn_ids", fallback="cdc_*").replace(",", " ").split()
TARGETS = conf.get("cdc", "targets", fallback="").replace(",", " ").split()

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
            description="URI of the folder to publish in, such as s3://bucket/lake or file:///data/lake/{source}.",
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
        source_conn_ids=SOURCE_CONN_IDS,
        targets=TARGETS,
        strict_conf=True,
        keep_slot="{{ params.keep_slot }}",
    )
