"""Copy PostgreSQL tables into the lake, all exactly as of one LSN. Trigger this DAG by hand or by the API.

It is the DAG `copy_tables` with a form for PostgreSQL: it shows only the options and choices that PostgreSQL supports.
"""

from airflow_provider_cdc.task_groups import form

dag = form.dag(
    "postgres_snapshot",
    "postgres",
    "Copies PostgreSQL tables into the lake, all exact at one LSN",
    __doc__,
    source_conn_id="cdc_postgres",
)
