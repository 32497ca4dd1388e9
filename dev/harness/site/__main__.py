"""``dev/airflow``: Airflow's UI, set up to copy tables."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from harness import servers
from harness.airflow_home import ROOT, AirflowHome
from harness.airflow_server import running_airflow
from harness.cache import cache_directory
from harness.demo import mysql_shop, postgres_shop
from harness.demo.stage import SCHEMA
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer
from harness.server_process import ServerProcess
from harness.site.file_server import serving
from harness.site.kept_ports import KeptPorts, is_free

ROWS = 50_000
EXAMPLES = Path(__file__).with_name("examples")
METADATA = {"fsync": "on", "full_page_writes": "on", "wal_level": "replica"}
"""Settings of the metadata database. It is durable, so that a power failure loses no runs."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="dev/airflow", description=__doc__)
    parser.add_argument("--port", type=int, help="port of the UI (default: the last one; 8080 the first time)")
    parser.add_argument(
        "--home", type=Path, default=cache_directory() / "airflow", help="the folder of all data (default: %(default)s)"
    )
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with _alone(given.home):
            _serve(given.home, given.port)
    except HarnessError as error:
        sys.exit(f"airflow: {error}")
    except KeyboardInterrupt:
        _say("stopped")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(f"airflow: {line}", flush=True)


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HarnessError(f"an Airflow is already running with its data in {home}") from None
        yield


def _serve(home: Path, port: int | None) -> None:
    if port and not is_free(port):
        raise HarnessError(f"port {port} is in use: stop the other program, or choose another port")
    ports, lake = KeptPorts(home / "ports.json", _say), home / "lake"
    ui = ports.keep("UI", port) if port else ports.port("UI", 8080)
    with contextlib.ExitStack() as running:
        mysql, postgres = (running.enter_context(_source(kind, ports)) for kind in ("mysql", "postgres"))
        assert isinstance(mysql, MysqlServer)
        assert isinstance(postgres, PostgresServer)
        _make_shops(mysql, postgres)
        metadata = running.enter_context(
            PostgresServer.start(home / "metadata", port=ports.port("metadata"), options=METADATA)
        )
        reports = running.enter_context(serving(lake, ports.port("reports", 8081)))
        airflow = _prepared(home, metadata, lake, reports)
        # Store the connections in the database, so that the UI shows and can test them.
        airflow.add_connections(_connections(mysql, postgres))
        check = running.enter_context(running_airflow(airflow, ui))
        (login,) = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text()).items()
        _say(f"http://127.0.0.1:{ui}/dags/copy_tables  user {login[0]}, password {login[1]}")
        _say("trigger this DAG with source cdc_mysql or cdc_postgres and tables shop.*")
        _say(f"your own DAGs: put them into {home}/dags; read_copies.py there is an example")
        _say(f"the copies: {lake}, or the targets that AIRFLOW__CDC__TARGETS allows; in a browser: {reports}")
        _say(f"logs of the components: {home}/*.log")
        _say(f"Ctrl-C stops Airflow and all servers that it started. Undo: rm -r {home}; dev/servers down --purge")
        while True:
            check()
            time.sleep(1)


@contextlib.contextmanager
def _source(kind: str, ports: KeptPorts) -> Iterator[ServerProcess]:
    """Yield a server of ``dev/servers``. If it was already running, it stays running."""
    attached = servers.KINDS[kind].attach(servers.directory_of(kind))
    server = attached or servers.up(kind, port=ports.port(kind))
    ports.keep(kind, server.port)
    try:
        _say(f"connection cdc_{kind} is {server.url}, with tables in {SCHEMA}")
        yield server
    finally:
        if attached is None:
            server.stop()


def _make_shops(mysql: MysqlServer, postgres: PostgresServer) -> None:
    if not mysql.query("SHOW DATABASES LIKE %s", [SCHEMA]):
        with mysql.connect() as connection:
            mysql_shop.create(connection, ROWS)
    if not postgres.query("SELECT 1 FROM pg_namespace WHERE nspname = %s", [SCHEMA]):
        with postgres.connect() as session:
            postgres_shop.create(session, ROWS)


def _prepared(home: Path, metadata: PostgresServer, lake: Path, reports: str) -> AirflowHome:
    own = home / "dags"
    own.mkdir(exist_ok=True)
    for example in EXAMPLES.glob("*.py"):
        # Do not overwrite an example that the user has changed.
        if not (own / example.name).exists():
            shutil.copy(example, own)
    airflow = AirflowHome(home, {})
    database = f"postgresql+psycopg://{SUPERUSER}@{metadata.host}:{metadata.port}/postgres"
    bundles = [
        {
            "name": name,
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(folder)},
        }
        for name, folder in (("shipped", ROOT / "dags"), ("yours", own))
    ]
    airflow.environment |= {
        # Not SQLite, because Airflow's Backfill returns status 503 while another session writes.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": database,
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
    }
    # The forms offer the allowed values. Each source has its own folder of copies.
    settings = {
        "PRODUCTION_TARGETS": lake.as_uri(),
        "REPORT_URLS": f"{lake.as_uri()}={reports}",
        "SOURCE_CONN_IDS": "cdc_mysql,cdc_postgres",
        "TARGETS": f"{lake.as_uri()}/{{source}}",
    }
    for name, value in settings.items():
        airflow.environment[f"AIRFLOW__CDC__{name}"] = os.environ.get(f"AIRFLOW__CDC__{name}", value)
    _say(f"preparing {home}")
    airflow.prepare()
    return airflow


def _connections(mysql: MysqlServer, postgres: PostgresServer) -> dict[str, dict[str, object]]:
    return {
        "cdc_mysql": {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"},
        "cdc_postgres": {
            "conn_type": "cdc_postgres",
            "host": postgres.host,
            "port": postgres.port,
            "login": SUPERUSER,
            "schema": "postgres",
        },
    }


if __name__ == "__main__":
    main()
