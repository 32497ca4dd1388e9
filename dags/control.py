"""Pause, resume or stop a run in progress, or change its limits. Trigger this DAG by hand or by the API. The run
follows within seconds.

- `pause`: the run finishes the chunks that it reads, and then reads nothing. It holds no lock, no transaction and no
  exported snapshot. On PostgreSQL, its replication slot stays, and keeps log on the server: the log of the run's task
  says how much.
- `resume`: the run goes on. What it had read stays.
- `stop`: the run ends, is not retried, and publishes nothing.
- `limit`: other limits from now on. Empty fields stay as they are; 0 means no limit.

Name the run by its folder (the XCom `run_uri` of its task `lock_and_record`), or by its DAG and DAG run. The folder
must be in or below one of the folders in Airflow's configuration, section `cdc`, setting `targets`
(`AIRFLOW__CDC__TARGETS`).
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_cdc.core.control.acts import VERBS
from airflow_provider_cdc.operators.control import ControlOperator
from airflow_provider_cdc.task_groups import form

text = ["string", "null"]
count = {"type": ["integer", "null"], "minimum": 0, "section": "Limits"}

with DAG(
    "control",
    description="Pauses, resumes or stops a run in progress, or changes its limits",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["cdc"],
    render_template_as_native_obj=True,
    params={
        "act": Param("pause", title="Act", enum=list(VERBS)),
        "run_uri": Param(None, title="Run", type=text, description="The folder of the run (XCom run_uri)"),
        "dag_id": Param(None, title="DAG", type=text, description="The DAG of the run, instead of its folder"),
        "run_id": Param(None, title="DAG run", type=text, description="The id of the DAG run"),
        "task_id": Param(
            "lock_and_record", title="Task", type="string", description="The task of the run with the XCom run_uri"
        ),
        "reason": Param(None, title="Reason", type=text, description="For the log and the report of the run"),
        "max_reads": Param(None, title="Concurrent reads", description="0: no limit", **count),
        "max_rows_per_second": Param(None, title="Rows per second", description="0: no limit", **count),
        "governor": Param(
            None, title="Thresholds", type=["object", "null"], section="Limits", description="Of what the run watches"
        ),
    },
):
    ControlOperator(
        task_id="act",
        act="{{ params.act }}",
        run_uri="{{ params.run_uri }}",
        dag_to_control="{{ params.dag_id }}",
        run_to_control="{{ params.run_id }}",
        recording_task="{{ params.task_id }}",
        reason="{{ params.reason }}",
        max_reads="{{ params.max_reads }}",
        max_rows_per_second="{{ params.max_rows_per_second }}",
        governor="{{ params.governor }}",
        targets=form.allowed()["targets"],
        retries=0,
    )
