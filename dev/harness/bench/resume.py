"""`bench resume`: the share of a killed run's reading that its next try does not read again.

A process executes the snapshot step of a run. At a random instant, all of its processes are killed at once. Another
process then executes the step again, to its end. The server counts the rows that it sends to each of them. What both
have together more than one run that is not killed, was lost. Rows that the killed process had read but not yet written
count as lost, too.

The database has a table with a key, two tables without a key that are divided by the values of an indexed column, and a
small table without a key and without an index. No session writes meanwhile. The instants are drawn with a fixed seed.
The tables are small, so the parts are made small, too: a run has as many of them as a run of about 8 GB with default
settings (`--parts`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_provider_cdc.core.run.timeline import read_timeline
from airflow_provider_cdc.jobs.snapshot.read_part import DONE
from harness.bench.contender import Address
from harness.bench.processes import tree
from harness.bench.report import Report, Result, print_table
from harness.bench.server import bench_server, logs_directory, postgres_bench_server
from harness.errors import HarnessError
from harness.messages import say
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline
from harness.postgres_server import PostgresServer

SHARES = {"keyed": 0.5, "logged": 0.25, "visits": 0.2, "heap": 0.05}
"""The tables, each with its share of all rows."""
_READ = {
    "mysql": "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Innodb_rows_read'",
    "postgres": "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE schemaname = %s",
}
_READERS = {
    "mysql": "SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER = 'root' AND ID <> CONNECTION_ID()",
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender') "
    "AND pid <> pg_backend_pid()",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--kills", type=int, default=7, help="number of runs that are killed (default: 7)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the instants (default: 1)")
    parser.add_argument("--parts", type=int, default=64, help="number of parts of a run (default: 64)")
    parser.add_argument(
        "--kind", choices=["mysql", "postgres"], action="append", help="only this kind of server (default: both)"
    )


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    report = Report("resume", arguments.rows)
    directory.mkdir(parents=True, exist_ok=True)
    lines: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work:
        for kind, start in (("mysql", bench_server), ("postgres", postgres_bench_server)):
            if arguments.kind and kind not in arguments.kind:
                continue
            with start(directory) as server:
                schema, size = _ensure_tables(server, arguments.rows)
                parts, logs = arguments.parts, logs_directory(directory)
                rows = sum(round(arguments.rows * share) for share in SHARES.values())
                killing = _Killing(server, schema, rows, rows // parts, size // parts, Path(work), logs)
                try:
                    killed = _measure(killing, arguments)
                finally:
                    killing.close()
            lines += [
                [kind, f"{100 * one.parts:.0f}", f"{one.before:,}", f"{one.lost:,}", f"{100 * one.kept:.1f}"]
                for one in killed
            ]
            median = statistics.median(one.kept for one in killed)
            report.results.append(Result(f"{kind}_whole_run", arguments.rows, killing.seconds, 0.0))
            report.ratios[f"{kind}_kept"] = median
    print(f"\nbench: {arguments.kills} runs of {arguments.rows:,} rows, each killed once\n")
    print_table(["", "killed after % of the parts", "rows read", "rows read again", "% kept"], lines)
    for kind, median in report.ratios.items():
        print(f"\n{kind.removesuffix('_kept')}: {100 * median:.1f} % of the reading was kept on the median", end="")
    print()
    return report


@dataclass(frozen=True)
class _Killed:
    """A run that was killed after this share of its parts. ``before`` is the number of rows that it had read until
    then, and ``lost`` the number of rows that had to be read again."""

    parts: float
    before: int
    lost: int

    @property
    def kept(self) -> float:
        return 1 - self.lost / max(1, self.before)


def _measure(killing: _Killing, arguments: argparse.Namespace) -> list[_Killed]:
    draw = random.Random(arguments.seed)
    # The first run warms the server up. The second one shows how many rows a run reads, and when it reads them.
    killing.whole()
    whole = killing.whole()
    killed = []
    for number in range(arguments.kills):
        # A process that has just started is slow at first, so the instants are drawn by progress, and then by time.
        parts = draw.randrange(1, max(2, killing.parts))
        later = draw.uniform(0.0, 2 * killing.seconds / killing.parts)
        say(f"bench: {killing.kind}, kill {number + 1} of {arguments.kills}: {later:.2f} s after {parts} parts")
        before, after = killing.killed(parts, later)
        killed.append(_Killed(parts / killing.parts, before, max(0, before + after - whole)))
        say(f"bench: {before:,} rows were read before, {100 * killed[-1].kept:.1f} % of them were kept")
    return killed


class _App:
    """A process that executes the snapshot step of runs."""

    def __init__(self, work: Path, log: Path) -> None:
        scratch = tempfile.mkdtemp(dir=work)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.bench.resume_app", scratch],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "TMPDIR": scratch},
                text=True,
            )
        self._log = log
        self.wait_for("ready")

    def begin(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self.wait_for("reading")

    def wait_for(self, word: str) -> list[str]:
        """Wait for a line that begins with this word, and return its other words."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            first, *others = line.split() or [""]
            if first == word:
                return others
        raise HarnessError(f"the Spark app failed (see {self._log})")

    def kill(self) -> None:
        """Kill all processes of the app at once."""
        for pid in tree(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


class _Killing:
    """Runs of all tables in ``schema``. ``seconds`` is the duration of the last whole run, and ``parts`` the number of
    its parts."""

    def __init__(
        self,
        server: MysqlServer | PostgresServer,
        schema: str,
        rows: int,
        chunk_rows: int,
        part_bytes: int,
        work: Path,
        logs: Path,
    ) -> None:
        self.kind = "mysql" if isinstance(server, MysqlServer) else "postgres"
        self.seconds = 0.0
        self.parts = 0
        self._server = server
        self._schema = schema
        self._rows = rows
        self._chunk_rows = chunk_rows
        self._part_bytes = part_bytes
        self._work = work
        self._log = logs / "resume.log"
        self._runs = 0
        self._lasting = _App(work, self._log)

    def close(self) -> None:
        self._lasting.kill()

    def whole(self) -> int:
        """Execute a run, and return the number of rows that it read."""
        pipeline, first = self._begin()
        began = time.time()
        self._finish(pipeline)
        self.seconds = time.time() - began
        self.parts = len(read_timeline(pipeline.run))
        return self._read_so_far() - first

    def killed(self, parts: int, later: float) -> tuple[int, int]:
        """Execute a run that is killed ``later`` seconds after so many parts, and then again. Return the numbers of
        rows that both read."""
        pipeline, first = self._begin()
        app = _App(self._work, self._log)
        app.begin(self._order(pipeline))
        while len(pipeline.run.files(DONE)) < parts:
            time.sleep(0.02)
        time.sleep(later)
        app.kill()
        before = self._read_so_far() - first
        self._finish(pipeline)
        return before, self._read_so_far() - first - before

    def _begin(self) -> tuple[Pipeline, int]:
        self._runs += 1
        spark: Any = None
        target = (self._work / f"{self.kind}-{self._runs}").as_uri()
        settings = Address.of(self._server).settings
        pipeline = Pipeline(spark, settings, target, [f"{self._schema}.*"], chunk_rows=self._chunk_rows)
        pipeline.record()
        return pipeline, self._read_so_far()

    def _finish(self, pipeline: Pipeline) -> None:
        self._lasting.begin(self._order(pipeline))
        (rows,) = self._lasting.wait_for("done")
        pipeline.release()
        if int(rows) != self._rows:
            raise HarnessError(f"a run read {int(rows):,} rows, not {self._rows:,}")

    def _order(self, pipeline: Pipeline) -> dict[str, Any]:
        address = asdict(Address.of(self._server))
        return {"address": address, "run": pipeline.run.uri, "part_bytes": self._part_bytes}

    def _read_so_far(self) -> int:
        """Return the number of rows that the server has sent, once no session reads any more."""
        while self._server.query(_READERS[self.kind]) != self._server.query("SELECT 0"):
            time.sleep(0.1)
        arguments = () if self.kind == "mysql" else (self._schema,)
        ((count,),) = self._server.query(_READ[self.kind], arguments)
        return int(count)


def _ensure_tables(server: MysqlServer | PostgresServer, rows: int) -> tuple[str, int]:
    """Return the schema with the tables, and their size in bytes. Fill them if they do not exist."""
    schema = f"resume_{rows}"
    mysql = isinstance(server, MysqlServer)
    if not server.query("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (f"{schema}_filled",)):
        say(f"bench: filling {schema}")
        statements = _mysql_tables(schema, rows) if mysql else _postgres_tables(schema, rows)
        with server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        server.query(f"CREATE SCHEMA {schema}_filled")
    size = (
        "SELECT sum(DATA_LENGTH) FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
        if mysql
        else "SELECT sum(pg_relation_size(c.oid)) FROM pg_class c WHERE relnamespace = to_regnamespace(%s)::oid "
        "AND relkind = 'r'"
    )
    ((total,),) = server.query(size, (schema,))
    return schema, int(total)


def _mysql_tables(schema: str, rows: int) -> list[str]:
    # Do not log the filling: the binary log is for the bench itself.
    statements = [
        f"SET SESSION sql_log_bin = 0, cte_max_recursion_depth = {rows + 1}",
        f"DROP SCHEMA IF EXISTS {schema}",
        f"CREATE SCHEMA {schema}",
    ]
    at = "'2024-01-01' + INTERVAL n SECOND"
    columns = "name VARCHAR(80) NOT NULL, amount DECIMAL(12,2) NOT NULL, at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP"
    values = f"SELECT n, concat('the name of ', n), n / 8, {at} FROM numbers"
    numbers = "numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {})"
    for name, (first, index) in {
        "keyed": ("id BIGINT PRIMARY KEY", ""),
        "logged": ("id BIGINT NOT NULL AUTO_INCREMENT", ", KEY (id)"),
        "visits": ("id BIGINT", ", KEY (at)"),
        "heap": ("id BIGINT", ""),
    }.items():
        statements += [
            f"CREATE TABLE {schema}.{name} ({first}, {columns}{index})",
            f"INSERT INTO {schema}.{name} WITH RECURSIVE {numbers.format(round(rows * SHARES[name]))} {values}",
            f"ANALYZE NO_WRITE_TO_BINLOG TABLE {schema}.{name}",
        ]
    return statements


def _postgres_tables(schema: str, rows: int) -> list[str]:
    statements = [f"DROP SCHEMA IF EXISTS {schema} CASCADE", f"CREATE SCHEMA {schema}"]
    columns = "name text NOT NULL, amount numeric(12,2) NOT NULL, at timestamp NOT NULL"
    at = "timestamp '2024-01-01' + n * interval '1 second'"
    for name in SHARES:
        key = " PRIMARY KEY" if name == "keyed" else ""
        split = " PARTITION BY RANGE (at)" if name == "visits" else ""
        count = round(rows * SHARES[name])
        table = f"{schema}.{name}"
        statements.append(f"CREATE TABLE {table} (id bigint{key}, {columns}){split}")
        leaves = [table]
        if split:
            leaves = [f"{table}_{leaf}" for leaf in range(4)]
            edges = [datetime(2024, 1, 1) + timedelta(seconds=count * edge // 4) for edge in range(5)]
            edges[-1] += timedelta(seconds=1)
            for leaf, (low, high) in zip(leaves, pairwise(edges), strict=True):
                statements.append(f"CREATE TABLE {leaf} PARTITION OF {table} FOR VALUES FROM ('{low}') TO ('{high}')")
        statements.append(
            f"INSERT INTO {table} SELECT n, 'the name of ' || n, n / 8.0, {at} FROM generate_series(1, {count}) n"
        )
        if name in ("logged", "visits"):
            statements.append(f"CREATE INDEX ON {table} ({'id' if name == 'logged' else 'at'})")
        statements += [f"ALTER TABLE {leaf} REPLICA IDENTITY FULL" for leaf in {table, *leaves}]
        statements += [f"VACUUM (ANALYZE) {leaf}" for leaf in leaves]
    return statements
