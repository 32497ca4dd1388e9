"""Copy tables of any source to Parquet, all exactly as of one position, now or in the past (*As of*). Trigger this DAG
by hand or by the API.

With *Show the plan only*, everything is checked, and the log of `preflight` shows what a run would do: how each table
is read and why, its rows and bytes, the estimated duration, and for how long the source keeps its log. Nothing is
copied, and nothing is left behind: the tasks after `preflight` are skipped.

To rebuild past days of a DAG with a schedule, such as `nightly`, use Airflow's own Backfill.

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
    "copy_tables",
    description="Copies tables of any source into the lake, all exact at one position, now or in the past",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["cdc"],
    render_template_as_native_obj=True,
    params=form.params(form.ANY),
):
    SnapshotTaskGroup(**form.from_params(form.ANY), **form.allowed(), strict_conf=True)
