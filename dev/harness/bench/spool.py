"""`bench spool`: the time that the changes made during a run take after its last read, with and without the spool.

A run reads a table while a session updates it, a thousand rows in each transaction. Each row is updated ten times. Row
images are counted; an update has two. With `spool` = `off`, `extract_delta` reads the whole window of the log. With
`auto`, the snapshot has recorded the log in pieces beside the reads, and `extract_delta` reads the rest. The snapshot
ends only when the piece that was begun is recorded, so the time after the last read is that of both steps.

The reads are paced so that they last longer than the writes. The run is short, so the spool looks at the log every
second here, and not every 30 seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.options.run import AUTO, OFF
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.timeline import read_timeline
from airflow_provider_cdc.jobs import spool as spooler
from harness.bench.report import Report, Result, print_table
from harness.bench.server import bench_server, postgres_bench_server
from harness.bench.spark import open_spark
from harness.errors import HarnessError
from harness.messages import say
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from harness.postgres_server import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "spooled"
BLOCK = 1000
UPDATES = 10
"""Number of updates of each row."""
CHUNKS = 40
POLL_SECONDS, PIECE_SECONDS = 1.0, 5.0
SLACK = 1.5
"""The duration of the reads, as a multiple of that of the writes without a run beside them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rows=2_000_000)
    parser.add_argument("--images", type=int, default=10_000_000, help="number of row images (default: 10000000)")
    parser.add_argument(
        "--kind", choices=["mysql", "postgres"], action="append", help="only this kind of server (default: both)"
    )


@dataclass(frozen=True)
class _Run:
    """The seconds of a run, and the numbers of its row images and of the pieces of its spool."""

    reading: float
    rest_of_snapshot: float
    extract_delta: float
    consolidate: float
    images: int
    pieces: int

    @property
    def after_reads(self) -> float:
        return self.rest_of_snapshot + self.extract_delta


def run(arguments: argparse.Namespace, directory: Path) -> Report:
    report = Report("spool", arguments.rows)
    directory.mkdir(parents=True, exist_ok=True)
    lines: list[list[str]] = []
    spooler.POLL_SECONDS, spooler.PIECE_SECONDS = POLL_SECONDS, PIECE_SECONDS
    with tempfile.TemporaryDirectory(prefix="work-", dir=directory) as work, open_spark(work) as spark:
        for kind, start in (("mysql", bench_server), ("postgres", postgres_bench_server)):
            if arguments.kind and kind not in arguments.kind:
                continue
            with start(directory) as server:
                writer = _Writer(server, arguments.rows, arguments.images)
                runs = {spool: _measure(spark, server, writer, Path(work), spool) for spool in (OFF, AUTO)}
                server.query(f"DROP SCHEMA {SCHEMA}" + ("" if kind == "mysql" else " CASCADE"))
            for spool, one in runs.items():
                lines.append([f"{kind}, {spool}", f"{one.images:,}", str(one.pieces)])
                lines[-1] += [f"{seconds:.1f}" for seconds in (one.reading, one.after_reads, one.consolidate)]
                report.results.append(Result(f"{kind}_{spool}", one.images, one.after_reads, 0.0))
            report.ratios[f"{kind}_vs_off"] = runs[OFF].after_reads / runs[AUTO].after_reads
    print(f"\nbench: {arguments.rows:,} rows, changed during the run\n")
    print_table(["spool", "row images", "pieces", "reads s", "after the last read s", "consolidate s"], lines)
    return report


class _Writer:
    """Updates all rows of the table, block by block and again, until ``images`` row images are in the log."""

    def __init__(self, server: MysqlServer | PostgresServer, rows: int, images: int) -> None:
        self.seconds = 0.0
        self._server = server
        self._rows = rows
        self._images = images
        self.keys = min(rows, images // (2 * UPDATES))
        say(f"bench: filling {rows:,} rows")
        mysql = isinstance(server, MysqlServer)
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
        statements = [
            f"DROP SCHEMA IF EXISTS {SCHEMA}{'' if mysql else ' CASCADE'}",
            f"CREATE SCHEMA {SCHEMA}",
            f"CREATE TABLE {SCHEMA}.orders (id BIGINT PRIMARY KEY, amount BIGINT, note VARCHAR(80))",
            f"INSERT INTO {SCHEMA}.orders {numbers} SELECT i, i, concat('the note of order ', i) FROM n",
            f"ANALYZE {'TABLE ' if mysql else ''}{SCHEMA}.orders",
        ]
        if mysql:
            statements.insert(0, f"SET SESSION sql_log_bin = 0, cte_max_recursion_depth = {rows + 1}")
        else:
            statements.append(f"ALTER TABLE {SCHEMA}.orders REPLICA IDENTITY FULL")
        with server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def write(self) -> None:
        began, images, first = time.monotonic(), 0, 1
        with self._server.connect() as connection, connection.cursor() as cursor:
            while images < self._images:
                between = f"id BETWEEN {first} AND {first + BLOCK - 1}"
                cursor.execute(f"UPDATE {SCHEMA}.orders SET amount = amount + 1 WHERE {between}")
                images += 2 * BLOCK
                first = first + BLOCK if first + BLOCK <= self.keys else 1
        self.seconds = time.monotonic() - began


def _measure(
    spark: SparkSession, server: MysqlServer | PostgresServer, writer: _Writer, work: Path, spool: str
) -> _Run:
    rows = int(server.query(f"SELECT count(*) FROM {SCHEMA}.orders")[0][0])
    # Without the spool, all is written before the reads, which are not paced. Two tasks read at the same time.
    pause = 2 * SLACK * writer.seconds / CHUNKS if spool == AUTO else 0.0
    say(f"bench: a run with spool = {spool}")
    pipeline = Pipeline(
        spark,
        settings_of(server),
        (work / f"{spool}-{server.port}").as_uri(),
        [f"{SCHEMA}.*"],
        chunk_rows=max(1000, rows // CHUNKS),
        chunk_pause=pause,
        spool=spool,
    )
    pipeline.record()
    writing = Thread(target=writer.write)
    writing.start()
    if spool == OFF:
        writing.join()
    began = time.time()
    pipeline.snapshot()
    ended = time.time()
    if writing.is_alive():
        raise HarnessError("the writes took longer than the reads: the machine is too busy")
    last_read = max(bar.began + bar.seconds for bar in read_timeline(pipeline.run))
    delta = pipeline.extract_delta()
    extracted = time.time()
    pieces = len(Run.load(pipeline.run).pieces())
    pipeline.consolidate()
    consolidated = time.time()
    pipeline.release()
    return _Run(
        last_read - began,
        ended - last_read,
        extracted - ended,
        consolidated - extracted,
        int(delta["row_images"]),
        pieces,
    )
