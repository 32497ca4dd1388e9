"""Runs all components of Airflow: API server, scheduler, DAG processor, triggerer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping

from harness.airflow_home import AirflowHome
from harness.errors import HarnessError

START_SECONDS = 180
STOP_SECONDS = 30


@contextlib.contextmanager
def running_airflow(airflow: AirflowHome, port: int) -> Iterator[Callable[[], None]]:
    """Run all components of ``airflow``, which must be prepared, while the context is open. The UI is on ``port`` of
    this machine.

    Yields a function that raises `HarnessError` if a component has ended.

    :raises HarnessError: the port is in use, or Airflow does not answer in time.
    """
    if _answers(port):
        raise HarnessError(f"port {port} is in use: stop the other program, or choose another port")
    airflow.environment |= {
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }
    # Not `airflow standalone`, because its scheduler serves logs on all addresses of this machine.
    commands = {
        "api-server": ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
        "scheduler": ["--skip-serve-logs"],
        "dag-processor": [],
        "triggerer": ["--skip-serve-logs"],
    }
    with contextlib.ExitStack() as running:
        processes = {
            name: running.enter_context(_running(airflow, name, arguments)) for name, arguments in commands.items()
        }

        def check() -> None:
            _check(airflow, processes)

        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            check()
            if time.monotonic() > deadline:
                raise HarnessError(f"Airflow does not answer after {START_SECONDS} s; see {airflow.home}/*.log")
            time.sleep(0.5)
        yield check


@contextlib.contextmanager
def _running(airflow: AirflowHome, name: str, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (airflow.home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            airflow.command(name, *arguments),
            env=airflow.environment,
            cwd=airflow.home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Only this process receives Ctrl-C. It then ends each component and its children.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _check(airflow: AirflowHome, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    for name, process in processes.items():
        if process.poll() is not None:
            raise HarnessError(
                f"Airflow's {name} ended with status {process.returncode}; see {airflow.home}/{name}.log"
            )


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/version", timeout=5):
            return True
    except OSError:
        return False
