"""``dev/airflow``: Airflow's UI with everything in place to copy tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from harness import servers
from harness.airflow_home import AirflowHome
from harness.cache import cache_directory
from harness.demo import mysql_shop, postgres_shop
from harness.demo.stage import SCHEMA
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer

ROWS = 50_000
START_SECONDS = 180
STOP_SECONDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="dev/airflow", description=__doc__)
    parser.add_argument("--port", type=int, default=8080, help="of the UI")
    port = parser.parse_args().port
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _serve(cache_directory() / "airflow", port)
    except HarnessError as error:
        sys.exit(f"airflow: {error}")
    except KeyboardInterrupt:
        print("airflow: stopped", flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _serve(home: Path, port: int) -> None:
    if _answers(port):
        raise HarnessError(f"something answers on port {port} already: stop it, or give another --port")
    mysql, postgres = _mysql_with_a_shop(), _postgres_with_a_shop()
    airflow = AirflowHome(
        home,
        {
            "cdc_mysql": {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"},
            "cdc_postgres": {
                "conn_type": "cdc_postgres",
                "host": postgres.host,
                "port": postgres.port,
                "login": SUPERUSER,
                "schema": "postgres",
            },
        },
    )
    airflow.environment |= {
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }
    print(f"airflow: preparing {home}", flush=True)
    airflow.prepare()
    # Not `airflow standalone`: its scheduler would serve logs on every address of this machine.
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
        _wait_until_it_answers(port, processes, home)
        (login,) = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text()).items()
        print(
            f"airflow: http://127.0.0.1:{port}/dags/mysql_snapshot  user {login[0]}, password {login[1]}\n"
            f"airflow: http://127.0.0.1:{port}/dags/postgres_snapshot\n"
            f"airflow: trigger it with tables shop.* and a target such as {(home / 'lake').as_uri()}\n"
            f"airflow: logs of its parts: {home}/*.log\n"
            f"airflow: Ctrl-C stops it. Undo: rm -r {home}; {servers.UNDO}",
            flush=True,
        )
        while True:
            _check(processes, home)
            time.sleep(1)


def _mysql_with_a_shop() -> MysqlServer:
    server = servers.up("mysql")
    assert isinstance(server, MysqlServer)
    if not server.query("SHOW DATABASES LIKE %s", [SCHEMA]):
        with server.connect() as connection:
            mysql_shop.create(connection, ROWS)
    print(f"airflow: connection cdc_mysql is {server.url}, with the database {SCHEMA}", flush=True)
    return server


def _postgres_with_a_shop() -> PostgresServer:
    server = servers.up("postgres")
    assert isinstance(server, PostgresServer)
    if not server.query("SELECT 1 FROM pg_namespace WHERE nspname = %s", [SCHEMA]):
        with server.connect() as connection:
            postgres_shop.create(connection, ROWS)
    print(f"airflow: connection cdc_postgres is {server.url}, with the schema {SCHEMA}", flush=True)
    return server


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
            # Ctrl-C is for us: each part is then asked to end, and its children with it.
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


def _wait_until_it_answers(port: int, processes: dict[str, subprocess.Popen[bytes]], home: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(port):
        _check(processes, home)
        if time.monotonic() > deadline:
            raise HarnessError(f"it does not answer after {START_SECONDS} s; see {home}/*.log")
        time.sleep(0.5)


def _check(processes: dict[str, subprocess.Popen[bytes]], home: Path) -> None:
    for name, process in processes.items():
        if process.poll() is not None:
            raise HarnessError(f"its {name} ended with status {process.returncode}; see {home}/{name}.log")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/version", timeout=5):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
