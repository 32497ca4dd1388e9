"""`bench as-of`: a copy as of a time before many row images, compared with a current copy and with reading that log.

The bench measures two things. The first is the cost of the past: a current copy takes little more than its snapshot,
but a copy as of the past also reads and rewinds the log in between. The time for the log alone is measured twice: at
the rate of one file in one process (the rate of `bench delta`), and with all files in one process per core. All are
done in turns, and the fastest of each counts, as in `bench delta`.
The second is the time to find the position of a time among a hundred files of the log.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Contender, Order
from harness.bench.delta import write_logs
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import ensure_table
from harness.messages import say
from harness.mysql_server import MysqlServer

FILES = 100
IMAGES_A_FILE = 2_000
TIMES = 9
BLOCK = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=10_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; the fastest of each kind counts")
    parser.add_argument("--keys", type=int, default=1_000_000, help="rows of the table (--rows are the row images)")


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    images, keys = arguments.rows, max(arguments.keys // BLOCK, 1) * BLOCK
    report = Report("as-of", images)
    with bench_server(directory) as server, tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
        table, address, logs = ensure_table(server, "mixed", keys), Address.of(server), logs_directory(directory)
        target = Path(work) / "target"
        before = _mark(server)
        files = write_logs(server, table, keys, BLOCK, images)
        largest = max(files, key=lambda file: file.images)
        whole = Order(table, sum(file.images for file in files), files=tuple(file.name for file in files))
        with (
            Contender("ours_delta", address, logs / "ours_delta.log") as log,
            Contender("ours", address, logs / "ours.log") as ours,
        ):
            log.ready()
            ours.ready()
            orders: dict[str, Callable[[], dict[str, Any]]] = {
                "now": lambda: _copy(ours, Order(table, keys, str(target))),
                "past": lambda: _copy(ours, Order(table, keys, str(target), as_of=before)),
                "log": lambda: log.run(whole),
                "one file": lambda: log.run(Order(table, largest.images, files=(largest.name,))),
            }
            # The first round loads kernels and starts programs, so it does not count.
            rounds = [{name: order() for name, order in orders.items()} for _ in range(arguments.rounds + 1)][1:]
        found = _find_times(server, address, table, keys)
    now, past = (min((one[name] for one in rounds), key=_reading) for name in ("now", "past"))
    netted, one_file = (
        min((one[name] for one in rounds), key=lambda one: float(one["seconds"])) for name in ("log", "one file")
    )
    reading = {"now": _reading(now), "past": _reading(past)}
    report.results += [
        Result("now", keys, reading["now"], now["peak_rss_mb"]),
        Result("past", keys, reading["past"], past["peak_rss_mb"]),
        Result("log_alone", netted["rows"], netted["seconds"], netted["peak_rss_mb"]),
        Result("log_alone_one_file", one_file["rows"], one_file["seconds"], one_file["peak_rss_mb"]),
        Result("find_a_time", FILES, statistics.median(found), 0.0),
    ]
    at_rate_of_one = netted["rows"] / one_file["rows"] * one_file["seconds"]
    report.ratios["vs_snapshot_and_log"] = (reading["now"] + at_rate_of_one) / reading["past"]
    report.ratios["vs_snapshot_and_log_in_parallel"] = (reading["now"] + netted["seconds"]) / reading["past"]
    # Preflight scans that log first, to detect problems that would otherwise stop the run only at its end.
    after_it = {name: reading[name] - one["steps"]["preflight"] for name, one in (("now", now), ("past", past))}
    report.ratios["vs_snapshot_and_log_after_preflight"] = (after_it["now"] + at_rate_of_one) / after_it["past"]
    print(f"\nbench: {keys:,} rows, as of a time {netted['rows']:,} row images ago\n")
    print_table(
        ["", *_STEPS, "keys rewound"],
        [
            [name, *(f"{one['steps'][step]:.2f} s" for step in _STEPS), f"{one['rewound']:,}"]
            for name, one in (("now", now), ("past", past))
        ],
    )
    print(
        f"\nthe log alone: {netted['seconds']:.2f} s in two processes; {at_rate_of_one:.2f} s at the rate of one file "
        f"in one process ({one_file['rows'] / one_file['seconds']:,.0f} row images/s)"
    )
    print(
        f"a time among {FILES} files: {statistics.median(found):.2f} s (median of {len(found)}; "
        f"{min(found):.2f} to {max(found):.2f})"
    )
    print_ratios(report.ratios)
    return report


_READING = ("preflight", "lock_and_record", "snapshot", "extract_delta")
_STEPS = (*_READING, "consolidate")


def _reading(one: dict[str, Any]) -> float:
    return float(sum(one["steps"][step] for step in _READING))


def _copy(ours: Contender, order: Order) -> dict[str, Any]:
    say(f"bench: a copy as of {order.as_of or 'now'}")
    try:
        return ours.run(order)
    finally:
        shutil.rmtree(order.target, ignore_errors=True)


def _find_times(server: MysqlServer, address: Address, table: str, keys: int) -> list[float]:
    # Import here, because kernels take some time to load, and other benches do not need them.
    from airflow_provider_cdc.sources.mysql.log.prefixes import prefix_at

    say(f"bench: writing {FILES} files of the log")
    begun = datetime.now(UTC)
    with server.connect() as connection, connection.cursor() as cursor:
        for number in range(FILES):
            low = number * 7919 % max(keys // IMAGES_A_FILE, 1) * IMAGES_A_FILE // 2
            cursor.execute(
                f"UPDATE {table} SET score = score + 1 WHERE id > %s AND id <= %s", (low, low + IMAGES_A_FILE // 2)
            )
            cursor.execute("FLUSH BINARY LOGS")
    ended = datetime.now(UTC)
    dice, seconds = random.Random(0), []
    for _ in range(TIMES + 1):
        when = begun + dice.random() * (ended - begun)
        started = time.perf_counter()
        prefix_at(address.settings, when)
        seconds.append(time.perf_counter() - started)
    # The first call loads the kernels.
    return seconds[1:]


def _mark(server: MysqlServer) -> str:
    """Return a time with a commit before it, and no commit in the same second."""
    server.query("CREATE DATABASE IF NOT EXISTS bench_mark")
    time.sleep(1.5)
    mark = datetime.now(UTC) - timedelta(milliseconds=200)
    time.sleep(0.5)
    return mark.isoformat()
