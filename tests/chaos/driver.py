"""A process that runs steps of a run with its own Spark, one request after the other, until it is killed.

It leads a session that includes the JVM and the Python workers, which have their own process group. Its parent may kill
or stop all of these processes, or single ones, at any moment, as a failing or stalling machine would.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow_provider_cdc.sources.api.source import ConnectionSettings

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """How a try ended: ``done``, ``transient``, ``terminal`` or ``killed``, and what it said."""

    how: str
    said: str = ""


class Driver:
    """The process, as its parent sees it. ``damaged``: a fault had a lasting effect on it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.damaged = False
        self.scratch = tempfile.TemporaryDirectory(prefix="cdc-chaos-")
        self.log = Path(self.scratch.name) / "driver.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.driver", self.scratch.name],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    **environment,
                    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "dev")]),
                    # What is killed leaves its temporary files.
                    "SPARK_SUBMIT_OPTS": f"{os.environ['SPARK_SUBMIT_OPTS']} -Djava.io.tmpdir={self.scratch.name}",
                },
            )

    def begin(self, step: str, run: Mapping[str, Any]) -> None:
        """Start ``step`` in the process; `outcome` returns its result."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"step": step, **run}).encode() + b"\n")
            self._process.stdin.flush()

    def outcome(self, seconds: float) -> Outcome | None:
        """How the try ended; None if it has not within ``seconds``."""
        assert self._process.stdout
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._process.stdout], [], [], min(0.2, max(0.0, deadline - time.monotonic())))
            if ready:
                line = self._process.stdout.readline()
                if line:
                    return Outcome(**json.loads(line))
            if self._process.poll() is not None:
                return Outcome("killed", self._tail())
        return None

    def processes(self) -> dict[int, str]:
        """The name of each of its processes, itself included, by pid; the oldest first."""
        return {pid: name for pid, session, name in _processes() if session == self._process.pid}

    def kill(self, which: str) -> bool:
        """Kill the ``driver``, the ``jvm``, one ``worker``, or ``all`` of them; whether there was one."""
        self.damaged = True
        members = self.processes()
        chosen = {
            "driver": [self._process.pid],
            "jvm": [pid for pid, name in members.items() if name == "java"],
            # Older than they are this process and the daemon that forks them.
            "worker": [pid for pid, name in members.items() if name.startswith("python")][2:][-1:],
            "all": list(members),
        }[which]
        _send(chosen, signal.SIGKILL)
        return bool(chosen)

    def stop(self) -> None:
        """Have all its processes stand still, until `go_on`."""
        _send(self.processes(), signal.SIGSTOP)

    def go_on(self) -> None:
        _send(self.processes(), signal.SIGCONT)

    def limit(self, what: int, most: int) -> None:
        """From now on its processes are refused more than ``most`` of one of `resource`'s ``RLIMIT_``s.

        The JVM is left alone: that Spark may hang for want of a socket is not ours to test.
        """
        self.damaged = True
        for pid, name in self.processes().items():
            if name != "java":
                with contextlib.suppress(ProcessLookupError):
                    _, hard = resource.prlimit(pid, what)
                    resource.prlimit(pid, what, (min(most, hard) if hard >= 0 else most, hard))

    def says(self, text: str) -> bool:
        """Whether its log, or that of its tasks, holds this."""
        return self.log.exists() and text in self.log.read_text(errors="replace")

    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """End all of it."""
        self.kill("all")
        self._process.wait()
        deadline = time.monotonic() + 10
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.scratch.cleanup()

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _processes() -> list[tuple[int, int, str]]:
    """Pid, session and name of every process, the oldest first, without those that have ended and wait to be reaped."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                if fields[0] not in "ZX":
                    found.append((int(fields[19]), int(folder.name), int(fields[3]), name))
    return [(pid, session, name) for _, pid, session, name in sorted(found)]


def main() -> None:
    """Answer requests, one JSON object a line, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    # Whatever anyone prints belongs in the log.
    os.dup2(2, 1)
    scratch = sys.argv[1]
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    spark = _spark(scratch)
    for line in sys.stdin:
        request = json.loads(line)
        how, said = _try(spark, request)
        answers.write(json.dumps({"how": how, "said": said}) + "\n")
        answers.flush()


def _spark(scratch: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
    return (
        SparkSession.builder.master("local[2]")
        .appName("chaos")
        .config("spark.driver.memory", "512m")
        .config("spark.local.dir", scratch)
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def _try(spark: Any, request: dict[str, Any]) -> tuple[str, str]:
    from airflow_provider_cdc.errors import CdcError, TerminalError
    from airflow_provider_cdc.jobs.runtime import app

    try:
        _do(spark, request)
    except Exception as error:
        traceback.print_exc()
        told = error if isinstance(error, CdcError) else app._unforeseen(request["step"], error)
        how = "terminal" if isinstance(told, TerminalError) else "transient"
        return how, f"{type(told).__name__}: {told}"
    return "done", ""


def _do(spark: Any, request: dict[str, Any]) -> None:
    from airflow_provider_cdc.core.storage.folder import Storage
    from airflow_provider_cdc.jobs.consolidate.step import consolidate
    from airflow_provider_cdc.jobs.extract_delta.step import extract_delta
    from airflow_provider_cdc.jobs.snapshot.step import snapshot

    for place, value in request.get("paces", {}).items():
        module, _, name = place.rpartition(".")
        setattr(import_module(module), name, value)
    settings = ConnectionSettings(**request["settings"])
    steps = {"snapshot": snapshot, "extract_delta": extract_delta, "consolidate": consolidate}
    steps[request["step"]](spark, Storage(request["run_uri"]), settings)


if __name__ == "__main__":
    main()
