"""Copies that are partitions of their table's asset, and DAGs that are scheduled on them, in a real Airflow."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from harness.airflow_home import ROOT, AirflowHome
from harness.airflow_server import running_airflow
from harness.mysql_server import MysqlServer
from harness.server_process import free_port

DAYS = ["2026-01-01", "2026-01-02"]


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_each_copy_starts_a_dag_for_its_partition_and_a_dag_for_copies_once(
    mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY)")
    mysql.query(f"INSERT INTO {schema}.orders VALUES (1), (2)")
    folder, lake, told = (tmp_path / name for name in ("dags", "lake", "told"))
    folder.mkdir()
    told.mkdir()
    shutil.copy(ROOT / "tests/dags/partitioned.py", folder)
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    airflow = AirflowHome(tmp_path / "airflow", {"cdc_mysql": source})
    airflow.environment |= {
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "TEST_TARGET": lake.as_uri(),
        "TEST_TABLE": f"{schema}.orders",
        "TEST_TOLD": str(told),
    }
    airflow.prepare()
    with running_airflow(airflow, free_port()) as check:

        def found(name: str, count: int) -> list[dict[str, Any]]:
            deadline = time.monotonic() + 900
            while len(files := sorted(told.glob(f"{name}-*.json"))) < count:
                check()
                logs = "\n".join(file.read_text(errors="replace") for file in airflow.home.glob("logs/**/*.log"))
                assert time.monotonic() < deadline, f"{name}\n{logs[-5000:]}"
                time.sleep(2)
            return [json.loads(file.read_text()) for file in files]

        while "partitions" not in airflow.run("dags", "list"):
            check()
            time.sleep(2)
        for number, day in enumerate(DAYS, start=1):
            airflow.run("dags", "trigger", "copying", "--conf", json.dumps({"day": day}))
            partitions, copies = found("partitions", number), found("copies", number)
    by_key = {one["key"]: one["events"] for one in partitions}
    assert set(by_key) == {*DAYS}
    assert [one["key"] for one in copies] == [None] * len(DAYS)
    announced = {event["run_id"]: event for one in copies for event in one["events"]}
    assert len(announced) == len(DAYS)
    # A run that is not for a partition also sees the event with the key, which describes the same copy.
    assert all(len({event["run_id"] for event in one["events"]}) == 1 for one in copies)
    for (event,) in by_key.values():
        assert event == announced.pop(event["run_id"])
        assert event["path"].endswith(f"/snapshot={event['run_id']}")
