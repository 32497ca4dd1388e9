"""`bench refresh`: rolling a copy forward, compared with a full copy of the same table.

After one full copy, several nights each roll the last copy forward, after no changes, changes of neighbouring keys, or
changes of keys that are spread evenly (which touch every file). The steps of a night, including preflight, are timed
together in one running Spark session, and so are the steps of the full copy.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import SHAPES, ensure_table, touch
from harness.messages import say

NIGHTS = ((0, ""), (1000, "hot"), (1000, "scattered"), (100_000, "scattered"))
NAMES = {"": "unchanged", "hot": "neighbours", "scattered": "scattered"}
STEPS = ("preflight", "lock_and_record", "snapshot", "extract_delta", "consolidate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--shape", choices=list(SHAPES), default="mixed", help="the table (mixed: 11 columns)")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    rows = arguments.rows
    found: dict[str, dict[str, Any]] = {}
    with bench_server(directory) as server, tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
        table, target = ensure_table(server, arguments.shape, rows), Path(work) / "target"
        with Contender("ours", Address.of(server), logs_directory(directory) / "ours.log") as ours:
            ours.ready()
            say("bench: warming up")
            warm = str(Path(work) / "warm")
            ours.run(Order(table, rows, warm))
            ours.run(Order(table, rows, warm, before=touch(table, rows, 10, "scattered"), night=1))
            say("bench: a full copy")
            found["full"] = ours.run(Order(table, rows, str(target)))
            for night, (touched, place) in enumerate(NIGHTS, 1):
                name = f"{touched}_{NAMES[place]}" if touched else NAMES[place]
                say(f"bench: rolling forward, {name}")
                before = touch(table, rows, min(touched, rows), place) if touched else ()
                found[name] = ours.run(Order(table, rows, str(target), before=before, night=night))
    return _report(rows, arguments.shape, found)


def _report(rows: int, shape: str, found: dict[str, dict[str, Any]]) -> Report:
    report = Report("refresh", rows)
    seconds = {name: sum(one["steps"][step] for step in STEPS) for name, one in found.items()}
    for name, one in found.items():
        report.results.append(Result(name, rows, seconds[name], one["peak_rss_mb"]))
        if name != "full":
            report.ratios[f"vs_full_{name}"] = seconds["full"] / seconds[name]
    print(f"\nbench: {rows:,} rows of the shape {shape}\n")
    print_table(
        ["", *STEPS, "all", "of full", "files rewritten", "files kept"],
        [
            [
                name,
                *(f"{one['steps'][step]:.2f}" for step in STEPS),
                f"{seconds[name]:.2f} s",
                f"{seconds[name] / seconds['full']:.1%}",
                str(one["files_rewritten"]),
                str(one["files_adopted"]),
            ]
            for name, one in found.items()
        ],
    )
    print_ratios(report.ratios)
    return report
