"""``dev/demo shards``: two MySQL servers and one target. A key is on both servers: it is found, removed, and the table
is published. Then the table is rolled forward."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from harness.airflow_home import AirflowHome
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer

Step = Callable[[str], AbstractContextManager[None]]
SHOPS = {"cdc_eu": ("shop_1", "shop_2"), "cdc_us": ("shop_3", "shop_4")}
_ORDERS = "id BIGINT PRIMARY KEY, customer VARCHAR(20) NOT NULL, cents INT NOT NULL"
_ERROR = re.compile(r"\[CDC-1110\].*?(?= \[airflow|\n)")
_DAG = "merged_orders"
Row = tuple[Any, ...]


def show(folder: Path, step: Step, rows: int) -> bool:
    """Run the demo. Return whether any row differs, or the collision was not found."""
    print("demo: two MySQL servers, one table")
    with MysqlServer.start(folder / "eu-server") as eu, MysqlServer.start(folder / "us-server") as us:
        servers = {"cdc_eu": eu, "cdc_us": us}
        with step(f"create {sum(map(len, SHOPS.values()))} shops of {rows:,} orders, one order on both servers"):
            _fill(servers, rows)
            us.query("INSERT INTO shop_3.orders VALUES (7, 'moved by hand', 100)")
        connections = {
            name: {"conn_type": "cdc_mysql", "host": server.host, "port": server.port, "login": "root"}
            for name, server in servers.items()
        }
        airflow = AirflowHome(folder / "shards-airflow", connections)
        airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(__file__).parent / "dags")
        with step("prepare a private Airflow"):
            airflow.prepare()
        lake, log = folder / "shards_lake", folder / "shards.log"
        with step(f"run the DAG {_DAG}: both servers are read at the same time"):
            failed = _run(airflow, lake, log)
        error = _ERROR.search(log.read_text())
        print("      the task publish_merged failed, and nothing is published:")
        print(f"      {error[0] if error else 'no error'}")
        found = failed and error is not None and not (lake / "shop.orders").exists()
        with step("remove the row, write to both servers, and run the DAG again"):
            us.query("DELETE FROM shop_3.orders WHERE id = 7")
            _write(servers, rows, 1)
            failed = _run(airflow, lake, log)
        differences = _compare(lake, servers, failed)
        with step("write to both servers, and run the DAG once more"):
            _write(servers, rows, 2)
            failed = _run(airflow, lake, log)
        differences += _compare(lake, servers, failed)
    print(f"\nThe Airflow log: {log}", end="\n\n")
    return bool(differences) or not found


def _fill(servers: Mapping[str, MysqlServer], rows: int) -> None:
    for number, (source, shop) in enumerate((source, shop) for source, shops in SHOPS.items() for shop in shops):
        first = number * rows
        servers[source].query(f"CREATE DATABASE {shop}")
        servers[source].query(f"CREATE TABLE {shop}.orders ({_ORDERS})")
        values = ", ".join(f"({first + row}, 'customer {row % 97}', {row % 1000})" for row in range(rows))
        servers[source].query(f"INSERT INTO {shop}.orders VALUES {values}")


def _write(servers: Mapping[str, MysqlServer], rows: int, night: int) -> None:
    for number, (source, shop) in enumerate((source, shop) for source, shops in SHOPS.items() for shop in shops):
        first = number * rows
        servers[source].query(f"UPDATE {shop}.orders SET cents = cents + 1 WHERE id % 50 = {night}")
        servers[source].query(f"DELETE FROM {shop}.orders WHERE id = {first + 10 + night}")
        servers[source].query(f"INSERT INTO {shop}.orders VALUES ({10**9 + 10 * night + number}, 'new', 1)")


def _run(airflow: AirflowHome, lake: Path, log: Path) -> bool:
    """Run the DAG. Return whether it failed."""
    try:
        airflow.run("dags", "test", _DAG, "--conf", json.dumps({"target": lake.as_uri()}), log=log)
    except HarnessError:
        return True
    return False


def _compare(lake: Path, servers: Mapping[str, MysqlServer], failed: bool) -> int:
    """Compare the merged table with the idle servers. Return the number of differences."""
    latest = json.loads((lake / "shop.orders" / "_latest.json").read_text()) if not failed else {"shards": []}
    truth: Counter[Row] = Counter()
    for source, shops in SHOPS.items():
        for shop in shops:
            read = servers[source].query(f"SELECT id, customer, cents FROM {shop}.orders")
            truth.update((*row, source, shop) for row in read)
    copied: Counter[Row] = Counter()
    if not failed:
        table = pq.read_table(unquote(urlsplit(latest["path"]).path))
        names = ("id", "customer", "cents", "_source", "_schema")
        copied.update(zip(*(table[name].to_pylist() for name in names), strict=True))
    differences = ((copied - truth) + (truth - copied)).total()
    for shard in latest["shards"]:
        print(f"      {shard['shard']:<24}{shard['rows']:>9,} rows")
    for one in latest.get("positions", ()):
        print(f"      exact at {one['source']} {one['position']}")
    print(f"      {differences:,} differences from the servers")
    return differences
