"""Copy tables of any source to Parquet, all of them exactly as they were at one position, now or in the past (*As of*).
Triggered by hand or by the API.

With *Show the plan only*, everything is checked, and the log of `preflight` shows what a run would do: each table with
the way in which it is read and why, rows and bytes, about how long it would take, and for how long the source has its
log. Nothing is copied, and nothing is left behind: the tasks after `preflight` are skipped.

Past days of a DAG that has a schedule, such as `nightly`, are rebuilt by Airflow's own Backfill.

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
    "copy_tables",
    description="Tables of any source in the lake, all exact at one position, now or in the past",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["cdc"],
    render_template_as_native_obj=True,
    params=form.params(form.ANY),
):
    SnapshotTaskGroup(**form.from_params(form.ANY), **form.allowed(), strict_conf=True)
