"""Airflow's own Backfill over past intervals rebuilds each of them, in a real Airflow with a scheduler."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.ledger import FIRST
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.planning.point import check_point
from harness import oracle
from harness.airflow_home import AirflowHome
from harness.airflow_server import running_airflow
from harness.mysql_server import MysqlServer
from harness.pipeline import published, settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import SUPERUSER
from harness.server_process import free_port
from harness.throw_away import throw_away
from tests.conftest import PostgresFactory

DAG = Path(__file__).parent / "every_ten_seconds.py"
INTERVAL = timedelta(seconds=10)
INTERVALS = 5


@pytest.mark.long
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

    def write(stop: threading.Event) -> None:
        with mysql.connect(database=schema, autocommit=False) as connection, connection.cursor() as cursor:
            _write(cursor, connection.commit, stop, "DELETE FROM keyless WHERE v = %s LIMIT 1")

    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    copies = _rebuilt(tmp_path, source, schema, "", write)
    done = before
    sizes = set()
    for run_id, position in copies:
        (more,) = mysql.query("SELECT GTID_SUBTRACT(%s, %s)", (position, done))[0]
        oracle.replay(mysql, mysql_oracle, str(more).replace("\n", ""), first_log)
        done = position
        for table in (f"{schema}.t", f"{schema}.keyless"):
            columns, rows = _published(tmp_path, table, run_id)
            assert Counter(rows) == oracle.rows_at(mysql_oracle, table, columns)
            sizes.add(len(rows))
    assert len(sizes) > INTERVALS, "the intervals differ"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_backfill_rebuilds_what_a_standing_slot_has_kept(postgres_factory: PostgresFactory, tmp_path: Path) -> None:
    postgres = postgres_factory({"max_connections": "60"})
    postgres.query(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int); CREATE TABLE keyless (v int);"
        "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE keyless REPLICA IDENTITY FULL"
    )
    # What preflight of the first run does.
    kept = open_source(settings_of(postgres))
    check_point(kept, kept.preflight(["public.*"]), StepOptions(standing_slot="night"))

    def write(stop: threading.Event) -> None:
        with postgres.connect(autocommit=False) as connection:
            one = "DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless WHERE v = %s)"
            _write(connection.cursor(), connection.commit, stop, one)

    source = {
        "conn_type": "cdc_postgres",
        "host": postgres.host,
        "port": postgres.port,
        "login": SUPERUSER,
        "schema": "postgres",
    }
    with (
        throw_away("cdc-recovery-") as directory,
        PostgresRecovery(postgres, directory) as recovery,
    ):
        copies = _rebuilt(tmp_path, source, "public", "night", write)
        sizes = set()
        for run_id, position in copies:
            recovery.advance_to(position)
            with recovery.connect() as connection:
                for table, columns in (("public.t", "id, v"), ("public.keyless", "v")):
                    _, rows = _published(tmp_path, table, run_id)
                    assert Counter(rows) == Counter(connection.execute(f"SELECT {columns} FROM {table}").fetchall())
                    sizes.add(len(rows))
        assert len(sizes) > INTERVALS, "the intervals differ"


def _rebuilt(
    folder: Path, source: dict[str, Any], schema: str, slot: str, write: Callable[[threading.Event], None]
) -> list[tuple[str, str]]:
    """Write for some intervals, and have Airflow's Backfill rebuild each of them while the present goes on: the id and
    the position of each copy, in the order of time.

    :param write: writes until the event is set.
    """
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    over = threading.Event()
    threading.Timer((begin + (INTERVALS + 1) * INTERVAL - datetime.now(UTC)).total_seconds(), over.set).start()
    write(over)

    (folder / "dags").mkdir()
    shutil.copy(DAG, folder / "dags")
    airflow = AirflowHome(folder / "airflow", {"source": source})
    lake = folder / "lake"
    airflow.environment |= {
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "TEST_BEGIN": begin.isoformat(),
        "TEST_CONNECTION": "source",
        "TEST_SCHEMA": schema,
        "TEST_STANDING_SLOT": slot,
        "TEST_TARGET": lake.as_uri(),
    }
    airflow.prepare()
    stop = threading.Event()
    busy = threading.Thread(target=write, args=(stop,))
    with running_airflow(airflow, free_port()) as check:
        _wait_for_the_dag(airflow)
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
    for entry in lake.glob(f"_runs/*/{FIRST}"):
        record = json.loads(entry.read_text())["entry"]["manifest"]
        as_of = datetime.fromisoformat(record["options"]["as_of"])
        copies[as_of] = (record["run_id"], record["initial_position"])
    assert sorted(copies) == [begin + number * INTERVAL for number in range(1, INTERVALS + 1)]
    return [copy for _, copy in sorted(copies.items())]


def _published(folder: Path, table: str, run_id: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    return published(Storage((folder / "lake").as_uri()).folder(table, f"snapshot={run_id}").uri)


def _write(cursor: Any, commit: Callable[[], None], stop: threading.Event, delete_one: str) -> None:
    dice = random.Random(7)
    while not stop.wait(0.05):
        cursor.execute("INSERT INTO t (v) VALUES (%s), (%s)", (dice.randrange(100), dice.randrange(100)))
        cursor.execute("UPDATE t SET v = v + 1 WHERE id %% 7 = %s", (dice.randrange(7),))
        cursor.execute("DELETE FROM t WHERE id %% 50 = %s", (dice.randrange(50),))
        cursor.execute("INSERT INTO keyless VALUES (%s)", (dice.randrange(5),))
        cursor.execute(delete_one, (dice.randrange(5),))
        commit()


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
