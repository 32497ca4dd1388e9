"""Copy MySQL tables into the lake, all exactly as of one GTID set. Trigger this DAG by hand or by the API.

It is the DAG `copy_tables` with a form for MySQL: it shows only the options and choices that MySQL supports.
"""

from airflow_provider_cdc.task_groups import form

dag = form.dag(
    "mysql_snapshot",
    "mysql",
    "Copies MySQL tables into the lake, all exact at one GTID set",
    __doc__,
    source_conn_id="cdc_mysql",
)
