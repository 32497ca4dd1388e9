"""`bench consolidate`: the time of rewinding and publishing by the number of touched keys, compared with the snapshot.

For each number, a run records the initial position, then keys are updated (a contiguous range at the end of the table:
hot; or spread evenly: scattered), and then the steps snapshot, extract_delta and consolidate are timed in one running
Spark session.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import SHAPES, ensure_table, touch
from harness.messages import say

STEPS = (0, 1000, 100_000)
"""Numbers of touched keys. A run with all keys touched is added."""
FEW = 100_000
"""Up to this many keys, fixed costs and noise dominate, so the fastest of three runs counts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--shape", choices=list(SHAPES), default="mixed", help="the table (mixed: 11 columns)")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    rows = arguments.rows
    cases = [(touched, place) for touched in STEPS if 0 < touched < rows for place in ("hot", "scattered")]
    cases = [(0, ""), *cases, (rows, "all")]
    best: dict[tuple[int, str], dict[str, Any]] = {}
    with bench_server(directory) as server, tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
        table = ensure_table(server, arguments.shape, rows)
        address, target = Address.of(server), Path(work) / "target"
        with Contender("ours", address, logs_directory(directory) / "ours.log") as ours:
            ours.ready()
            say("bench: warming up")
            _run(ours, Order(table, rows, str(target), meanwhile=touch(table, rows, 1, "hot")))
            for touched, place in cases:
                say(f"bench: {touched:,} keys {place}")
                order = Order(table, rows, str(target), meanwhile=touch(table, rows, touched, place))
                runs = [_run(ours, order) for _ in range(3 if touched <= FEW else 1)]
                best[touched, place] = min(runs, key=lambda found: found["steps"]["consolidate"])
    return _report(rows, arguments.shape, best)


def _run(ours: Contender, order: Order) -> dict[str, Any]:
    try:
        return ours.run(order)
    finally:
        shutil.rmtree(order.target, ignore_errors=True)


def _report(rows: int, shape: str, best: dict[tuple[int, str], dict[str, Any]]) -> Report:
    report = Report("consolidate", rows)
    # All runs make the same snapshot. The fastest one is the strictest reference for the steps after it.
    snapshot = min(found["steps"]["snapshot"] for found in best.values())
    lines: list[Sequence[str]] = []
    for (touched, place), found in best.items():
        steps = found["steps"]
        name = f"{touched}_{place}" if place in ("hot", "scattered") else place or "0"
        report.results.append(Result(f"consolidate_{name}", rows, steps["consolidate"], found["peak_rss_mb"]))
        report.ratios[f"vs_snapshot_{name}"] = snapshot / steps["consolidate"]
        lines.append(
            [
                f"{touched:,} {place}",
                f"{found['rewound']:,}",
                f"{steps['extract_delta']:.2f}",
                f"{steps['consolidate']:.2f}",
                f"{steps['consolidate'] / snapshot:.0%}",
                str(found["files_rewritten"]),
                str(found["files_adopted"]),
            ]
        )
    report.results.append(Result("snapshot", rows, snapshot, max(found["peak_rss_mb"] for found in best.values())))
    print(f"\nbench: {rows:,} rows of the shape {shape}; the snapshot step takes {snapshot:.2f} s\n")
    print_table(
        ["touched keys", "rewound", "extract s", "consolidate s", "of snapshot", "files rewritten", "files adopted"],
        lines,
    )
    print_ratios(report.ratios)
    return report
