"""`bench lake`: copies as Iceberg tables, compared with plain Parquet.

Full copies in both formats take turns, each into a new target; all steps count, from preflight to the last commit. Then
the last Iceberg copy is rolled forward after changes of keys that are spread evenly, which touch every file.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import SHAPES, ensure_table, touch
from harness.messages import say

FORMATS = ("parquet", "iceberg")
TOUCHED = 1000
STEPS = ("preflight", "lock_and_record", "snapshot", "extract_delta", "consolidate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--shape", choices=list(SHAPES), default="mixed", help="the table (mixed: 11 columns)")
    parser.add_argument("--rounds", type=int, default=3, help="number of full copies of each format; the median counts")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    rows = arguments.rows
    full: dict[str, list[dict[str, Any]]] = {name: [] for name in FORMATS}
    nights: dict[str, dict[str, Any]] = {}
    with bench_server(directory) as server, tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
        table = ensure_table(server, arguments.shape, rows)
        with Contender("ours", Address.of(server), logs_directory(directory) / "ours.log") as ours:
            ours.ready()
            say("bench: warming up")
            for name in FORMATS:
                warm = str(Path(work) / f"warm_{name}")
                ours.run(Order(table, rows, warm, format=name))
                before = touch(table, rows, 10, "scattered")
                ours.run(Order(table, rows, warm, before=before, night=1, format=name))
            for number in range(arguments.rounds):
                for name in FORMATS:
                    say(f"bench: full copy {number + 1}, {name}")
                    full[name].append(ours.run(Order(table, rows, str(Path(work) / f"{name}_{number}"), format=name)))
            for name in FORMATS:
                say(f"bench: rolling forward {TOUCHED:,} scattered changes, {name}")
                before = touch(table, rows, min(TOUCHED, rows), "scattered")
                target = str(Path(work) / f"{name}_{arguments.rounds - 1}")
                nights[name] = ours.run(Order(table, rows, target, before=before, night=1, format=name))
    return _report(rows, arguments.shape, full, nights)


def _report(rows: int, shape: str, full: dict[str, list[dict[str, Any]]], nights: dict[str, dict[str, Any]]) -> Report:
    report = Report("lake", rows)
    lines, seconds = [], {}
    for name in FORMATS:
        for kind, found in ((name, full[name]), (f"{name}_scattered", [nights[name]])):
            steps = {step: median(one["steps"][step] for one in found) for step in STEPS}
            seconds[kind] = median(sum(one["steps"][step] for step in STEPS) for one in found)
            report.results.append(Result(kind, rows, seconds[kind], found[0]["peak_rss_mb"]))
            files = f"{found[-1]['files_rewritten']} of {found[-1]['files_rewritten'] + found[-1]['files_adopted']}"
            lines.append([kind, *(f"{value:.2f}" for value in steps.values()), f"{seconds[kind]:.2f} s", files])
    report.ratios["vs_parquet_iceberg"] = seconds["parquet"] / seconds["iceberg"]
    report.ratios["vs_full_scattered_iceberg"] = seconds["iceberg"] / seconds["iceberg_scattered"]
    report.ratios["vs_full_scattered_parquet"] = seconds["parquet"] / seconds["parquet_scattered"]
    print(f"\nbench: {rows:,} rows of the shape {shape}\n")
    print_table(["", *STEPS, "all", "files rewritten"], lines)
    print_ratios(report.ratios)
    return report
