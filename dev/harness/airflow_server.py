"""Runs all components of Airflow: API server, scheduler, DAG processor, triggerer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator

from harness.airflow_home import AirflowHome
from harness.errors import HarnessError

START_SECONDS = 180
STOP_SECONDS = 30


class Components:
    """The running components of an Airflow. Call it to check them."""

    def __init__(self, airflow: AirflowHome, port: int) -> None:
        self._airflow = airflow
        self._port = port
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        # Not `airflow standalone`, because its scheduler serves logs on all addresses of this machine.
        self._commands = {
            "api-server": ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            "scheduler": ["--skip-serve-logs"],
            "dag-processor": [],
            "triggerer": ["--skip-serve-logs"],
        }

    def __call__(self) -> None:
        """Raise `HarnessError` if a component has ended, except by `kill`."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise HarnessError(
                    f"Airflow's {name} ended with status {process.returncode}; see {self._airflow.home}/{name}.log"
                )

    def start(self, *names: str) -> None:
        """Start components, by default all, and wait until the API answers."""
        for name in names or self._commands:
            with (self._airflow.home / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    self._airflow.command(name, *self._commands[name]),
                    env=self._airflow.environment,
                    cwd=self._airflow.home,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Only this process receives Ctrl-C. It then ends each component and its children.
                    start_new_session=True,
                )
            self._processes[name] = process
            self._all.append(process)
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self._port):
            self()
            if time.monotonic() > deadline:
                raise HarnessError(f"Airflow does not answer after {START_SECONDS} s; see {self._airflow.home}/*.log")
            time.sleep(0.5)

    def kill(self, name: str) -> None:
        """Kill the process of a component, but not its children."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    @property
    def sessions(self) -> set[int]:
        """The ids of the sessions that the components lead. Their children belong to these, unless they left them."""
        return {process.pid for process in self._all}

    def forget(self) -> None:
        """Check none of the present components any more, because they are about to be killed."""
        self._processes = {}

    def stop(self) -> None:
        """End all components, and their children."""
        for process in self._all:
            process.terminate()
        for process in self._all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def running_airflow(airflow: AirflowHome, port: int) -> Iterator[Components]:
    """Run all components of ``airflow``, which must be prepared, while the context is open. The UI is on ``port`` of
    this machine.

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
    components = Components(airflow, port)
    try:
        components.start()
        yield components
    finally:
        components.stop()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/version", timeout=5):
            return True
    except OSError:
        return False
