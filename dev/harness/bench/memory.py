"""`bench memory`: the peak memory of Spark's Python workers, by the number of rows. It should not grow.

Each size is a separate run in a separate Spark session. The kernel records the peak of each process.
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
"""The factor by which ten times the rows may increase the peak: buffers fill up, and allocators keep memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--shape", choices=list(SHAPES), default="mixed", help="the table (mixed: 11 columns)")
    parser.add_argument("--ten-times", action="store_true", help="also measure ten times the rows")


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
                raise HarnessError("there is no Python worker of Spark to measure")
            report.results.append(Result(f"worker_{size}_rows", size, found["seconds"], max(peaks[size])))
    tenth, whole = (max(own) for own in list(peaks.values())[:2])
    report.ratios["vs_tenth"] = tenth / whole
    print(f"\nbench: peak memory of the Spark workers, one run per size, shape {arguments.shape}\n")
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
