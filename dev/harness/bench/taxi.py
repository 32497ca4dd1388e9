"""Rows per CPU second of the client, on the columns of the public taxi data: both databases, both formats.

The shape ``taxi`` is one table, with the columns of the yellow trips. The shape ``taxi-mixture`` has the proportions of
the public benchmark: of the rows, 14 % are yellow trips, and 86 % for-hire trips. The table of the zones comes on top.

Published results of other programs for this table count the processor time of the program that copies, not of the
server. So a copy here is a whole run, from preflight to the last commit, and its CPU seconds are those of all processes
of the client: Spark's driver, JVM and workers. Servers are not counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from harness.bench import postgres_tables, tables
from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_table
from harness.bench.server import bench_server, logs_directory, postgres_bench_server
from harness.messages import say

TAXI, MIXTURE = "taxi", "taxi-mixture"
TRIPS_SHARE = 0.14
"""The share of the yellow trips in the mixture."""
ZONES = 265
FORMATS = ("parquet", "iceberg")
WARM_UP_ROWS = 10_000
_Server = Callable[[Path], AbstractContextManager[Any]]
DATABASES: dict[str, tuple[_Server, Callable[[Any, str, int], str]]] = {
    "mysql": (bench_server, tables.ensure_table),
    "postgres": (postgres_bench_server, postgres_tables.ensure_table),
}


def run(shape: str, rows: int, rounds: int, directory: Path) -> Report:
    report = Report("snapshot", rows)
    lines = []
    for database, (start, ensure_table) in DATABASES.items():
        with start(directory) as server, tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
            orders = {}
            for size in (WARM_UP_ROWS, rows):
                tables_by_rows = [(ensure_table(server, one, count), count) for one, count in _parts(shape, size)]
                names, counts = zip(*tables_by_rows, strict=True)
                orders[size] = Order(",".join(names), sum(counts))
            best = _best(Address.of(server), orders, rounds, Path(work), logs_directory(directory) / f"{database}.log")
        for name, found in best.items():
            seconds, copied = sum(found["steps"].values()), orders[rows].rows
            report.results.append(Result(f"{database}_{name}", copied, seconds, found["peak_rss_mb"]))
            cpu = found["cpu_seconds"]
            figures = [f"{seconds:.2f}", f"{copied / seconds:,.0f}", f"{cpu:.2f}", f"{copied / cpu:,.0f}"]
            lines.append([f"{database}, {name}", *figures])
    print(f"\nbench: {rows:,} rows of the shape {shape}; the copy with the least CPU seconds of {rounds}\n")
    print_table(["", "s", "rows/s", "client CPU s", "rows/client CPU s"], lines)
    return report


def _parts(shape: str, rows: int) -> list[tuple[str, int]]:
    """Return the shapes of the tables, each with its number of rows."""
    if shape == TAXI:
        return [(TAXI, rows)]
    trips = round(rows * TRIPS_SHARE)
    return [(TAXI, trips), ("fhv", rows - trips), ("zones", ZONES)]


def _best(address: Address, orders: dict[int, Order], rounds: int, work: Path, log: Path) -> dict[str, dict[str, Any]]:
    """Return, by format, the copy with the least CPU seconds."""
    best: dict[str, dict[str, Any]] = {}
    with Contender("ours", address, log) as ours:
        ours.ready()
        for size, order in orders.items():
            for number in range(rounds):
                for name in FORMATS:
                    say(f"bench: {address.kind}, {size:,} rows, copy {number + 1}, {name}")
                    target = tempfile.mkdtemp(dir=work)
                    found = ours.run(Order(order.table, order.rows, f"{target}/lake", format=name))
                    if size != WARM_UP_ROWS and found["cpu_seconds"] < best.get(name, found)["cpu_seconds"] + 1e-9:
                        best[name] = found
    return best
