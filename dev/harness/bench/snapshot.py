"""`bench snapshot`: a table to Parquet, with this package and the peers, each in its own process, in turns.

Two sizes are copied. The slope between them is the rate, and the time at zero rows is the fixed cost. The time of a
copy is the time of the call that makes it: interpreters, imports, JVMs and Spark sessions are started before. Every
contender first copies a small table, so that the cost of the first use does not count. For this package, that cost is
measured separately.

With ``--shape taxi`` and ``taxi-mixture``, both databases are copied by this package alone, to Parquet and to Iceberg:
see `taxi`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.bench import taxi
from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.slope import Line
from harness.bench.tables import SHAPES, ensure_table
from harness.messages import say

PEERS = {
    "spark_jdbc": "Spark JDBC, 8 partitions, to Parquet",
    "connectorx_parquet": "connectorx to PyArrow Parquet, one process",
    "dlt_connectorx": "dlt with connectorx, to Parquet",
    "mysqldump": "mysqldump --single-transaction to a file",
    "debezium": "Debezium embedded, to JSON in memory",
    "pymysql_unbuffered": "PyMySQL unbuffered, nothing written",
    "drain": "the limit: raw bytes received and discarded",
}
DEFAULT_PEERS = ("spark_jdbc", "connectorx_parquet", "dlt_connectorx", "drain")
OURS = {"ours": "ours: the snapshot step, to Parquet", "ours_decode": "ours: Arrow batches, nothing written"}
WARM_UP_ROWS = 10_000
SLOW_SECONDS = 20.0
"""A contender that takes longer than this copies only once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--shape", choices=[*SHAPES, taxi.MIXTURE], default="mixed", help="the table")
    parser.add_argument(
        "--peers",
        default=",".join(DEFAULT_PEERS),
        help=f"comma-separated list of {', '.join(PEERS)}; or all, or none (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of copies of each size; the fastest counts")


