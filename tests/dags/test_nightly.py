"""The DAG `nightly` on its own schedule, and DAGs that wait for its copies, in a real Airflow with all components."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest

from airflow_provider_cdc.core.run.ledger import FIRST
from harness.airflow_home import ROOT, AirflowHome
from harness.airflow_server import running_airflow
from harness.mysql_server import MysqlServer
from harness.server_process import free_port

PASSWORD = "c0rrect-horse-battery"

NIGHTLY = """
schedule: "* * * * *"
start_date: {start}
deadline_minutes: 60
sources:
  - source_conn_id: cdc_mysql
    kind: mysql
    tables: ["{schema}.orders", "{schema}.l*"]
    target: {lake}
"""


@dataclass
class Night:
    """An Airflow that is running, and what it works on."""

    airflow: AirflowHome
    check: Callable[[], None]
    lake: Path
    told: Path
    schema: str

    def run(self, *arguments: str) -> str:
        self.check()
        return self.airflow.run(*arguments)

    def wait(self, what: str, holds: Callable[[], Any], seconds: float = 600) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            self.check()
            assert time.monotonic() < deadline, f"{what}\n{self.log()[-5000:]}"
            time.sleep(2)
        return found

    def states(self, dag_id: str) -> dict[str, str]:
        listed = self.run("dags", "list-runs", dag_id, "-o", "json")
        runs = json.loads(listed[listed.index("[{") :] if "[{" in listed else "[]")
        return {run["run_id"]: run["state"] for run in runs}

    def log(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in self.airflow.home.glob("logs/**/*.log"))


@contextmanager
def writing(mysql: MysqlServer, schema: str) -> Iterator[None]:
    stop = threading.Event()

    def write() -> None:
        # Until the table is dropped.
        with suppress(pymysql.ProgrammingError):
            while not stop.wait(0.2):
                mysql.query(f"INSERT INTO {schema}.orders (at) VALUES (NOW(6))")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@pytest.fixture
def night(mysql: MysqlServer, schema: str, tmp_path: Path) -> Iterator[Night]:
    mysql.query(f"CREATE TABLE {schema}.orders (id INT AUTO_INCREMENT PRIMARY KEY, at DATETIME(6))")
    mysql.query(f"CREATE TABLE {schema}.`lines` (id INT PRIMARY KEY)")
    mysql.query(f"CREATE USER nightly@localhost IDENTIFIED BY '{PASSWORD}'")
    mysql.query("GRANT ALL ON *.* TO nightly@localhost")
    folder, lake = tmp_path / "dags", tmp_path / "lake"
    folder.mkdir()
    shutil.copy(ROOT / "dags/nightly.py", folder)
    shutil.copy(ROOT / "tests/dags/waiting.py", folder)
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/dag-authors.md").read_text(), re.DOTALL)[:1]
    shown = shown.replace('"shop.orders"', f'"{schema}.orders"').replace('DAG("report"', 'DAG("shown"')
    (folder / "shown.py").write_text(shown)
    # The run that is due immediately is as of the previous minute, when there was nothing to copy.
    time.sleep(61 - time.time() % 60)
    start = datetime.now(UTC) - timedelta(days=1)
    (folder / "nightly.yaml").write_text(NIGHTLY.format(schema=schema, lake=lake.as_uri(), start=f"{start:%Y-%m-%d}"))
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "nightly"}
    airflow = AirflowHome(tmp_path / "airflow", {"cdc_mysql": {**source, "password": PASSWORD}})
    airflow.environment |= {
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "TEST_TARGET": lake.as_uri(),
        "TEST_TABLE": f"{schema}.orders",
        "TEST_TOLD": str(tmp_path / "told.json"),
    }
    airflow.prepare()
    with writing(mysql, schema), running_airflow(airflow, free_port()) as check:
        yield Night(airflow, check, lake, tmp_path / "told.json", schema)
    mysql.query("DROP USER nightly@localhost")


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_night_copies_tells_others_and_says_why_it_failed(night: Night, mysql: MysqlServer) -> None:
    night.wait("the DAGs were not found", lambda: "nightly" in night.run("dags", "list"), 180)
    assert "No data found" in night.run("dags", "list-import-errors")
    position = f"{datetime.now(UTC) + timedelta(seconds=5):%Y-%m-%dT%H:%M:%SZ}"
    night.run("dags", "trigger", "waiting", "--conf", json.dumps({"position": position}))

    told = json.loads(night.wait("no event reported a copy", lambda: night.told.exists() and night.told.read_text()))
    event = told["events"][0]
    begun = json.loads((night.lake / "_runs" / event["run_id"] / FIRST).read_text())
    manifest = begun["entry"]["manifest"]
    as_of = datetime.fromisoformat(manifest["options"]["as_of"])
    assert (as_of.second, as_of.microsecond) == (0, 0)
    assert manifest["run_id"].startswith(f"{as_of:%Y%m%dT%H%M%SZ}")
    assert event["position"] == event["initial_gtid_set"] == manifest["initial_position"]
    assert event["path"].endswith(f"/{night.schema}.orders/snapshot={event['run_id']}")
    assert event["latest"] is True
    ((rows,),) = mysql.query(
        f"SELECT count(*) FROM {night.schema}.orders WHERE at <= %s", (as_of.replace(tzinfo=None),)
    )
    # A row's own time is a moment before its commit.
    assert event["rows"] - rows in (0, -1)
    assert len(event["schema_digest"]) == 32

    night.wait("the DAG of the documents", lambda: set(night.states("shown").values()) & {"success", "failed"})
    assert "failed" not in night.states("shown").values(), night.log()[-5000:]
    assert event["path"] in night.log(), "it prints the copy's path"

    night.wait("the sensors", lambda: set(night.states("waiting").values()) <= {"success", "failed"})
    assert set(night.states("waiting").values()) == {"success"}, night.log()[-5000:]

    mysql.query(f"DROP TABLE {night.schema}.orders, {night.schema}.`lines`")
    night.wait("no night failed", lambda: "failed" in night.states("nightly").values())
    said = night.log()
    # Whichever task noticed it.
    told_at_last = said.split("the task cdc_mysql.")[-1]
    assert " failed" in told_at_last
    for what in ("Hint:", "Position:", "Log:"):
        assert what in told_at_last
    for file in [*night.airflow.home.rglob("*"), *night.lake.rglob("*")]:
        assert not file.is_file() or PASSWORD.encode() not in file.read_bytes(), file
