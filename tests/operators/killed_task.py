"""A task as Airflow runs it, in its own process under a supervisor: ``python killed_task.py RUN_URI``.

Prints the process ids of the supervisor and of the task.
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

CONTEXT: Any = {
    "ti": SimpleNamespace(dag_id="killed", task_id="snapshot", map_index=-1, try_number=1, xcom_push=lambda **_: None),
    "dag_run": SimpleNamespace(dag_id="killed", run_id="r", run_after=datetime(2026, 1, 1, tzinfo=UTC)),
}


def main(run_uri: str) -> None:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child:
        theirs.close()
        print(os.getpid(), child, flush=True)
        os.waitpid(child, 0)
        return
    ours.close()
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CommsDecoder

    from airflow_provider_cdc.operators.snapshot import SnapshotOperator

    channel: Any = CommsDecoder(socket=theirs)
    setattr(task_runner, "SUPERVISOR_COMMS", channel)  # noqa: B010
    task: Any = SnapshotOperator(task_id="t", source_conn_id="shop", run_uri=run_uri, spark_conn_id="spark")
    task.execute(CONTEXT)


if __name__ == "__main__":
    main(sys.argv[1])
