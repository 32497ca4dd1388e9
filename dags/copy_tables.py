"""Copy tables of any source into the lake, all exactly as of one position, now or in the past (*As of*). Trigger this
DAG by hand or by the API.

With *Show the plan only*, everything is checked, and the log of `preflight` shows what a run would do: how each table
is read and why, its rows and bytes, the estimated duration, and for how long the source keeps its log. Nothing is
copied, and nothing is left behind: the tasks after `preflight` are skipped.

To rebuild past days of a DAG with a schedule, such as `nightly`, use Airflow's own Backfill.
"""

from airflow_provider_cdc.task_groups import form

dag = form.dag(
    "copy_tables",
    form.ANY,
    "Copies tables of any source into the lake, all exact at one position, now or in the past",
    __doc__,
)
