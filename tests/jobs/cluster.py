"""A Spark standalone cluster on this machine: a master and a worker, each in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 240.0


@dataclass(frozen=True)
class Cluster:
    """``environment`` is for `submit`; the worker has its own."""

    master: str
    environment: Mapping[str, str]

    def begin(
        self,
        app: Path,
        *arguments: str,
        py_files: Path,
        log: Path,
        more: Mapping[str, str] | None = None,
        conf: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Submit an application, and do not wait for its end. Its output goes to ``log``."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self._command(app, arguments, py_files, conf),
                env={**self.environment, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def submit(
        self,
        app: Path,
        *arguments: str,
        py_files: Path,
        more: Mapping[str, str] | None = None,
        conf: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(app, arguments, py_files, conf),
            env={**self.environment, **(more or {})},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def _command(self, app: Path, arguments: Sequence[str], py_files: Path, conf: Sequence[str]) -> list[str]:
        options = ["spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.log.level=WARN", *conf]
        return [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--master", self.master, "--py-files", str(py_files)),
            *(part for option in options for part in ("--conf", option)),
            *(str(app), *arguments),
        ]


@dataclass(frozen=True)
class Machine:
    """A process of the cluster, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Machines:
    """The processes of a cluster, which may be killed and started again."""

    def __init__(self, folder: Path, environment: Mapping[str, str], running: ExitStack) -> None:
        self.environment = {**environment, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._folder = folder
        self._running = running
        self._count = 0

    def master(self, port: int = 0) -> tuple[Machine, str]:
        """Start a master. Return it, and its URL."""
        machine = self._start("master.Master", "--host", "127.0.0.1", "--port", str(port))
        return machine, _find(machine.log, r"Starting Spark master at (spark://\S+)")

    def worker(self, master: str) -> Machine:
        machine = self._start("worker.Worker", "--cores", "2", "--memory", "1g", master)
        _find(machine.log, r"Successfully registered with master")
        return machine

    def _start(self, name: str, *arguments: str) -> Machine:
        self._count += 1
        log = self._folder / f"{name.partition('.')[0]}-{self._count}.log"
        return self._running.enter_context(_process(log, self.environment, name, *arguments))


@contextmanager
def machines(folder: Path, environment: Mapping[str, str]) -> Iterator[Machines]:
    """Start no process yet. All processes end with the context.

    :param environment: the environment of the workers, and so of their executors. The package is not on its path.
    """
    with ExitStack() as running:
        yield Machines(folder, environment, running)


@contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Start a master and a worker without this package on their path, and stop them afterwards.

    :param environment: the environment of the worker, and so of its executors.
    """
    with machines(folder, environment) as started:
        _, master = started.master()
        started.worker(master)
        yield Cluster(master, {**started.environment, "PYSPARK_PYTHON": sys.executable})


@contextmanager
def _process(log: Path, environment: Mapping[str, str], name: str, *arguments: str) -> Iterator[Machine]:
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0"]
    with log.open("wb") as stream:
        # spark-class becomes the JVM, so that this process is the one to end.
        process = subprocess.Popen(
            [*command, *arguments], env=dict(environment), cwd=log.parent, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        yield Machine(process, log)
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
