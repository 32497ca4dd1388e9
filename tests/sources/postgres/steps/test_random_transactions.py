"""Random transactions of any kind: the server survives the calls of a run, and the copies are right.

The transactions are large or small, nested, aborted, prepared or ended by the server. They have DDL, large values,
large objects, sequences and logical messages. Little memory for decoding makes the server take its rare paths. The
oracle is the server itself, asked at each of the times.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

import psycopg
import pytest

from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.tables.table import Evolution, TableName
from airflow_provider_cdc.sources.planning.point import record_point
from harness.errors import HarnessError
from harness.postgres_binaries import installations
from harness.postgres_contrib import MAJOR, contrib_options
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.seeds import seeds
from tests.sources.postgres.standing import RUN_ID, Kept
from tests.sources.postgres.steps.schema_nights import Row, after_the_night, started

DATABASE = "busy"
COPIED = ("stock", "notes")
ALTERED = "changing"
WRITERS, STEPS, TIMES = 4, 500, 3


@dataclass
class Writer:
    """A session whose transactions are interleaved with those of the other sessions."""

    connection: psycopg.Connection
    drawn: random.Random
    open: bool = False
    savepoints: int = 0


@dataclass
class Writers:
    """All sessions, and the transactions that they have prepared."""

    server: PostgresServer
    drawn: random.Random
    sessions: list[Writer] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    number: int = 0

    def begin(self) -> Writer:
        connection = self.server.connect(database=DATABASE)
        connection.execute("SET lock_timeout = '20ms'; SET client_min_messages = error")
        return Writer(connection, self.drawn)

    def step(self) -> None:
        while len(self.sessions) < WRITERS:
            self.sessions.append(self.begin())
        writer = self.drawn.choice(self.sessions)
        if not writer.open:
            writer.connection.execute("BEGIN")
            writer.open, writer.savepoints = True, 0
        what = self.drawn.random()
        try:
            if what < 0.72:
                writer.connection.execute(self.statement().encode())
            elif what < 0.84:
                self.nest(writer)
            else:
                self.end(writer)
        except psycopg.errors.OperationalError as error:
            if error.sqlstate in ("55P03", "40P01"):
                writer.connection.execute("ROLLBACK")
                writer.open = False
                return
            self.sessions.remove(writer)
            writer.connection.close()
            self.server.query("SELECT 1")
        except psycopg.Error:
            writer.connection.execute("ROLLBACK")
            writer.open = False

    def nest(self, writer: Writer) -> None:
        if not writer.savepoints or self.drawn.random() < 0.5:
            writer.savepoints += 1
            writer.connection.execute(f"SAVEPOINT s{writer.savepoints}".encode())
            return
        to = self.drawn.randint(1, writer.savepoints)
        released = self.drawn.random() < 0.4
        writer.connection.execute(f"{'RELEASE' if released else 'ROLLBACK TO'} s{to}".encode())
        writer.savepoints = to - released

    def end(self, writer: Writer) -> None:
        how = self.drawn.choice(("COMMIT",) * 5 + ("ROLLBACK",) * 4 + ("PREPARE",) * 2 + ("terminate",))
        if how == "terminate":
            self.server.query("SELECT pg_terminate_backend(%s, 60000)", (writer.connection.info.backend_pid,))
            writer.connection.close()
            self.sessions.remove(writer)
            return
        writer.open = False
        if how != "PREPARE":
            writer.connection.execute(how.encode())
            return
        self.number += 1
        name = f"p{self.number}"
        writer.connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
        self.prepared.append(name)
        if len(self.prepared) > 3:
            self.finish_prepared()

    def finish_prepared(self) -> None:
        name = self.prepared.pop(self.drawn.randrange(len(self.prepared)))
        self.server.query(f"{self.drawn.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{name}'", database=DATABASE)

    def statement(self) -> str:
        self.number += 1
        number, drawn = self.number, self.drawn
        rows = drawn.choice((1, 1, 20, 400, 3000))
        table = drawn.choice((*COPIED, *COPIED, ALTERED, "app", "app", "app"))
        key = f"{number} * 10000 + i"
        value = drawn.choice(("'short'", "repeat('x', 100)", "repeat(md5(i::text), 300)"))
        rows = min(rows, 50) if "300" in value else rows
        few = f"id % {drawn.choice((2, 7, 50))} = {drawn.choice((0, 1))}"
        changes: tuple[Callable[[], str], ...] = (
            lambda: f"INSERT INTO {table} (id, v) SELECT {key}, {value} FROM generate_series(1, {rows}) i",
            lambda: (
                f"INSERT INTO {table} (id, v) SELECT {key}, {value} FROM generate_series(1, {rows}) i "
                "ON CONFLICT DO NOTHING"
            ),
            lambda: f"UPDATE {table} SET v = 'v{number}' WHERE {few}",
            lambda: f"DELETE FROM {table} WHERE {few}",
            lambda: f"TRUNCATE {drawn.choice(('app', 'app', 'other'))}",
            lambda: f"SELECT pg_logical_emit_message({drawn.random() < 0.5}, 'app', repeat('m', {rows * 100}))",
            lambda: "SELECT nextval('numbers'), setval('numbers', 1000)",
            lambda: f"SELECT lo_put(lo_create(0), 0, decode(repeat('ab', {rows * 40}), 'hex'))",
            lambda: f"CREATE TABLE made{number} AS SELECT i, {value} FROM generate_series(1, {rows}) i",
            lambda: f"ALTER TABLE app ADD c{number} int DEFAULT {drawn.choice(('1', 'random() * 9'))}",
            lambda: f"ALTER TABLE {ALTERED} ADD c{number} int DEFAULT 1",
            lambda: f"ALTER TABLE {ALTERED} ALTER v TYPE {drawn.choice(('text', 'varchar(20000)'))}",
            lambda: "CREATE TEMP TABLE IF NOT EXISTS t (i int); INSERT INTO t VALUES (1)",
            lambda: f"CREATE INDEX ON {drawn.choice(('app', 'stock'))} (v) WHERE id < 0",
            lambda: f"ALTER TYPE mood ADD VALUE 'm{number}'",
            lambda: "ANALYZE app",
            lambda: (
                f"DO $$BEGIN INSERT INTO app (id, v) SELECT {key}, {value} FROM generate_series(1, {rows}) i; "
                f"RAISE SQLSTATE 'P0009'; EXCEPTION WHEN SQLSTATE 'P0009' THEN DELETE FROM {table} WHERE {few}; END$$"
            ),
        )
        weights = (9, 3, 6, 4, 2, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 3)
        return drawn.choices(changes, weights)[0]()

    def close(self) -> None:
        for writer in self.sessions:
            writer.connection.close()
        while self.prepared:
            self.finish_prepared()


@pytest.mark.parametrize("seed", seeds())
def test_the_server_survives_and_the_copies_are_right(postgres_factory: PostgresFactory, seed: int) -> None:
    drawn = random.Random(seed)
    majors = [binaries.major for binaries in installations()]
    major = majors[seed % len(majors)]
    options = {"logical_decoding_work_mem": "64kB"}
    if major == MAJOR:
        # Without a mirror of packages, the test is a little weaker.
        with suppress(HarnessError):
            options |= contrib_options()
    server = postgres_factory(options, major)
    server.query(f"CREATE DATABASE {DATABASE}")
    kept = Kept(server, DATABASE)
    night = started(
        kept,
        [*COPIED, ALTERED],
        "CREATE TYPE mood AS ENUM ('a'); CREATE SEQUENCE numbers",
        *(f"CREATE TABLE {name} (id bigint PRIMARY KEY, v text)" for name in ("stock", ALTERED, "other", "app")),
        "CREATE TABLE notes (id bigint, v text)",
        *(f"INSERT INTO {name} SELECT i, 'first' FROM generate_series(1, 100) i" for name in (*COPIED, ALTERED)),
    )
    bases = {table.name: night.rows(table) for table in night.point.tables}
    copied = [table for table in night.point.tables if table.name.name in COPIED]
    running = server.query("SELECT pg_postmaster_start_time()")
    writers = Writers(server, drawn)
    truths: list[tuple[datetime, dict[TableName, Counter[Row]]]] = []
    for step in range(STEPS):
        writers.step()
        if step % (STEPS // TIMES) == STEPS // TIMES - 1:
            truths.append((kept.clock(), {table.name: Counter(night.rows(table)) for table in copied}))
        if drawn.random() < 0.02:
            server.query("CHECKPOINT")
    writers.close()

    for when, truth in truths:
        asked = replace(kept.options, as_of=as_of.text_of(when))
        kept.check(when, *COPIED)
        plans = [replace(plan, base="before", base_position=str(night.point.position)) for plan in kept.plans(*COPIED)]
        point = record_point(kept.source, asked, plans, RUN_ID)
        rolled = after_the_night(night, point, point.tables, {table.name: bases[table.name] for table in point.tables})
        kept.source.release(RUN_ID)
        assert rolled == truth, (seed, when)
    evolutions: dict[TableName, Evolution] = {}
    refused = night.asked(evolutions)
    assert refused.keys() <= {ALTERED}, refused
    if evolutions:
        point = night.next(evolutions)
        tables = [replace(table, eras=evolutions[table.name].eras) for table in point.tables]
        rolled = after_the_night(night, point, tables, {table.name: bases[table.name] for table in tables})
        assert rolled == {table.name: Counter(night.rows(table)) for table in tables}, seed
    kept.forget()
    assert server.query("SELECT pg_postmaster_start_time()") == running
