"""`dev/demo`: copies a busy shop through Airflow and Spark, then proves, without our code, that every row is right."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from harness import shop
from harness.airflow_home import AirflowHome
from harness.cache import cache_directory
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer
from harness.plain_read import PlainRead
from harness.shop_replay import KEYS, Row, ShopReplay, comparable_row
from harness.writers import Writers

DAG = "mysql_snapshot"


@dataclass
class TableResult:
    """What the proof found for one table."""

    name: str
    rows: int
    chunks: int
    rewound: int
    wrong_in_plain: int
    differences: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="dev/demo", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the shop, over all tables")
    parser.add_argument("--writes", type=float, default=400, help="transactions a second that the writers aim at")
    arguments = parser.parse_args()
    folder = cache_directory() / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        sys.exit(_demo(folder, arguments.rows, arguments.writes))
    except HarnessError as error:
        sys.exit(f"demo: {error}")
    finally:
        for work in ("mysql", "airflow"):
            shutil.rmtree(folder / work, ignore_errors=True)


def _demo(folder: Path, rows: int, writes: float) -> int:
    lake = folder / "lake"
    with MysqlServer.start(folder / "mysql", options={"binlog_row_metadata": "FULL"}) as server:
        print(f"demo: MySQL {server.query('SELECT VERSION()')[0][0]} on port {server.port}")
        with _step(f"make a shop of about {rows:,} rows"), server.connect() as connection:
            shop.create(connection, rows)
        password = _make_user(server)
        with _step("copy it for the proof, while nobody writes"):
            replay = ShopReplay(server)
        airflow = AirflowHome(
            folder / "airflow",
            {
                "cdc_mysql": {
                    "conn_type": "cdc_mysql",
                    "host": server.host,
                    "port": server.port,
                    "login": "copier",
                    "password": password,
                }
            },
        )
        with _step("prepare an Airflow of its own"):
            airflow.prepare()
        plain = PlainRead(server, replay.columns, pause=0.4)
        writers = Writers(server.connect, accounts=len(replay.rows["accounts"]), per_second=writes)
        conf = {
            "source_conn_id": "cdc_mysql",
            "tables": [f"{shop.SCHEMA}.*"],
            "target": lake.as_uri(),
            "spark_conn_id": "spark_default",
            "chunk_rows": 50_000,
        }
        with _step(f"run the DAG {DAG} through Airflow, Spark local[2], while 4 writers write"), writers, plain:
            airflow.run("dags", "test", DAG, "--conf", json.dumps(conf), log=folder / "airflow.log")
        print(f"      the writers committed {writers.committed:,} transactions meanwhile")
        manifest = _manifest(lake)
        with _step("rebuild the shop at the initial position with mysql-replication"):
            replayed = replay.forward_to(manifest["initial_position"])
        print(f"      {replayed:,} transactions replayed to {manifest['initial_position']}")
        with _step("compare every row"):
            results = [_compare(lake, table, manifest, replay, plain) for table in shop.TABLES]
        money = _money(_counted(replay, "accounts"))
        plain_money = _money(plain.rows["accounts"])
    _report(results, manifest, money, plain_money)
    _show_reading(lake)
    print(f"\nThe Airflow log: {folder / 'airflow.log'}\nUndo: rm -r {folder}")
    return 1 if any(result.differences for result in results) else 0


def _make_user(server: MysqlServer) -> str:
    """A user with the least it takes: no LOCK TABLES, no SUPER."""
    password = "demo-password"
    for statement in (
        f"CREATE USER copier@localhost IDENTIFIED BY '{password}'",
        "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO copier@localhost",
        f"GRANT SELECT, LOCK TABLES ON {shop.SCHEMA}.* TO copier@localhost",
    ):
        server.query(statement)
    return password


@contextmanager
def _step(what: str) -> Iterator[None]:
    print(f"demo: {what} …", end="", flush=True)
    started = time.monotonic()
    try:
        yield
    except BaseException:
        print(" failed")
        raise
    print(f" {time.monotonic() - started:.1f} s", flush=True)


def _manifest(lake: Path) -> dict[str, Any]:
    (path,) = lake.glob("_runs/*/manifest.json")
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest


def _compare(lake: Path, table: str, manifest: dict[str, Any], replay: ShopReplay, plain: PlainRead) -> TableResult:
    name = f"{shop.SCHEMA}.{table}"
    columns = replay.columns[table]
    truth = _counted(replay, table)
    copied = Counter(_published(lake, name, columns))
    return TableResult(
        name,
        copied.total(),
        manifest["steps"]["snapshot"]["tables"][name]["chunks"],
        manifest["steps"]["consolidate"]["rewound"][name],
        _unlike(plain.rows[table], truth, KEYS[table]),
        _unlike(copied, truth, KEYS[table]),
    )


def _counted(replay: ShopReplay, table: str) -> Counter[Row]:
    rows = replay.rows[table]
    return rows if isinstance(rows, Counter) else Counter(rows.values())


def _money(accounts: Counter[Row]) -> Decimal:
    return sum((row[2] * count for row, count in accounts.items()), Decimal(0))


def _published(lake: Path, name: str, columns: list[str]) -> Iterator[Row]:
    for file in sorted(_latest(lake, name).glob("part-*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(columns=columns):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield comparable_row(row, columns)


def _latest(lake: Path, name: str) -> Path:
    latest = json.loads((lake / name / "_latest.json").read_text())
    return Path(unquote(urlsplit(latest["path"]).path))


def _unlike(rows: Counter[Row], truth: Counter[Row], width: int) -> int:
    """How many rows are missing, extra or different."""
    difference = (rows - truth) + (truth - rows)
    return len({row[:width] for row in difference}) if width else difference.total()


def _report(results: list[TableResult], manifest: dict[str, Any], money: Decimal, plain_money: Decimal) -> None:
    print(f"\nEvery row against the replay, at {manifest['position_key']} = {manifest['initial_position']}\n")
    print(f"{'table':<16}{'rows':>10}{'chunks':>8}{'keys rewound':>14}{'wrong in a plain read':>23}{'differences':>13}")
    for result in results:
        print(
            f"{result.name:<16}{result.rows:>10,}{result.chunks:>8}{result.rewound:>14,}"
            f"{result.wrong_in_plain:>23,}{result.differences:>13,}"
        )
    print(f"{'all':<16}{sum(r.rows for r in results):>10,}{sum(r.chunks for r in results):>8}", end="")
    print(f"{sum(r.rewound for r in results):>14,}{sum(r.wrong_in_plain for r in results):>23,}", end="")
    print(f"{sum(r.differences for r in results):>13,}")
    print(f"\nmoney in all accounts {money:,.2f}; a plain chunked read counts {plain_money:,.2f}: ", end="")
    print(f"{abs(plain_money - money):,.2f} {'too much' if plain_money > money else 'too little'}")
    steps = manifest["steps"]
    locked = steps["snapshot"]["lock_seconds"]
    print(f"longest lock {locked * 1000:.1f} ms (only the keyless table needs one)")
    seconds = [f"{name} {found['seconds']:.1f} s" for name, found in steps.items() if "seconds" in found]
    print(f"seconds per step: {', '.join(seconds)}")


def _show_reading(lake: Path) -> None:
    path = _latest(lake, f"{shop.SCHEMA}.accounts")
    print("\nRead it with")
    print(f"  PyArrow  pyarrow.parquet.read_table('{path}')")
    print(f"  DuckDB   SELECT status, sum(balance) FROM '{path}/*.parquet' GROUP BY status")
    print(f"  Spark    spark.read.parquet('{path}')")


if __name__ == "__main__":
    main()
