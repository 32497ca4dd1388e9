"""The scheduler, a task's supervisor, or the whole machine of a real Airflow is lost in the middle of a run. Afterwards
the run continues in the task's next try, the copy is exact, and nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.control import acts, effective
from airflow_provider_cdc.core.control.acts import act_on
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from harness.airflow_home import ROOT, AirflowHome
from harness.airflow_server import Components, running_airflow
from harness.pipeline import published_counts
from harness.postgres_server import SUPERUSER, PostgresServer
from harness.server_process import free_port
from tests.dags.site import Site

DAG = "limited_shop"
SECONDS = 400.0
TABLES = ("accounts", "visits")
Rows = dict[str, Counter[tuple[Any, ...]]]

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@dataclass
class Shop:
    """A database and the Airflow that copies it."""

    server: PostgresServer
    database: str
    lake: Storage
    home: Path
    environment: Mapping[str, str]
    airflow: Components
    site: Site
    moment: int = 0
    told: list[str] = field(default_factory=list)

    def query(self, statement: str) -> list[Any]:
        return self.server.query(statement, database=self.database)

    def rows(self) -> Rows:
        return {name: Counter(self.query(f"SELECT * FROM {name}")) for name in TABLES}

    def write(self) -> None:
        """Change rows that are read already, and rows that are not."""
        self.moment += 1
        low = self.moment * 40
        for statement in (
            f"UPDATE accounts SET amount = amount + 1000 WHERE id BETWEEN {low} AND {low + 700}",
            f"DELETE FROM accounts WHERE id = {self.moment * 7 + 3}",
            f"INSERT INTO accounts VALUES ({5000 + self.moment}, 0)",
            f"UPDATE visits SET a = 100 + {self.moment} WHERE a = {self.moment}",
        ):
            self.query(statement)

    def sessions(self) -> int:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'airflow-provider-cdc' AND datname = "
        return int(self.query(f"{sql}current_database()")[0][0])

    def kept(self) -> list[Any]:
        slots = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
        return self.query(f"{slots} UNION ALL SELECT pubname::text FROM pg_publication")

    def begin(self) -> tuple[Storage, Rows]:
        """Trigger a DAG run, and return its run, and the rows at its position."""
        expected, before = self.rows(), {*self.lake.folders("_runs")}
        status, answer = self.site.trigger(DAG)
        assert status == 200, answer
        (name,) = soon(lambda: {*self.lake.folders("_runs")} - before, "no run begins")
        run = self.lake.folder(name)
        soon(lambda: Run.exists(run), "the run has not begun")
        return run, expected

    def reads(self, run: Storage) -> None:
        soon(lambda: effective.read(run).readers and self.sessions(), "nothing is read")
        self.write()

    def processes(self) -> dict[int, str]:
        """The command lines of all processes of this Airflow, by their ids."""
        mark, found = f"AIRFLOW_HOME={self.home}\0".encode(), {}
        for place in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                if not place.name.isdecimal():
                    continue
                # Processes that set their title overwrite their environment, and guardians leave the session.
                state, _, _, session = (place / "stat").read_text().rpartition(")")[2].split()[:4]
                own = int(session) in self.airflow.sessions or mark in (place / "environ").read_bytes()
                if own and state not in "ZX":
                    found[int(place.name)] = (place / "cmdline").read_text(errors="replace").replace("\0", " ")
        return found

    def guardians(self) -> list[tuple[int, int, int]]:
        """The process, the task and the supervisor of each guardian."""
        found = []
        for pid, command in self.processes().items():
            words = command.split()
            if len(words) > 6 and words[3].endswith("guardian.py"):
                found.append((pid, int(words[5]), int(words[6])))
        return found

    def lose_everything(self) -> None:
        """Kill all processes at once, as a machine does that fails. The database is on another machine."""
        self.airflow.forget()
        while processes := self.processes():
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def start_again(self) -> None:
        self.airflow.start()
        self.site.log_in()

    def tries(self) -> dict[str, tuple[str, int]]:
        run = self.site.last_run(DAG)
        path = f"/api/v2/dags/{DAG}/dagRuns/{run['dag_run_id']}/taskInstances"
        instances = self.site.ask(path)[1]["task_instances"]
        return {one["task_id"]: (one["state"], one["try_number"]) for one in instances}

    def check(self, run: Storage, expected: Rows) -> None:
        """Wait for the end of the DAG run, and check the copies, and that nothing is left."""
        state, states = self.site.wait_for_end(DAG)
        tries = self.tries()
        print(f"tries: {tries}")
        assert state == "success", (states, self.log()[-6000:])
        folders = {name: self.lake.read_json(f"public.{name}/_latest.json") for name in TABLES}
        assert {one["run_id"] for one in folders.values()} == {run.uri.rpartition("/")[2]}
        assert {name: published_counts(one["path"])[1] for name, one in folders.items()} == expected
        soon(lambda: not self.kept(), "a slot is left")
        soon(lambda: not self.sessions(), "a session is left")
        soon(lambda: not self.guardians(), "a process is left")
        assert run.folders("chunks") == []

    def log(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in self.home.glob("logs/**/*.log"))


def soon(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("lost")
    (folder / "dags").mkdir()
    shutil.copy(ROOT / "tests/dags/limited_shop.py", folder / "dags")
    database = "lost_airflow"
    postgres.query(f"CREATE DATABASE {database} STRATEGY file_copy")
    postgres.query(
        "CREATE TABLE accounts (id int PRIMARY KEY, amount int); CREATE TABLE visits (a int);"
        "ALTER TABLE accounts REPLICA IDENTITY FULL; ALTER TABLE visits REPLICA IDENTITY FULL;"
        "INSERT INTO accounts SELECT n, n FROM generate_series(1, 1500) n;"
        "INSERT INTO visits SELECT n % 50 FROM generate_series(1, 300) n; ANALYZE",
        database=database,
    )
    source = {"conn_type": "cdc_postgres", "host": postgres.host, "port": postgres.port}
    connection = {**source, "login": SUPERUSER, "schema": database}
    airflow = AirflowHome(folder / "airflow", {"cdc_shop": connection})
    lake = Storage((folder / "lake").as_uri())
    airflow.environment |= {
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        # Otherwise, it takes minutes until Airflow notices a loss.
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "TEST_TARGET": lake.uri,
    }
    airflow.prepare()
    port = free_port()
    with running_airflow(airflow, port) as components:
        site = Site(f"http://127.0.0.1:{port}", components, "public", folder)
        site.log_in()
        site.wait_for_dag(DAG)
        yield Shop(postgres, database, lake, airflow.home, airflow.environment, components, site)
    assert not postgres.drop_database(database)


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_a_lost_scheduler_is_started_again(shop: Shop, paused: bool) -> None:
    run, expected = shop.begin()
    shop.reads(run)
    if paused:
        act_on(run, "pause", "ann")
        soon(lambda: not shop.sessions(), "the paused run reads")
    began = {*shop.guardians()}
    shop.airflow.kill("scheduler")
    shop.write()
    shop.airflow.start("scheduler")
    # Airflow resets the task, and the supervisor of its first try ends it.
    soon(lambda: not began & {*shop.guardians()}, "the first try goes on")
    print(f"after the restart of the scheduler: {shop.tries()}")
    shop.write()
    if paused:
        assert not shop.sessions()
        soon(lambda: [one.what for one in acts.read(run).events] == ["paused"] * 2, "the next try is not paused")
        act_on(run, "resume", "ann")
    act_on(run, "limit", "ann", max_rows_per_second=0)
    shop.check(run, expected)


def test_a_lost_supervisor_ends_its_task_s_processes_and_the_task_is_tried_again(shop: Shop) -> None:
    run, expected = shop.begin()
    shop.reads(run)
    ((_, _, supervisor),) = shop.guardians()
    os.kill(supervisor, signal.SIGKILL)
    lost = time.monotonic()
    soon(lambda: not shop.guardians(), "Spark goes on")
    soon(lambda: not shop.sessions(), "a session goes on", 30)
    print(f"Spark ended {time.monotonic() - lost:.1f} s after the supervisor")
    shop.write()
    soon(lambda: shop.guardians(), "no other try")
    print(f"the next try began {time.monotonic() - lost:.0f} s after the loss")
    act_on(run, "limit", "ann", max_rows_per_second=0)
    shop.check(run, expected)


@pytest.mark.parametrize("when", ["reading", "consolidating", "committed"])
def test_a_machine_that_is_started_again_continues_the_run(shop: Shop, when: str) -> None:
    run, expected = shop.begin()
    shop.reads(run)
    if when != "reading":
        act_on(run, "limit", "ann", max_rows_per_second=0)
        soon(
            lambda: "extract_delta" in Run.load(run).steps if when == "consolidating" else Run.load(run).committed,
            "not done",
        )
    shop.lose_everything()
    lost = time.monotonic()
    assert not shop.guardians()
    soon(lambda: not shop.sessions(), "a session is left")
    print(f"lost: {[*Run.load(run).steps]}")
    shop.write()
    shop.start_again()
    if when == "reading":
        act_on(run, "limit", "ann", max_rows_per_second=0)
    shop.check(run, expected)
    print(f"published {time.monotonic() - lost:.0f} s after the loss")


def test_the_command_that_cleans_up_asks_airflow_whether_a_run_is_alive(shop: Shop) -> None:
    def cleaned(token: str) -> tuple[list[str], list[str]]:
        """The runs that were removed, and the reasons why others stay."""
        arguments = ["--source-conn-id", "cdc_shop", "--target", shop.lake.uri, "--days", "0", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "airflow_provider_cdc.clean", *arguments, "--airflow-url", shop.site.url],
            env={**shop.environment, "CDC_AIRFLOW_TOKEN": token},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout[done.stdout.index("{") :])
        return [one["run_id"] for one in found["removed"]], [one["why"] for one in found["kept"]]

    run, _ = shop.begin()
    shop.reads(run)
    act_on(run, "pause", "ann")
    removed, reasons = cleaned(shop.site.token)
    assert removed == []
    assert any("of the DAG limited_shop is running" in why for why in reasons), reasons
    removed, reasons = cleaned("wrong")
    assert removed == []
    assert any("Airflow does not answer" in why for why in reasons), reasons
    dag_run = shop.site.last_run(DAG)["dag_run_id"]
    status, answer = shop.site.ask(f"/api/v2/dags/{DAG}/dagRuns/{dag_run}", {"state": "failed"}, "PATCH")
    assert status == 200, answer
    soon(lambda: not shop.guardians() and not shop.sessions(), "Spark goes on")
    soon(lambda: not shop.kept(), "a slot is left")
    removed, reasons = cleaned(shop.site.token)
    assert removed == [run.uri.rpartition("/")[2]], reasons
    assert not shop.lake.folders(f"_runs/{removed[0]}")
