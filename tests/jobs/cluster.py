"""A Spark standalone cluster on this machine: a master and a worker, each in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 240.0


@dataclass(frozen=True)
class Cluster:
    """``environment`` is for `submit`; the worker has its own."""

    master: str
    environment: Mapping[str, str]

    def submit(
        self,
        app: Path,
        *arguments: str,
        py_files: Path,
        more: Mapping[str, str] | None = None,
        conf: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        options = ["spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.log.level=WARN", *conf]
        return subprocess.run(
            [
                str(SPARK_HOME / "bin" / "spark-submit"),
                *("--master", self.master, "--py-files", str(py_files)),
                *(part for option in options for part in ("--conf", option)),
                *(str(app), *arguments),
            ],
            env={**self.environment, **(more or {})},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


@contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Start a master and a worker without this package on their path, and stop them afterwards.

    :param environment: the environment of the worker, and so of its executors.
    """
    plain = {**environment, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    with _process(folder / "master.log", plain, "master.Master", "--host", "127.0.0.1", "--port", "0") as log:
        master = _find(log, r"Starting Spark master at (spark://\S+)")
        with _process(folder / "worker.log", plain, "worker.Worker", "--cores", "2", "--memory", "1g", master) as log:
            _find(log, r"Successfully registered with master")
            yield Cluster(master, {**plain, "PYSPARK_PYTHON": sys.executable})


@contextmanager
def _process(log: Path, environment: Mapping[str, str], name: str, *arguments: str) -> Iterator[Path]:
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0"]
    stream: IO[str]
    with log.open("w") as stream:
        # spark-class becomes the JVM, so that this process is the one to end.
        process = subprocess.Popen(
            [*command, *arguments], env=dict(environment), cwd=log.parent, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _find(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if match := re.search(pattern, log.read_text()):
            return match[match.lastindex or 0]
        time.sleep(0.1)
    raise AssertionError(f"{pattern!r} did not appear in {log}:\n{log.read_text()[-3000:]}")


def environment_without_us(cache: Path, **more: str) -> dict[str, str]:
    """This process's environment without our path, and with a cache of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME", "LANG") if name in os.environ}
    return {**kept, "XDG_CACHE_HOME": str(cache), **more}
