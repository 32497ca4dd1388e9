"""The source's password reaches executors, and never a disk, whatever Spark writes there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.jobs.runtime.driver import to_environment
from airflow_provider_cdc.jobs.runtime.session import check_encryption
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from harness.environment import spark_environment
from tests.jobs.cluster import SPARK_HOME

SECRET = "corr3ct-horse-battery-staple"
# Spark writes to disk what finds no room in memory, and compressed text would hide the secret from the search.
CONF = {
    "spark.memory.fraction": "0.001",
    "spark.broadcast.compress": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    # What it would be without us, and what a cluster's administrator may have set.
    "spark.io.encryption.enabled": "false",
}


def holders(folder: Path) -> list[str]:
    """The files that hold the secret, as it is or as Java writes it."""
    needles = SECRET.encode(), SECRET.encode("utf-16-be")
    return [str(file) for file in folder.rglob("*") if any(needle in content(file) for needle in needles)]


def content(file: Path) -> bytes:
    """Nothing of a folder, of a file that Spark removes at this moment, or of a process that ends."""
    with suppress(FileNotFoundError, IsADirectoryError, ProcessLookupError):
        return file.read_bytes()
    return b""


@pytest.mark.long
def test_tasks_that_spark_writes_to_disk_hold_no_readable_password(tmp_path: Path) -> None:
    temporary, events, meeting = tmp_path / "tmp", tmp_path / "events", tmp_path / "meeting"
    for folder in (temporary, events, meeting):
        folder.mkdir()
    conf = {**CONF, "spark.eventLog.dir": events.as_uri()}
    settings = ConnectionSettings("mysql", "db.example", 3306, "reader", SECRET)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(SPARK_HOME / "bin" / "spark-submit"),
                *("--master", "local[2]"),
                *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
                *(str(Path(__file__).parents[1] / "large_tasks_app.py"), str(meeting)),
            ],
            env={
                **os.environ,
                **spark_environment(),
                **to_environment(settings),
                "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), *sys.path])),
                "TMPDIR": str(temporary),
                "SPARK_LOCAL_DIRS": str(temporary),
                "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={temporary}",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 240
        while not (meeting / "running").exists():
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        written = sum(len(content(file)) for file in temporary.rglob("*"))
        assert written > 3 * 2**20, "the tasks are not on disk: this test cannot find anything"
        assert holders(tmp_path) == []
        commands = [content(place / "cmdline") for place in Path("/proc").glob("[0-9]*")]
        assert not any(SECRET.encode() in command for command in commands)
        (meeting / "go").touch()
        assert process.wait(240) == 0, (tmp_path / "log").read_text()[-3000:]
        assert "True" in (tmp_path / "log").read_text()
        assert holders(tmp_path) == []
        # Spark would warn of keys on the network here; this Spark opens no connection.
        assert "WARN SparkEnv" not in (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()


def test_a_spark_that_does_not_encrypt_what_it_writes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.io\.encryption\.enabled"):
        check_encryption("false")
