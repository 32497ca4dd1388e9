"""**Deprecated: trigger `copy_tables` instead.** It is the same DAG, under a name that cannot be confused with
Airflow's own Backfill. This DAG will be removed in version 0.3.0.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_cdc.task_groups import form
from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

with DAG(
    "backfill",
    dag_display_name="backfill (deprecated: copy_tables)",
    description="Deprecated: trigger the DAG copy_tables instead, which does the same",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["cdc", "deprecated"],
    render_template_as_native_obj=True,
    params=form.params(form.ANY),
):
    SnapshotTaskGroup(**form.from_params(form.ANY), **form.allowed(), strict_conf=True)
