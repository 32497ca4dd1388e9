"""`bench source-impact`: the effect of a copy on writers, for this package and for dumps.

Four writers commit as fast as they can, alone and during a copy. On the server, the bench measures the longest
transaction of the copying user (performance_schema), the history list length (the undo log that purge cannot remove
because a transaction may still read it), and how long a lock on the table was held.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.background import Sampler
from harness.bench.contender import Address, Contender, Order
from harness.bench.report import Report, Result, print_ratios, print_table
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import ensure_table, touch
from harness.bench.traffic import Span, Traffic
from harness.messages import say
from harness.mysql_server import MysqlServer

COPIER = "copier"
SETTLE_SECONDS = 1.0
LIMITS = {"max_reads": 1, "max_rows_per_second": 100_000, "governor": {"threads_running": 5}}
"""The limits of the governed copy. The four writers alone have up to four running threads, and the governor one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument(
        "--alone-seconds", type=float, default=5.0, help="seconds for which the writers are measured alone"
    )


@dataclass(frozen=True)
class Impact:
    """The effect of one copy on the source. ``longest_transaction`` is in seconds."""

    span: Span
    longest_transaction: float = 0.0
    history_list: int = 0
    lock_seconds: float = 0.0
    peak_rss_mb: float = 0.0


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    rows = arguments.rows
    impacts: dict[str, Impact] = {}
    with bench_server(directory) as server, ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="work-", dir=directory)))
        table, warm = ensure_table(server, "mixed", rows), ensure_table(server, "mixed", 10_000)
        _make_copier(server)
        contenders = {}
        for name in ("ours", "mysqldump", "mysqldump_locked"):
            say(f"bench: starting {name}")
            log = logs_directory(directory) / f"{name}.log"
            contenders[name] = stack.enter_context(Contender(name, Address.of(server, COPIER), log))
            contenders[name].ready()
            contenders[name].run(Order(warm, 10_000, str(work / "warm"), meanwhile=touch(warm, 10_000, 100, "hot")))
            shutil.rmtree(work / "warm")
        watermark, lock = (Order(table, rows, str(work / "target"), consistency=how) for how in ("watermark", "lock"))
        traffic = stack.enter_context(Traffic(server, table, rows))
        phases = [("ours", "ours", watermark), ("ours_lock", "ours", lock)]
        phases += [("ours_governed", "ours", replace(watermark, limits=LIMITS))]
        phases += [(name, name, watermark) for name in ("mysqldump", "mysqldump_locked")]
        impacts["alone"] = _observe(server, traffic, partial(_pause, arguments.alone_seconds))
        for name, contender, order in phases:
            say(f"bench: writers and {name}")
            impacts[name] = _observe(server, traffic, partial(_copy, contenders[contender], order))
        impacts["alone_again"] = _observe(server, traffic, partial(_pause, arguments.alone_seconds))
    return _report(rows, impacts)


def _make_copier(server: MysqlServer) -> None:
    # Do not log these statements, because they are not part of the measured work.
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"CREATE USER IF NOT EXISTS {COPIER}@localhost")
        cursor.execute(f"GRANT ALL ON *.* TO {COPIER}@localhost")


def _pause(seconds: float) -> dict[str, Any]:
    time.sleep(seconds)
    return {}


def _copy(contender: Contender, order: Order) -> dict[str, Any]:
    try:
        return contender.run(order)
    finally:
        shutil.rmtree(order.target, ignore_errors=True)


def _observe(server: MysqlServer, traffic: Traffic, work: Callable[[], dict[str, Any]]) -> Impact:
    time.sleep(SETTLE_SECONDS)
    server.query("TRUNCATE performance_schema.events_transactions_summary_by_user_by_event_name")
    with HistoryList(server) as history:
        traffic.begin()
        found = work()
        span = traffic.span()
    ((picoseconds,),) = server.query(
        "SELECT COALESCE(MAX(max_timer_wait), 0) "
        "FROM performance_schema.events_transactions_summary_by_user_by_event_name WHERE user = %s",
        (COPIER,),
    )
    return Impact(
        span, int(picoseconds) / 1e12, history.longest, found.get("lock_seconds", 0.0), found.get("peak_rss_mb", 0.0)
    )


class HistoryList(Sampler):
    """Samples the length of the history list while the block runs."""

    def __init__(self, server: MysqlServer) -> None:
        super().__init__()
        self.longest = 0
        self._connection = server.connect()

    def _sample(self) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
            self.longest = max(self.longest, int(cursor.fetchall()[0][0]))

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._connection.close()


def _report(rows: int, impacts: dict[str, Impact]) -> Report:
    report = Report("source-impact", rows)
    alone = (impacts["alone"].span.per_second + impacts["alone_again"].span.per_second) / 2
    lines = []
    for name, impact in impacts.items():
        span = impact.span
        report.results.append(Result(f"writers_{name}", span.commits, span.seconds, impact.peak_rss_mb))
        copying = not name.startswith("alone")
        # A dump with locks holds them from beginning to end.
        locked = span.seconds if name == "mysqldump_locked" else impact.lock_seconds
        lines.append(
            [
                f"writers, {name}",
                f"{span.seconds:.2f}",
                f"{span.per_second:,.0f}",
                f"{span.per_second / alone:.0%}",
                f"{span.worst_seconds * 1000:,.0f}",
                f"{impact.longest_transaction * 1000:,.0f}" if copying else "",
                f"{impact.history_list:,}",
                f"{locked * 1000:,.0f}" if copying else "",
            ]
        )
    for name in ("mysqldump", "mysqldump_locked"):
        report.ratios[f"vs_{name}"] = impacts["ours"].span.per_second / max(impacts[name].span.per_second, 1e-9)
    report.ratios["vs_alone_governed"] = impacts["ours_governed"].span.per_second / max(alone, 1e-9)
    print(f"\nbench: a copy of {rows:,} rows while four writers commit; ours: the whole run, preflight to publishing\n")
    print_table(
        ["", "seconds", "commits/s", "of alone", "worst commit ms", "longest trx ms", "history list", "lock ms"], lines
    )
    print_ratios(report.ratios)
    print("(ratios of the writers' commits per second while the copy is made)")
    return report
