"""`bench postgres`: a table to Parquet, and a slot's changes to net changes, with this package and the peers, in turns.

The snapshot is measured as in `bench snapshot`. The limit is `psql`, which copies in binary and discards the data, over
as many connections as this package uses. The delta is measured on updates of the same table in a slot: the time of one
process to reduce them to net changes and to decode the rows before, compared with receiving and discarding the same
messages. `postgres_again` measures runs without REPLICA IDENTITY FULL.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from harness.bench import postgres_again
from harness.bench.contender import Address, Contender, Order
from harness.bench.postgres_tables import SHAPES, churn, ensure_table
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import logs_directory, postgres_bench_server
from harness.bench.snapshot import OURS, WARM_UP_ROWS, fill, kernels_first_use, measure, print_measured
from harness.messages import say

PEERS = {
    "spark_jdbc": "Spark JDBC, 8 partitions, to Parquet",
    "connectorx_parquet": "connectorx to PyArrow Parquet, one process",
    "dlt_connectorx": "dlt with connectorx, to Parquet",
    "psql_copy": "the limit: psql, binary COPY, data discarded",
}
BLOCKS = {"bulk": 500, "oltp": 1}
"""Number of rows that one transaction changes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--shape", choices=list(SHAPES), default="mixed", help="the table (mixed: 11 columns)")
    parser.add_argument("--rounds", type=int, default=3, help="number of copies of each size; the fastest counts")
    parser.add_argument("--changes", type=int, default=200_000, help="number of rows to change for the delta")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    rows, shape = arguments.rows, arguments.shape
    report = Report("postgres", rows)
    with (
        postgres_bench_server(directory) as server,
        tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work,
    ):
        address, logs = Address.of(server), logs_directory(directory)
        tables = {
            "warm": Order(ensure_table(server, shape, WARM_UP_ROWS), WARM_UP_ROWS),
            "small": Order(ensure_table(server, shape, rows // 4), rows // 4),
            "large": Order(ensure_table(server, shape, rows), rows),
        }
        version = server.query("SHOW server_version")[0][0]
        print(f"bench: PostgreSQL {version}, {rows // 4:,} and {rows:,} rows of the shape {shape}\n")
        kernels = kernels_first_use(address, tables["warm"], Path(work), logs)
        measured = measure(address, [*OURS, *PEERS], tables, arguments.rounds, Path(work), logs)
        changed = Order(ensure_table(server, shape, rows // 4), 0)
        deltas = {kind: _delta(address, logs, changed, rows // 4, arguments, block) for kind, block in BLOCKS.items()}
        again = postgres_again.measured(server, tables, arguments.rounds, Path(work), logs)
    fill(report, measured, limits={"psql_copy"})
    print_measured(measured, {**OURS, **PEERS}, kernels)
    lines = []
    for kind, found in deltas.items():
        report.results.append(Result(f"delta_{kind}", found["rows"], found["seconds"], found["peak_rss_mb"]))
        report.results.append(Result(f"delta_{kind}_drain", found["rows"], found["drained"], found["peak_rss_mb"]))
        report.ratios[f"vs_drain_delta_{kind}"] = found["drained"] / found["seconds"]
        figures = (found["seconds"], found["drained"])
        lines.append([f"{kind}: {found['rows']:,} changes", *(f"{s:.2f}" for s in figures)])
        lines[-1] += [f"{found['rows'] / s:,.0f}" for s in figures]
    print()
    print_table(["delta", "ours s", "drain s", "ours changes/s", "drain changes/s"], lines)
    postgres_again.fill(report, again, measured[0])
    print_ratios(report.ratios)
    print("(rates are slopes where both have one; psql is compared with ours without writing)")
    return report


def _delta(
    address: Address, logs: Path, table: Order, keys: int, arguments: argparse.Namespace, block: int
) -> dict[str, Any]:
    changes = arguments.changes // block * block
    order = Order(table.table, changes, meanwhile=churn(table.table, keys, changes, block))
    with Contender("ours_slot", address, logs / "ours_slot.log") as ours:
        ours.ready()
        say(f"bench: {changes:,} changes, {block} in a transaction")
        return ours.run(order)
