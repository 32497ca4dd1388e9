"""Airflow's own Backfill over past intervals rebuilds each of them: in a real Airflow, with a scheduler."""

from __future__ import annotations

import json
import random
import shutil
import socket
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_cdc.core.storage import Storage
from harness import oracle
from harness.airflow_home import AirflowHome
from harness.airflow_server import running_airflow
from harness.mysql_server import MysqlServer
from harness.pipeline import published

DAG = Path(__file__).parent / "every_ten_seconds.py"
INTERVAL = timedelta(seconds=10)
INTERVALS = 5


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_backfill_rebuilds_each_past_interval(
    mysql: MysqlServer, mysql_oracle: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query("FLUSH BINARY LOGS")
    first_log = str(mysql.query("SHOW BINARY LOG STATUS")[0][0])
    before = str(mysql.query("SELECT @@global.gtid_executed")[0][0])
    mysql_oracle.query(f"CREATE DATABASE IF NOT EXISTS {schema}")
    mysql.query(f"CREATE TABLE {schema}.t (id INT AUTO_INCREMENT PRIMARY KEY, v INT)")
    mysql.query(f"CREATE TABLE {schema}.keyless (v INT)")
    time.sleep(1.1)
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    _write_until(mysql, schema, begin + (INTERVALS + 1) * INTERVAL)

    folder = tmp_path / "dags"
    folder.mkdir()
    shutil.copy(DAG, folder)
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    airflow = AirflowHome(tmp_path / "airflow", {"cdc_mysql": source})
    lake = tmp_path / "lake"
    airflow.environment |= {
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "TEST_BEGIN": begin.isoformat(),
        "TEST_SCHEMA": schema,
        "TEST_TARGET": lake.as_uri(),
    }
    airflow.prepare()
    stop = threading.Event()
    busy = threading.Thread(target=_write, args=(mysql, schema, stop))
    with running_airflow(airflow, free_port()) as check:
        _wait_for_the_dag(airflow)
        # The past is rebuilt while the present goes on.
        busy.start()
        try:
            last = begin + INTERVALS * INTERVAL
            airflow.run(
                *("backfill", "create", "--dag-id", "every_ten_seconds", "--max-active-runs", "1"),
                *("--from-date", (begin + INTERVAL).isoformat(), "--to-date", last.isoformat()),
            )
            _wait_for_the_runs(airflow, check)
        finally:
            stop.set()
            busy.join()

    copies = {}
    for manifest in lake.glob("_runs/*/manifest.json"):
        record = json.loads(manifest.read_text())
        as_of = datetime.fromisoformat(record["options"]["as_of"])
        copies[as_of] = (record["run_id"], record["initial_position"])
    assert sorted(copies) == [begin + number * INTERVAL for number in range(1, INTERVALS + 1)]
    done = before
    sizes = set()
    for _, (run_id, position) in sorted(copies.items()):
        (more,) = mysql.query("SELECT GTID_SUBTRACT(%s, %s)", (position, done))[0]
        oracle.replay(mysql, mysql_oracle, str(more).replace("\n", ""), first_log)
        done = position
        for table in (f"{schema}.t", f"{schema}.keyless"):
            columns, rows = published(Storage(lake.as_uri()).folder(table, f"snapshot={run_id}").uri)
            assert Counter(rows) == oracle.rows_at(mysql_oracle, table, columns)
            sizes.add(len(rows))
    assert len(sizes) > INTERVALS, "the intervals differ"


def _write_until(server: MysqlServer, schema: str, end: datetime) -> None:
    stop = threading.Event()
    timer = threading.Timer((end - datetime.now(UTC)).total_seconds(), stop.set)
    timer.start()
    _write(server, schema, stop)


def _write(server: MysqlServer, schema: str, stop: threading.Event) -> None:
    dice = random.Random(7)
    with server.connect(database=schema, autocommit=False) as connection, connection.cursor() as cursor:
        while not stop.wait(0.05):
            cursor.execute("INSERT INTO t (v) VALUES (%s), (%s)", (dice.randrange(100), dice.randrange(100)))
            cursor.execute("UPDATE t SET v = v + 1 WHERE id %% 7 = %s", (dice.randrange(7),))
            cursor.execute("DELETE FROM t WHERE id %% 50 = %s", (dice.randrange(50),))
            cursor.execute("INSERT INTO keyless VALUES (%s)", (dice.randrange(5),))
            cursor.execute("DELETE FROM keyless WHERE v = %s LIMIT 1", (dice.randrange(5),))
            connection.commit()


def _wait_for_the_dag(airflow: AirflowHome) -> None:
    deadline = time.monotonic() + 180
    while "every_ten_seconds" not in airflow.run("dags", "list"):
        assert time.monotonic() < deadline, "the DAG was not found"
        time.sleep(2)


def _wait_for_the_runs(airflow: AirflowHome, check: object) -> None:
    assert callable(check)
    deadline = time.monotonic() + 3000
    while True:
        check()
        listed = airflow.run("dags", "list-runs", "every_ten_seconds", "-o", "json")
        runs = json.loads(listed[listed.index("[{") :] if "[{" in listed else "[]")
        states = Counter(run["state"] for run in runs)
        assert not states["failed"], listed
        if states["success"] == INTERVALS:
            return
        assert time.monotonic() < deadline, states
        time.sleep(5)
