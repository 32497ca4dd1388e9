"""Copy PostgreSQL tables to Parquet, all exactly as of one LSN. Trigger this DAG by hand or by the API.

It is the DAG `copy_tables` with a form for PostgreSQL: it shows only the options and choices that PostgreSQL supports.

A user who may trigger this DAG fills in its params, but its tasks run with Airflow's rights. So the DAG accepts only
the connections and targets that the administrator lists in Airflow's configuration, section `cdc`, separated by commas:

- `source_conn_ids` (`AIRFLOW__CDC__SOURCE_CONN_IDS`): the allowed connections, by default `cdc_*`.
- `targets` (`AIRFLOW__CDC__TARGETS`), such as `s3://bucket/lake`: the folders in which, or below which, the DAG may
  publish. There is no default, because a safe place to write data to cannot be guessed.

`*` matches any run of characters in an id or in a part of a path; `*` alone matches anything.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_cdc.task_groups import form
from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

with DAG(
    "postgres_snapshot",
    description="Copies PostgreSQL tables into the lake, all exact at one LSN",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["cdc", "postgres"],
    render_template_as_native_obj=True,
    params=form.params("postgres", source_conn_id="cdc_postgres"),
):
    SnapshotTaskGroup(**form.from_params("postgres", source_conn_id="cdc_postgres"), **form.allowed(), strict_conf=True)
