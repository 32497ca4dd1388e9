"""``dev/airflow``: Airflow's UI with everything in place to copy tables."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from harness import servers
from harness.airflow_home import AirflowHome
from harness.airflow_server import running_airflow
from harness.cache import cache_directory
from harness.demo import mysql_shop, postgres_shop
from harness.demo.stage import SCHEMA
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer

ROWS = 50_000


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
    mysql, postgres = _mysql_with_a_shop(), _postgres_with_a_shop()
    airflow = AirflowHome(home, {})
    # What is allowed one by one is what the forms offer.
    allowed = {"SOURCE_CONN_IDS": "cdc_mysql,cdc_postgres", "TARGETS": (home / "lake").as_uri()}
    for name, value in allowed.items():
        airflow.environment[f"AIRFLOW__CDC__{name}"] = os.environ.get(f"AIRFLOW__CDC__{name}", value)
    print(f"airflow: preparing {home}", flush=True)
    airflow.prepare()
    # In the database, so that they can be seen and tried in the UI.
    airflow.add_connections(
        {
            "cdc_mysql": {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"},
            "cdc_postgres": {
                "conn_type": "cdc_postgres",
                "host": postgres.host,
                "port": postgres.port,
                "login": SUPERUSER,
                "schema": "postgres",
            },
        }
    )
    with running_airflow(airflow, port) as check:
        (login,) = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text()).items()
        print(
            f"airflow: http://127.0.0.1:{port}/dags/backfill  user {login[0]}, password {login[1]}\n"
            f"airflow: trigger it with source cdc_mysql or cdc_postgres and tables shop.*\n"
            f"airflow: the copies: {home}/lake, or whatever AIRFLOW__CDC__TARGETS allows\n"
            f"airflow: logs of its parts: {home}/*.log\n"
            f"airflow: Ctrl-C stops it. Undo: rm -r {home}; {servers.UNDO}",
            flush=True,
        )
        while True:
            check()
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


if __name__ == "__main__":
    main()
