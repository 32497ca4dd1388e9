"""Whatever kills a task, Spark's processes end with it within seconds, and leave nothing on this machine."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_cdc.operators.spark.launchers.client import guardian
from airflow_provider_cdc.operators.spark.launchers.client.guardian import LOCK
from airflow_provider_cdc.operators.spark.launchers.client.launcher import scratch
from harness.environment import spark_environment
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of

MARK = "CDC_TEST_MARK"
END_SECONDS = 60.0


@dataclass
class Running:
    """A snapshot while it reads. All of its processes have the mark in their environment."""

    mark: str
    supervisor: int
    task: int
    temporary: Path

    def processes(self) -> dict[int, str]:
        """The command lines of those that live."""
        found = {}
        for place in Path("/proc").iterdir():
            with suppress(OSError):
                if place.name.isdecimal() and f"{MARK}={self.mark}".encode() in (place / "environ").read_bytes():
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def process(self, *words: str, but: str = "^$") -> int:
        (one,) = [
            pid
            for pid, command in self.processes().items()
            if all(word in command for word in words) and not re.search(but, command)
        ]
        return one


@pytest.fixture
def running(mysql: MysqlServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY)")
    mysql.query(f"INSERT INTO {schema}.orders VALUES " + ", ".join(f"({number})" for number in range(2000)))
    mysql.query(f"ANALYZE TABLE {schema}.orders")
    run = Pipeline(
        None, settings_of(mysql), (tmp_path / "lake").as_uri(), [f"{schema}.*"], chunk_rows=100, chunk_pause=300.0
    )
    run.record()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    mark = uuid.uuid4().hex
    shop = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    surroundings = {
        **os.environ,
        **spark_environment(),
        MARK: mark,
        "TMPDIR": str(temporary),
        "AIRFLOW_CONN_SHOP": json.dumps(shop),
        "AIRFLOW_CONN_SPARK": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parents[1] / "killed_task.py"), run.run.uri],
            stdout=subprocess.PIPE,
            stderr=output,
            env=surroundings,
            cwd=tmp_path,
        )
    assert process.stdout
    supervisor, task = map(int, process.stdout.readline().split())
    one = Running(mark, supervisor, task, temporary)
    deadline = time.monotonic() + 240
    # The daemon of Spark's Python workers, and one that reads: it has a session.
    while sum("pyspark.daemon" in command for command in one.processes().values()) < 2 or not mysql.query(
        "SELECT 1 FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep' AND TIME >= 1"
    ):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        # Each look reads the environment of every process of the machine.
        time.sleep(0.5)
    yield one
    for pid in one.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim",
    ["task", *(pytest.param(one, marks=pytest.mark.long) for one in ("supervisor", "guardian", "jvm", "driver"))],
)
def test_nothing_of_a_killed_task_lives_on_or_stays(running: Running, victim: str) -> None:
    assert any(running.temporary.rglob("blockmgr-*")), "Spark writes where the task can clean up"
    pid = {
        "task": lambda: running.task,
        "supervisor": lambda: running.supervisor,
        "guardian": lambda: running.process("-S", "guardian.py"),
        "jvm": lambda: running.process("java", "org.apache.spark.deploy.SparkSubmit"),
        "driver": lambda: running.process("python", "spark_apps/snapshot.py --run-uri", but="spark-submit|SparkSubmit"),
    }[victim]()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while (left := running.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    assert not list(running.temporary.iterdir())


@pytest.mark.long
def test_a_guardian_that_was_stopped_for_a_while_goes_on_guarding(tmp_path: Path) -> None:
    """As by a container that is paused, or a machine that sleeps."""
    with scratch(tmp_path) as mine:
        guarded = [sys.executable, "-c", "print('runs', flush=True); input()"]
        with subprocess.Popen(
            [*guardian.command(mine, 0), *guarded], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            for seconds in (0.1, 1.0, 1.0):
                process.send_signal(signal.SIGSTOP)
                time.sleep(seconds)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.1)
            process.communicate("\n")
        assert process.returncode == 0


def test_what_a_step_left_that_was_killed_with_its_guardian_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with scratch(tmp_path) as mine:
        abandoned = mine.with_name(f"{mine.name}-killed")
        abandoned.mkdir()
        (abandoned / LOCK).touch()
        (abandoned / "blockmgr").mkdir()
        used = mine.with_name(f"{mine.name}-used")
        used.mkdir()
        with (used / LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            with scratch(tmp_path) as next_one:
                assert sorted(tmp_path.iterdir()) == sorted([mine, used, next_one])
    assert list(tmp_path.iterdir()) == [used]


@pytest.mark.timeout(120)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder that is another user's")
def test_what_other_users_leave_under_names_like_ours_neither_stops_a_step_nor_is_removed(tmp_path: Path) -> None:
    with scratch(tmp_path) as mine:
        theirs = [mine.with_name(f"{mine.name}-{kind}") for kind in ("pipe", "file", "link")]
        elsewhere = tmp_path / "elsewhere"
        for folder in (*theirs[:2], elsewhere):
            folder.mkdir()
        # Opening it would wait for a writer.
        os.mkfifo(theirs[0] / LOCK)
        (theirs[1] / LOCK).touch()
        (elsewhere / LOCK).touch()
        theirs[2].symlink_to(elsewhere)
        for folder in theirs:
            os.chown(folder, 12345, 12345, follow_symlinks=False)
    with scratch(tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([*theirs, elsewhere])
    # One's own pipe is no lock either.
    os.chown(theirs[0], os.getuid(), -1)
    with scratch(tmp_path):
        pass
