"""A standalone cluster loses a worker, its master, both, or an executor in the middle of a run. The run continues, or
its step fails within bounded time and can be repeated. The copies are exact, and a zombie changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.control import acts, effective
from airflow_provider_cdc.core.control.acts import act_on
from airflow_provider_cdc.core.options.run import LimitOptions
from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.jobs.runtime.driver import package_zip, to_environment
from harness.environment import spark_environment
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published_counts, settings_of
from tests.jobs.cluster import Cluster, Machine, Machines, environment_without_us, machines

ROOT = Path(__file__).parents[3]
SECONDS = 240.0
KEYED, KEYLESS = 1500, 300
TABLES = ("accounts", "visits")

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def soon(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


class Losing:
    """A run on a cluster whose processes may be killed."""

    def __init__(self, server: MysqlServer, schema: str, folder: Path, started: Machines) -> None:
        self.server, self.schema, self.folder, self.machines = server, schema, folder, started
        self.master, url = started.master()
        self.worker = started.worker(url)
        self.cluster = Cluster(url, {**started.environment, "PYSPARK_PYTHON": sys.executable})
        self.package = package_zip(folder)
        self.log = folder / "app.log"
        self.settings = settings_of(server)
        server.query(f"CREATE TABLE {schema}.accounts (id INT PRIMARY KEY, amount INT)")
        server.query(f"CREATE TABLE {schema}.visits (a INT)")
        server.query(f"INSERT INTO {schema}.accounts VALUES {','.join(f'({n}, {n})' for n in range(KEYED))}")
        server.query(f"INSERT INTO {schema}.visits VALUES {','.join(f'({n % 50})' for n in range(KEYLESS))}")
        self.run = Pipeline(
            None,
            self.settings,
            (folder / "lake").as_uri(),
            [f"{schema}.*"],
            chunk_rows=60,
            limits=LimitOptions(max_rows_per_second=150),
        )
        self.run.record()
        self.expected = {name: Counter(server.query(f"SELECT * FROM {schema}.{name}")) for name in TABLES}
        self.moment = 0

    def write(self) -> None:
        """Change rows that are read already, and rows that are not."""
        self.moment += 1
        low = self.moment * 90
        for statement in (
            f"UPDATE {self.schema}.accounts SET amount = amount + 1000 WHERE id BETWEEN {low} AND {low + 700}",
            f"DELETE FROM {self.schema}.accounts WHERE id = {self.moment * 7 + 3}",
            f"INSERT INTO {self.schema}.accounts VALUES ({5000 + self.moment}, 0)",
            f"UPDATE {self.schema}.visits SET a = 100 + {self.moment} WHERE a = {self.moment}",
        ):
            self.server.query(statement)

    def begin(self, step: str, *conf: str, impatient: bool = False) -> subprocess.Popen[bytes]:
        app = ROOT / ("tests/jobs/impatient_app.py" if impatient else f"spark_apps/{step}.py")
        arguments = [*([step] if impatient else []), "--run-uri", self.run.run.uri]
        given = {"py_files": self.package, "log": self.log, "more": to_environment(self.settings), "conf": conf}
        return self.cluster.begin(app, *arguments, **given)  # type: ignore[arg-type]

    def chunks(self) -> int:
        return sum(len(files) for _, _, files in os.walk(Path(self.run.run.path("chunks"))))

    def reads(self, app: subprocess.Popen[bytes]) -> bool:
        assert app.poll() is None, self.log.read_text()[-4000:]
        return bool(effective.read(self.run.run).readers) or self.chunks() > 3

    def quiet(self) -> bool:
        sql = "SELECT count(*) FROM performance_schema.session_connect_attrs WHERE ATTR_NAME = 'program_name' AND "
        return bool(self.server.query(f"{sql} ATTR_VALUE = 'airflow-provider-cdc'")[0][0] == 0)

    def fast(self) -> None:
        act_on(self.run.run, "limit", "the test", max_rows_per_second=0)

    def ends(self, app: subprocess.Popen[bytes], seconds: float = SECONDS) -> int:
        return app.wait(seconds)

    def finish(self, *steps: str) -> None:
        for step in steps:
            assert self.ends(self.begin(step)) == 0, self.log.read_text()[-4000:]
        tables = Run.load(self.run.run).result_of(ConsolidateResult).published
        found = {name: published_counts(tables[f"{self.schema}.{name}"])[1] for name in TABLES}
        assert found == self.expected
        assert soon(self.quiet, "a session is left")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def losing(mysql: MysqlServer, schema: str, tmp_path: Path, cache: Path) -> Iterator[Losing]:
    os.environ.update(spark_environment())
    with machines(tmp_path, environment_without_us(cache)) as started:
        yield Losing(mysql, schema, tmp_path, started)


@contextmanager
def running(losing: Losing, *arguments: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    app = losing.begin("snapshot", *arguments, **more)
    try:
        soon(lambda: losing.reads(app), "nothing is read")
        losing.write()
        yield app
    finally:
        with suppress(ProcessLookupError):
            os.killpg(app.pid, signal.SIGKILL)
        app.wait()


def test_a_lost_worker_is_replaced_and_a_pause_holds_on_the_cluster(losing: Losing) -> None:
    with running(losing) as app:
        losing.worker.kill()
        losing.machines.worker(losing.cluster.master)
        losing.write()
        act_on(losing.run.run, "pause", "ann")
        asked = time.monotonic()
        soon(lambda: [one.what for one in acts.read(losing.run.run).events][-1:] == ["paused"], "not paused")
        soon(losing.quiet, "the paused run still reads")
        print(f"quiet {time.monotonic() - asked:.1f} s after the pause")
        losing.write()
        time.sleep(3)
        assert losing.quiet()
        losing.fast()
        act_on(losing.run.run, "resume", "ann")
        assert losing.ends(app) == 0, losing.log.read_text()[-4000:]
    losing.finish("extract_delta", "consolidate")


def test_a_run_ends_without_its_master(losing: Losing) -> None:
    with running(losing) as app:
        losing.master.kill()
        losing.write()
        losing.fast()
        assert losing.ends(app) == 0, losing.log.read_text()[-4000:]
    _restarted(losing)
    losing.finish("extract_delta", "consolidate")


def _restarted(losing: Losing) -> Machine:
    port = int(losing.cluster.master.rpartition(":")[2])
    losing.master, _ = losing.machines.master(port)
    losing.worker.kill()
    losing.worker = losing.machines.worker(losing.cluster.master)
    return losing.worker


def test_a_step_on_a_cluster_that_was_restarted_fails_soon_and_is_repeated(losing: Losing) -> None:
    with running(losing, impatient=True) as app:
        losing.master.kill()
        _restarted(losing)
        began = time.monotonic()
        assert losing.ends(app, 180) == 1, losing.log.read_text()[-4000:]
        print(f"failed {time.monotonic() - began:.0f} s after the restart")
    assert "Spark lost all executors" in losing.log.read_text()
    assert soon(losing.quiet, "a session is left")
    losing.write()
    losing.fast()
    losing.finish("snapshot", "extract_delta", "consolidate")


def test_an_executor_that_was_taken_for_dead_changes_nothing_when_it_wakes_up(losing: Losing) -> None:
    impatient = [
        f"spark.{one}" for one in ("network.timeout=12s", "network.timeoutInterval=3s", "executor.heartbeatInterval=2s")
    ]
    with running(losing, *impatient) as app:
        zombies = _executors(losing.worker.process.pid)
        _send(zombies, signal.SIGSTOP)
        try:
            losing.write()
            soon(lambda: "no recent heartbeats" in losing.log.read_text(), "the executor is not taken for dead", 120)
            # The zombie holds the worker's cores, so another worker serves the application.
            losing.machines.worker(losing.cluster.master)
            chunks = losing.chunks()
            soon(lambda: losing.chunks() > chunks + 2, "nobody goes on", 90)
        finally:
            _send(zombies, signal.SIGCONT)
        losing.write()
        losing.fast()
        assert losing.ends(app) == 0, losing.log.read_text()[-4000:]
    losing.finish("extract_delta", "consolidate")


def _executors(worker: int) -> set[int]:
    """The processes below a worker."""
    parents = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with suppress(OSError):
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    found, below = set(), [worker]
    while below:
        at = below.pop()
        children = [pid for pid, parent in parents.items() if parent == at]
        found |= {*children}
        below += children
    return found


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
