"""`bench delta`: files of the binary log to net changes (for every key, the row before its first change), with this
package and with mysql-replication, on the same log.

The log has repeated updates of the same keys: `bulk` in transactions of a thousand rows, `oltp` in transactions of one
row. Row images are counted; an update has two. Both contenders return the rows before as values: this package in
Arrow, the peer in Python. One file is read by one process on one core. Two files at once, and a file of a quarter of
the size, are also measured, and files that are read from disk, because a server that sends them uses a core itself.
mysql-replication reads only the beginning of the same file: its time per image is constant.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import SCHEMA, ensure_table
from harness.messages import say
from harness.mysql_server import MysqlServer

ROWS = {"bulk": 4_000_000, "oltp": 400_000}
BLOCKS = {"bulk": 1000, "oltp": 1}
"""Number of rows in one transaction."""
TOUCHED = 20
"""Number of images of each key, which is updated ten times."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", choices=list(BLOCKS), default="bulk", help="transactions of 1000 rows, or of one")
    parser.add_argument("--rounds", type=int, default=3, help="reads by this package; the fastest counts")
    parser.add_argument(
        "--peer-images", type=int, default=200_000, help="number of row images that mysql-replication reads"
    )


@dataclass(frozen=True)
class LogFile:
    """A file of the binary log, and the number of its row images."""

    name: str
    images: int


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    rows = arguments.rows or ROWS[arguments.shape]
    report = Report("delta", rows)
    with bench_server(directory) as server, tempfile.TemporaryDirectory(prefix="work-", dir=directory):
        block = BLOCKS[arguments.shape]
        keys = max(rows // TOUCHED // block, 1) * block
        table = ensure_table(server, "mixed", keys)
        small, one, other = write_logs(server, table, keys, block, rows)
        print(
            f"bench: {rows:,} row images of the shape {arguments.shape} in two files, {keys:,} keys touched in each\n"
        )
        found = {
            "ours_small_file": Order(table, small.images, files=(small.name,)),
            "ours": Order(table, one.images, files=(one.name,)),
            "ours_two_files": Order(table, one.images + other.images, files=(one.name, other.name)),
        }
        logs = logs_directory(directory)
        best: dict[str, dict[str, Any]] = {}
        with Contender("ours_delta", Address.of(server), logs / "ours_delta.log") as ours:
            ours.ready()
            first = ours.run(found["ours_small_file"])
        with Contender("ours_delta", Address.of(server), logs / "ours_delta.log") as ours:
            ours.ready()
            # Warm up, because both processes load kernels.
            ours.run(found["ours_two_files"])
            for name, order in found.items():
                for _ in range(arguments.rounds):
                    _keep_quicker(best, name, ours.run(order))
        # The peak of a process never decreases, so use the peak of a process that read only the small file.
        best["ours_small_file"]["worker_peak_mb"] = first["worker_peak_mb"]
        alone = {name: found[name] for name in ("ours", "ours_two_files")}
        with Contender("ours_delta_from_disk", Address.of(server), logs / "ours_delta_from_disk.log") as ours:
            ours.ready()
            ours.run(found["ours_two_files"])
            for name, order in alone.items():
                for _ in range(arguments.rounds):
                    _keep_quicker(best, f"{name}_from_disk", ours.run(order))
        with Contender("mysql_replication", Address.of(server), logs / "mysql_replication.log") as peer:
            peer.ready()
            say("bench: mysql-replication")
            images = min(one.images, max(arguments.peer_images // (2 * block), 1) * 2 * block)
            _keep_quicker(best, "mysql_replication", peer.run(Order(table, images, files=(one.name,))))
    for name, quickest in best.items():
        report.results.append(Result(name, quickest["rows"], quickest["seconds"], quickest["peak_rss_mb"]))
    rate = {result.name: result.rows_per_s for result in report.results}
    report.ratios["vs_mysql_replication"] = rate["ours"] / rate["mysql_replication"]
    report.ratios["vs_one_file"] = rate["ours_two_files"] / rate["ours"]
    report.ratios["vs_one_file_from_disk"] = rate["ours_two_files_from_disk"] / rate["ours_from_disk"]
    _print(report, best, first["seconds"])
    return report


def write_logs(server: MysqlServer, table: str, keys: int, block: int, images: int) -> list[LogFile]:
    """Write three log files of updates: one with an eighth of ``images``, and two with a half each."""
    files, done = [], 0
    say("bench: writing the log")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"DROP PROCEDURE IF EXISTS {SCHEMA}.churn")
        # Consecutive blocks are not neighbours in key order, and all blocks are visited in turn.
        cursor.execute(
            f"CREATE PROCEDURE {SCHEMA}.churn(start BIGINT, stop BIGINT, block BIGINT, blocks BIGINT) "
            "BEGIN DECLARE at BIGINT; WHILE start < stop DO SET at = start * 7919 % blocks * block; "
            f"UPDATE {table} SET score = score + 1 WHERE id > at AND id <= at + block; "
            "SET start = start + 1; END WHILE; END"
        )
        cursor.execute("SET SESSION sql_log_bin = 1")
        for part in (images // 8, images // 2, images // 2):
            statements = max(1, part // (2 * block))
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("SHOW BINARY LOG STATUS")
            name = cursor.fetchall()[0][0]
            cursor.execute(f"CALL {SCHEMA}.churn(%s, %s, %s, %s)", (done, done + statements, block, keys // block))
            done += statements
            files.append(LogFile(name, 2 * block * statements))
        cursor.execute("FLUSH BINARY LOGS")
    return files


def _keep_quicker(best: dict[str, dict[str, Any]], name: str, found: dict[str, Any]) -> None:
    if name not in best or found["seconds"] < best[name]["seconds"]:
        best[name] = found


def _print(report: Report, best: dict[str, dict[str, Any]], first_use: float) -> None:
    print_table(
        ["contender", "row images", "seconds", "images/s", "CPU s", "keys", "peak MB", "of one worker"],
        [
            [
                result.name,
                f"{result.rows:,}",
                f"{result.seconds:.3f}",
                f"{result.rows_per_s:,.0f}",
                f"{best[result.name]['cpu_seconds']:.3f}",
                f"{best[result.name]['keys']:,}",
                f"{result.peak_rss_mb:,.0f}",
                f"{best[result.name]['worker_peak_mb']:,.0f}" if "worker_peak_mb" in best[result.name] else "",
            ]
            for result in report.results
        ],
    )
    print(f"\nfirst use of the kernels in a new process: {first_use:.2f} s for the small file")
    print_ratios(report.ratios)
