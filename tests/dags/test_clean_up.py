"""A clean-up in a real Airflow, which tells the states of DAG runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_cdc.core.liveness import DagRunNames, note_dag_run
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer
from tests.runs import manifest_of


@pytest.mark.long
def test_a_clean_up_asks_airflow_for_the_states_of_dag_runs(
    dag_runner: DagRunner, mysql: MysqlServer, tmp_path: Path
) -> None:
    source = {"cdc_mysql": {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}}
    lake, before = Storage(tmp_path.as_uri()), datetime(2026, 1, 1, tzinfo=UTC)
    now = before + timedelta(days=1)

    def run(at: datetime, **params: object) -> dict[str, str]:
        result = dag_runner.run("clean_up", {"target": lake.uri, **params}, at=at, connections=source)
        assert result.state == "success", result.log[-5000:]
        found = result.xcoms["clean"]
        return {one["run_id"][6:8]: one["why"] for kind in ("removed", "kept") for one in found[kind]}

    def begin(number: int, dag_run_id: str) -> Storage:
        folder = Run.create(manifest_of(lake, f"202601{number:02}T000000Z-00000000", source_conn_id="cdc_mysql")).folder
        note_dag_run(folder, DagRunNames("clean_up", dag_run_id, "lock_and_record"))
        return folder

    begin(1, "deleted")
    assert "Airflow does not know its DAG run" in run(before)["01"]
    ids = [f"manual__{at.isoformat()}" for at in (before, now)]
    begin(2, ids[0])
    begin(3, ids[1])
    whys = run(now)
    assert "is success" in whys["02"]
    assert whys["03"].endswith("of the DAG clean_up is running")
    assert lake.folders("_runs") == [f"_runs/202601{number:02}T000000Z-00000000" for number in (1, 3)]
