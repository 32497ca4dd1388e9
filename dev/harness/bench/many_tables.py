"""`bench many-tables`: hundreds of small tables, on both databases, compared with a loop over the tables.

Fixed costs dominate here: planning, sessions, tasks and files. The bench reports the seconds of the snapshot step and
the sessions that it opened on the server. The peer is connectorx: one table after the other, each to a Parquet file, in
one process.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory, postgres_bench_server
from harness.messages import say
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer

CONTENDERS = {"ours": "the snapshot step, to Parquet", "connectorx_each": "connectorx, table by table, to Parquet"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=50_000)
    parser.add_argument("--tables", type=int, default=500, help="number of tables (default: 500)")
    parser.add_argument("--rounds", type=int, default=3, help="number of copies; the fastest counts (default: 3)")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    tables, each = arguments.tables, arguments.rows // arguments.tables
    report = Report("many-tables", tables * each)
    lines, steps = [], []
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
        for kind, start in (("mysql", bench_server), ("postgres", postgres_bench_server)):
            with start(directory) as server:
                schema = _ensure_tables(server, tables, each)
                order = Order(f"{schema}.*", tables * each, str(Path(work) / "target"))
                best = _measure(Address.of(server), order, arguments.rounds, logs_directory(directory))
            for name, found in best.items():
                report.results.append(Result(f"{kind}_{name}", order.rows, found["seconds"], found["peak_rss_mb"]))
                lines.append([f"{kind}: {CONTENDERS[name]}", f"{found['seconds']:.2f}", str(found["sessions"])])
            report.ratios[f"vs_connectorx_each_{kind}"] = best["connectorx_each"]["seconds"] / best["ours"]["seconds"]
            each_step = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in best["ours"]["steps"].items())
            steps.append(f"{kind}: ours, step by step: {each_step}")
    print(f"\nbench: {tables} tables of {each:,} rows; the fastest of {arguments.rounds} copies\n")
    print_table(["", "seconds", "sessions"], lines)
    print("", *steps, sep="\n")
    print_ratios(report.ratios)
    return report


def _measure(address: Address, order: Order, rounds: int, logs: Path) -> dict[str, dict[str, Any]]:
    """Return the result of each contender's fastest copy. The contenders copy in turns, after one warm-up each."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    with ExitStack() as stack:
        contenders = [stack.enter_context(Contender(name, address, logs / f"{name}.log")) for name in CONTENDERS]
        for contender in contenders:
            contender.ready()
        for turn in range(rounds + 1):
            for contender in contenders:
                say(f"bench: {address.kind}, round {turn}, {contender.name}")
                found[contender.name].append(contender.run(order))
                shutil.rmtree(order.target)
    return {name: min(copies[1:], key=lambda copy: copy["seconds"]) for name, copies in found.items()}


def _ensure_tables(server: MysqlServer | PostgresServer, tables: int, rows: int) -> str:
    """Return the schema with the tables, each with the keys 1 to ``rows``. Fill it if it does not exist."""
    schema = f"many_{tables}_{rows}"
    mysql = isinstance(server, MysqlServer)
    marker = f"{schema}_filled"
    if server.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (marker,)):
        return schema
    say(f"bench: filling {schema}")
    moment = "'2024-01-01' + INTERVAL n SECOND" if mysql else "timestamp '2024-01-01' + n * interval '1 second'"
    numbers = (
        f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows}) "
        f"SELECT n, concat('name ', n), n / 8, {moment} FROM numbers"
    )
    with server.connect() as connection, connection.cursor() as cursor:
        if mysql:
            # Do not log the filling: the binary log is for the bench itself.
            cursor.execute(f"SET SESSION sql_log_bin = 0, cte_max_recursion_depth = {rows + 1}")
        cursor.execute(f"DROP SCHEMA IF EXISTS {schema}{'' if mysql else ' CASCADE'}")
        cursor.execute(f"CREATE SCHEMA {schema}")
        for number in range(tables):
            name = f"{schema}.t{number:04}"
            cursor.execute(
                f"CREATE TABLE {name} (id INT PRIMARY KEY, name VARCHAR(80) NOT NULL, amount DECIMAL(12,2) NOT NULL, "
                f"at {'DATETIME' if mysql else 'timestamp'} NOT NULL)"
            )
            cursor.execute(f"INSERT INTO {name} {numbers}")
            cursor.execute(f"ANALYZE{' NO_WRITE_TO_BINLOG TABLE' if mysql else ''} {name}")
            if not mysql:
                cursor.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        cursor.execute(f"CREATE SCHEMA {marker}")
    return schema
