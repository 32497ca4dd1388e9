"""Runs over a real server in this process, whose log is spooled by hand between the reads of their parts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_cdc.core.run.ledger import Link
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.jobs.certificate import build, scrub
from airflow_provider_cdc.jobs.consolidate import stage
from airflow_provider_cdc.jobs.extract_delta import read_window
from airflow_provider_cdc.jobs.roll_forward import merge, plan
from airflow_provider_cdc.jobs.runtime import verify_files
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot import parts, read
from airflow_provider_cdc.jobs.spool import Spooler
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer

Server = MysqlServer | PostgresServer
ROWS = 60


class SpooledRun:
    """A run of two tables, ``shop.orders`` with a key and ``shop.events`` without one.

    ``between`` is called after the read of each part. ``same_source`` is the source of the attempt that spools; None:
    another attempt spools. ``expected`` has the rows at the run's position.
    """

    def __init__(self, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.server = server
        self.between: Callable[[], object] = lambda: None
        self.random = random.Random(7)
        self.read_parts: Sequence[Any] = ()
        self.reading_source: Any = None
        self.same_source: Any = None
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=8))
        options = {"chunk_rows": 10} | options
        self.pipeline = Pipeline(spark, settings_of(server), folder.as_uri(), ["shop.*"], **options)
        monkeypatch.setattr(parts, "SMALLEST_PART_BYTES", 1)
        for module in (read, read_window, stage, verify_files, plan, merge, build, scrub):
            monkeypatch.setattr(module, "run_tasks", self._run_tasks)
        self.pipeline.record()
        self.manifest = Run.load(self.pipeline.run).manifest
        self.expected = self.rows()

    def _run_tasks(
        self,
        spark: Any,
        title: str,
        orders: Sequence[Any],
        work: Any,
        done: Any = lambda result: None,
        *,
        meanwhile: Any = lambda: None,
        **arguments: Any,
    ) -> list[Any]:
        results: dict[int, Any] = {}
        if title == "read chunks":
            self.read_parts, self.reading_source = orders, work.source
        # The parts are read in any order, so some are read before the table without a key, and some after it.
        for index in self.random.sample(range(len(orders)), len(orders)):
            done(results.setdefault(index, work(orders[index])))
            meanwhile()
            if title == "read chunks":
                self.between()
        return [results[index] for index in range(len(orders))]

    def rows(self) -> dict[str, Counter[Any]]:
        return {name: Counter(self.server.query(f"SELECT * FROM shop.{name}")) for name in ("orders", "events")}

    def spooler(self) -> Spooler:
        """A spooler as an attempt of the snapshot step has it."""
        run = Run.load(self.pipeline.run)
        source = self.pipeline.source.of_run(run.expected_identity(), run.manifest.initial)
        spark: Any = None
        return Spooler(Step(spark, run, source if self.same_source is None else self.same_source))

    def links(self) -> list[Link]:
        return [*Run.load(self.pipeline.run).pieces()]

    def change(self, count: int = 10, *, keyed: bool = False) -> None:
        """Commit random changes of both tables: inserts, updates, changes of keys and deletes.

        :param keyed: change only the table with a key.
        """
        draw = self.random.randrange
        for _ in range(count):
            key, other = draw(ROWS), draw(ROWS, 2 * ROWS)
            self.server.query(
                (
                    f"UPDATE shop.orders SET note = 'n{draw(99)}' WHERE id = {key}",
                    f"DELETE FROM shop.orders WHERE id = {key}",
                    f"DELETE FROM shop.orders WHERE id = {other}",
                    f"UPDATE shop.orders SET id = {other + ROWS * draw(2, 9**6)} WHERE id = {key}",
                    f"INSERT INTO shop.orders (id, note) VALUES ({3 * ROWS + draw(9**9)}, 'new')",
                    f"INSERT INTO shop.events VALUES ({draw(5)}, 'x'), ({draw(5)}, 'x')",
                    f"DELETE FROM shop.events WHERE a = {draw(5)}",
                    f"UPDATE shop.events SET b = 'y{draw(3)}' WHERE a = {draw(5)}",
                )[draw(5 if keyed else 8)]
            )

    def log_of_position_is_gone(self) -> bool:
        """Whether the server has removed the log in which the run began."""
        if isinstance(self.server, MysqlServer):
            names = {name for name, *_ in self.server.query("SHOW BINARY LOGS")}
            return MysqlFacts.of(self.manifest.identity).place.file not in names
        ((begun,),) = self.server.query("SELECT pg_walfile_name(%s)", (self.manifest.initial_position,))
        return begun not in {name for (name,) in self.server.query("SELECT name FROM pg_ls_waldir()")}

    def finish(self) -> None:
        """Execute the steps after ``record``, and compare the copies with the rows at the run's position."""
        found = self.pipeline.finish()
        for name, rows in self.expected.items():
            _, copied = published(found["published"][f"shop.{name}"])
            assert Counter(copied) == rows, name


def make_tables(server: Server) -> None:
    server.query("CREATE SCHEMA shop")
    server.query("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, note VARCHAR(900))")
    server.query("CREATE TABLE shop.events (a INT, b VARCHAR(20))")
    if isinstance(server, PostgresServer):
        for name in ("orders", "events"):
            server.query(f"ALTER TABLE shop.{name} REPLICA IDENTITY FULL")
    server.query("INSERT INTO shop.orders VALUES " + ", ".join(f"({number}, '{'o' * 800}')" for number in range(ROWS)))
    server.query("INSERT INTO shop.events VALUES " + ", ".join(f"({number % 5}, 'e')" for number in range(ROWS)))
    server.query("ANALYZE TABLE shop.orders" if isinstance(server, MysqlServer) else "ANALYZE shop.orders")


def rotate(server: Server) -> None:
    server.query("FLUSH BINARY LOGS" if isinstance(server, MysqlServer) else "SELECT pg_switch_wal()")


def purge(server: Server, before: str = "") -> None:
    """Remove all log files before the current file, or before the file ``before`` (MySQL), as far as the server may."""
    if isinstance(server, MysqlServer):
        if not before or before in {name for name, *_ in server.query("SHOW BINARY LOGS")}:
            server.purge_log(before)
    else:
        server.query("CHECKPOINT")
