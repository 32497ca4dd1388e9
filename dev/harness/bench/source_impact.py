"""`bench source-impact`: the effect of a copy on writers, for this package and for dumps.

Four writers commit as fast as they can, alone and during a copy. On the server, the bench measures the longest
transaction of the copying user (performance_schema), the history list length (the undo log that purge cannot remove
because a transaction may still read it), and how long a lock on the table was held.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.background import Sampler
from harness.bench.contender import Address, Contender, Order
from harness.bench.impact import fill, measure
from harness.bench.report import Report
from harness.bench.server import bench_server, logs_directory
from harness.bench.tables import ensure_table, touch
from harness.bench.traffic import MysqlTraffic
from harness.messages import say
from harness.mysql_server import MysqlServer

COPIER = "copier"
"""The user of all copies, so that the server can tell their transactions from those of the writers."""
LIMITS = {"max_reads": 1, "max_rows_per_second": 50_000, "governor": {"threads_running": 5}}
"""The limits of the governed copy. The four writers alone have up to four running threads, and the governor one."""
DUMPS = ("mysqldump", "mysqldump_locked")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument(
        "--alone-seconds", type=float, default=5.0, help="seconds for which the writers are measured alone"
    )


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    report, rows = Report("source-impact", arguments.rows), arguments.rows
    with bench_server(directory) as server, ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="work-", dir=directory)))
        table, warm = ensure_table(server, "mixed", rows), ensure_table(server, "mixed", 10_000)
        make_copier(server)
        contenders = {}
        for name in ("ours", *DUMPS):
            say(f"bench: starting {name}")
            log = logs_directory(directory) / f"{name}.log"
            contenders[name] = stack.enter_context(Contender(name, Address.of(server, COPIER), log))
            contenders[name].ready()
            contenders[name].run(Order(warm, 10_000, str(work / "warm"), meanwhile=touch(warm, 10_000, 100, "hot")))
            shutil.rmtree(work / "warm")
        ours, order = contenders["ours"], Order(table, rows, str(work / "target"))
        phases = [
            ("ours", ours, order),
            ("ours_lock", ours, replace(order, consistency="lock")),
            ("ours_governed", ours, replace(order, limits=LIMITS)),
            *((name, contenders[name], order) for name in DUMPS),
        ]
        traffic = stack.enter_context(MysqlTraffic(server, table, rows))
        observer = MysqlObserver(server)
        impacts = measure(observer, traffic, phases, arguments.alone_seconds)
    fill(report, impacts, observer, DUMPS)
    return report


def make_copier(server: MysqlServer) -> None:
    """Create the user of all copies."""
    # Do not log these statements, because they are not part of the measured work.
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"CREATE USER IF NOT EXISTS {COPIER}@localhost")
        cursor.execute(f"GRANT ALL ON *.* TO {COPIER}@localhost")


class MysqlObserver:
    """Observes a MySQL server."""

    held_back = "history list"

    def __init__(self, server: MysqlServer) -> None:
        self._server = server

    def watch(self) -> MysqlWatch:
        return MysqlWatch(self._server)


class MysqlWatch(Sampler):
    """Samples the length of the history list while the block runs. The server itself times transactions."""

    def __init__(self, server: MysqlServer) -> None:
        super().__init__()
        self.held_back = 0
        self.longest_transaction = 0.0
        self._server = server
        self._connection = server.connect()
        server.query("TRUNCATE performance_schema.events_transactions_summary_by_user_by_event_name")

    def _sample(self) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
            self.held_back = max(self.held_back, int(cursor.fetchall()[0][0]))

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._connection.close()
        ((picoseconds,),) = self._server.query(
            "SELECT COALESCE(MAX(max_timer_wait), 0) "
            "FROM performance_schema.events_transactions_summary_by_user_by_event_name WHERE user = %s",
            (COPIER,),
        )
        self.longest_transaction = int(picoseconds) / 1e12
