"""`bench memory`: the most that a Spark Python worker ever held, against the number of rows. It should not grow.

Each size is a run of its own, in a Spark session of its own; the kernel keeps each process's peak.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from harness.bench.contender import Address, Contender, Order
from harness.bench.processes import peak_mb, python_workers
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import SHAPES, ensure_table
from harness.errors import HarnessError
from harness.messages import say

FLAT = 1.25
"""Ten times the rows may cost this much more: buffers fill up, allocators keep some."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--shape", choices=list(SHAPES), default="mixed", help="the table (mixed: 11 columns)")
    parser.add_argument("--ten-times", action="store_true", help="ten times the rows, too")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    rows = arguments.rows
    report = Report("memory", rows)
    peaks: dict[int, list[float]] = {}
    with bench_server(directory) as server, tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
        for size in (rows // 10, rows, *([10 * rows] if arguments.ten_times else [])):
            order = Order(ensure_table(server, arguments.shape, size), size, str(Path(work) / "target"))
            say(f"bench: {size:,} rows")
            with Contender("ours", Address.of(server), logs_directory(directory) / "ours.log") as ours:
                ours.ready()
                found = ours.run(order)
                peaks[size] = [peak_mb(pid) for pid in python_workers(ours.pid)]
            shutil.rmtree(order.target, ignore_errors=True)
            if not peaks[size]:
                raise HarnessError("no Python worker of Spark was left to be measured")
            report.results.append(Result(f"worker_{size}_rows", size, found["seconds"], max(peaks[size])))
    tenth, whole = (max(own) for own in list(peaks.values())[:2])
    report.ratios["vs_tenth"] = tenth / whole
    print(f"\nbench: peaks of the Spark workers, a run of the shape {arguments.shape} each\n")
    print_table(
        ["rows", "workers", "largest peak, MB", "smallest peak, MB"],
        [[f"{size:,}", str(len(own)), f"{max(own):,.0f}", f"{min(own):,.0f}"] for size, own in peaks.items()],
    )
    largest = max(max(own) for own in peaks.values())
    print(
        f"\n{'flat' if largest <= FLAT * tenth else 'NOT flat'}: "
        f"{largest / tenth:.2f} times the peak at {rows // 10:,} rows"
    )
    print_ratios(report.ratios)
    return report
