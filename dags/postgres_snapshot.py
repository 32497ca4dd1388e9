"""Copy PostgreSQL tables to Parquet, all of them exactly as they were at one LSN. Triggered by hand or by the API.

It is the DAG `copy_tables` with a form for PostgreSQL alone: only the options, and the choices, that PostgreSQL has.

Whoever may trigger this DAG fills in its params, but its tasks have Airflow's rights. So it takes only the connections
and targets that whoever runs Airflow names in its configuration, section `cdc`, as comma-separated lists:

- `source_conn_ids` (`AIRFLOW__CDC__SOURCE_CONN_IDS`), by default `cdc_*`: the connections made for this purpose.
- `targets` (`AIRFLOW__CDC__TARGETS`), such as `s3://bucket/lake`: the folders in which, or below which, it may publish.
  There is no default: where data may be written to is nothing to be guessed.

`*` stands for any run of characters in an id or in a part of a path, and alone for anything.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_cdc.task_groups import form
from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

with DAG(
    "postgres_snapshot",
    description="PostgreSQL tables in the lake, all exact at one LSN",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["cdc", "postgres"],
    render_template_as_native_obj=True,
    params=form.params("postgres", source_conn_id="cdc_postgres"),
):
    SnapshotTaskGroup(**form.from_params("postgres", source_conn_id="cdc_postgres"), **form.allowed(), strict_conf=True)
