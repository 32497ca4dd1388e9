"""`bench postgres-source-impact`: the effect of a copy on PostgreSQL's writers, for this package and for pg_dump.

Four writers commit as fast as they can, alone and during a copy. On the server, the bench samples the age of the
oldest transaction of the copy, and the age of the oldest transaction ID that a snapshot of the copy still needs (VACUUM
removes no row that died later).
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
from harness.bench.postgres_tables import churn, ensure_table
from harness.bench.report import Report
from harness.bench.server import logs_directory, postgres_bench_server
from harness.bench.traffic import WRITER, PostgresTraffic
from harness.messages import say
from harness.postgres_server import PostgresServer

LIMITS = {"max_reads": 1, "max_rows_per_second": 50_000, "governor": {"threads_running": 5}}
"""The limits of the governed copy. The four writers alone have up to four running threads, and the governor one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument(
        "--alone-seconds", type=float, default=5.0, help="seconds for which the writers are measured alone"
    )


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    report, rows = Report("postgres-source-impact", arguments.rows), arguments.rows
    with postgres_bench_server(directory) as server, ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="work-", dir=directory)))
        table, warm = ensure_table(server, "mixed", rows), ensure_table(server, "mixed", 10_000)
        contenders = {}
        for name in ("ours", "pg_dump"):
            say(f"bench: starting {name}")
            log = logs_directory(directory) / f"{name}.log"
            contenders[name] = stack.enter_context(Contender(name, Address.of(server), log))
            contenders[name].ready()
            contenders[name].run(Order(warm, 10_000, str(work / "warm"), meanwhile=churn(warm, 10_000, 100, 1)))
            shutil.rmtree(work / "warm")
        ours, order = contenders["ours"], Order(table, rows, str(work / "target"))
        phases = [
            ("ours", ours, order),
            ("ours_governed", ours, replace(order, limits=LIMITS)),
            ("pg_dump", contenders["pg_dump"], order),
        ]
        traffic = stack.enter_context(PostgresTraffic(server, table, rows))
        observer = PostgresObserver(server)
        impacts = measure(observer, traffic, phases, arguments.alone_seconds)
    fill(report, impacts, observer, ("pg_dump",))
    return report


class PostgresObserver:
    """Observes a PostgreSQL server."""

    held_back = "xmin age"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def watch(self) -> PostgresWatch:
        return PostgresWatch(self._server)


class PostgresWatch(Sampler):
    """Samples the copier's transactions while the block runs."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self.held_back = 0
        self.longest_transaction = 0.0
        self._connection = server.connect()

    def _sample(self) -> None:
        row = self._connection.execute(
            # Sessions of replication have no snapshot while they send the log.
            "SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8, "
            "coalesce(max(age(backend_xmin)), 0) FROM pg_stat_activity "
            "WHERE application_name <> %s AND backend_type = 'client backend'",
            (WRITER,),
        ).fetchone()
        assert row is not None
        self.longest_transaction = max(self.longest_transaction, row[0])
        self.held_back = max(self.held_back, row[1])

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._connection.close()