@dataclass
class Measured:
    """The fastest copies of one contender at two sizes."""

    name: str
    small: dict[str, Any] = field(default_factory=dict)
    large: dict[str, Any] = field(default_factory=dict)
    peak_rss_mb: float = 0.0

    def add(self, size: str, found: dict[str, Any]) -> None:
        best = getattr(self, size)
        if not best or found["seconds"] < best["seconds"]:
            setattr(self, size, found)
        if size == "large":
            self.peak_rss_mb = max(self.peak_rss_mb, found["peak_rss_mb"])

    def line(self) -> Line:
        return Line(self.small["rows"], self.small["seconds"], self.large["rows"], self.large["seconds"])


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    if arguments.shape in (taxi.TAXI, taxi.MIXTURE):
        return taxi.run(arguments.shape, arguments.rows, arguments.rounds, directory)
    peers = _chosen(arguments.peers)
    rows, shape = arguments.rows, arguments.shape
    report = Report("snapshot", rows)
    with bench_server(directory) as server:
        tables = {
            "warm": Order(ensure_table(server, shape, WARM_UP_ROWS), WARM_UP_ROWS),
            "small": Order(ensure_table(server, shape, rows // 4), rows // 4),
            "large": Order(ensure_table(server, shape, rows), rows),
        }
        print(f"bench: {rows // 4:,} and {rows:,} rows of the shape {shape}; seconds of the fastest of", end=" ")
        print(f"{arguments.rounds} copies; memory summed over the contender's processes\n")
        with tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
            logs = logs_directory(directory)
            kernels = kernels_first_use(Address.of(server), tables["warm"], Path(work), logs)
            measured = measure(Address.of(server), [*OURS, *peers], tables, arguments.rounds, Path(work), logs)
    fill(report, measured, limits={"drain"})
    print_measured(measured, {**OURS, **PEERS}, kernels)
    print_ratios(report.ratios)
    print("(rates are slopes where both have one; drain is compared with ours without writing)")
    return report


def _chosen(peers: str) -> list[str]:
    if peers == "all":
        return list(PEERS)
    chosen = [] if peers == "none" else peers.split(",")
    if unknown := set(chosen) - set(PEERS):
        raise SystemExit(f"bench: no such peer: {', '.join(sorted(unknown))} (there are: {', '.join(PEERS)})")
    return chosen


def measure(
    address: Address, names: Sequence[str], tables: dict[str, Order], rounds: int, work: Path, logs: Path
) -> list[Measured]:
    """Let the contenders copy a ``small`` and a ``large`` table in turns, after a ``warm`` one."""
    with ExitStack() as stack:
        contenders = [stack.enter_context(Contender(name, address, logs / f"{name}.log")) for name in names]
        measured = [Measured(name) for name in names]
        for contender in contenders:
            say(f"bench: warming up {contender.name}")
            contender.ready()
            _copy(contender, tables["warm"], work)
        for turn in range(rounds):
            for contender, one in zip(contenders, measured, strict=True):
                if turn and one.large["seconds"] > SLOW_SECONDS:
                    continue
                say(f"bench: round {turn + 1}, {contender.name}")
                # Spark ends workers that are idle for a minute, so start them again before the measured copy.
                _copy(contender, tables["small"], work)
                for size in ("small", "large"):
                    one.add(size, _copy(contender, tables[size], work))
    return measured


def kernels_first_use(address: Address, warm: Order, work: Path, logs: Path) -> list[float]:
    """Return the seconds for reading a small table with kernels compiled, loaded from the cache, and in memory."""
    seconds = []
    for _ in range(2):
        environment = {"NUMBA_CACHE_DIR": str(work / "numba")}
        with Contender("ours_one_process", address, logs / "kernels.log", environment) as contender:
            contender.ready()
            seconds += [_copy(contender, warm, work)["seconds"] for _ in range(2)]
    compiled, _, loaded, in_memory = seconds
    return [compiled, loaded, in_memory]


def _copy(contender: Contender, order: Order, work: Path) -> dict[str, Any]:
    target = work / "target"
    try:
        return contender.run(replace(order, target=str(target)))
    finally:
        shutil.rmtree(target, ignore_errors=True)


def fill(report: Report, measured: Sequence[Measured], limits: Set[str]) -> None:
    """Add results and ratios to the report. ``limits`` are peers that write nothing. They are compared with this
    package without writing."""
    for one in measured:
        for found in (one.small, one.large):
            name = one.name if found is one.large else f"{one.name}_{found['rows']}_rows"
            report.results.append(Result(name, found["rows"], found["seconds"], found["peak_rss_mb"]))
    by_name = {one.name: one for one in measured}
    for one in measured:
        if one.name not in OURS:
            ours = by_name["ours_decode" if one.name in limits else "ours"]
            report.ratios[f"vs_{one.name}"] = _rate(ours) / _rate(one)


def _rate(one: Measured) -> float:
    """Return the rows per second without the fixed cost, if it is known; otherwise with it."""
    line = one.line()
    return line.rows_per_s or line.rows / line.seconds


def print_measured(measured: Sequence[Measured], titles: Mapping[str, str], kernels: Sequence[float]) -> None:
    """Print the results of `measure` and `kernels_first_use`."""
    rows = []
    for one in measured:
        line = one.line()
        slope, fixed = line.rows_per_s, line.fixed_seconds
        rows.append(
            [
                titles[one.name],
                f"{one.small['seconds']:.2f}",
                f"{one.large['seconds']:.2f}",
                f"{line.rows / line.seconds:,.0f}",
                f"{slope:,.0f}" if slope else "too noisy",
                f"{fixed:.2f}" if fixed is not None else "",
                f"{one.large['cpu_seconds']:.2f}",
                f"{one.peak_rss_mb:,.0f}",
            ]
        )
    small, large = measured[0].small["rows"], measured[0].large["rows"]
    print_table(
        ["contender", f"s for {small:,}", f"s for {large:,}", "rows/s", "slope, rows/s", "fixed s", "CPU s", "peak MB"],
        rows,
    )
    print("\nours, step by step: ", end="")
    for size in (measured[0].small, measured[0].large):
        print(
            f"{size['rows']:,} rows:",
            ", ".join(f"{name} {value:.2f} s" for name, value in size["steps"].items()),
            end="; ",
        )
    compiled, loaded, in_memory = kernels
    print(
        f"\nfirst use, {WARM_UP_ROWS:,} rows: {compiled:.2f} s if kernels must be compiled, once per machine; "
        f"{loaded:.2f} s in each new worker, which loads them from the cache; {in_memory:.2f} s after that"
    )
