"""The two databases of chaos tests: writers that survive faults, a way to crash the server, and an oracle."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pymysql

from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standing_record import name_of
from harness import oracle
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of
from harness.postgres_recovery import PostgresRecovery
from harness.postgres_server import PostgresServer
from tests.consistency.mysql import history as mysql_history
from tests.consistency.postgres import history as postgres_history
from tests.consistency.writing import Write, Writing

PAUSE = 0.03
"""Of each writer: some hundred transactions a second, for what they do takes from the steps' share of the machine."""

Rows = Counter[tuple[Any, ...]]


class World(ABC):
    """A server, and what is needed to judge a copy of one of its schemas."""

    kind: str
    port: int
    rolling: ClassVar[Mapping[str, Any]]
    """The options of a run that rolls copies forward."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    @abstractmethod
    def settings(self, port: int) -> ConnectionSettings:
        """How to reach the server through ``port``."""

    @abstractmethod
    def create(self, schema: str, seed: int, rows: int) -> list[str]:
        """Make a schema with tables of every kind, and return their names."""

    @abstractmethod
    def writing(self, schema: str, seed: int) -> Writing:
        """Writers that go on after the server was away."""

    @abstractmethod
    def crash(self) -> None:
        """Kill the server, so that what it has not written is lost, and start it again."""

    @abstractmethod
    def differences(self, table: str, position: str, columns: list[str], rows: list[tuple[Any, ...]]) -> str:
        """How ``rows`` differ from the table at ``position``; empty if they do not."""

    @abstractmethod
    def left_behind(self) -> list[str]:
        """What runs keep on the server."""


def enduring(write: Write, errors: tuple[type[BaseException], ...]) -> Write:
    """``write``, begun again when its connection is lost."""

    def writing(chance: random.Random, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                write(chance, stop)
            except errors:
                stop.wait(0.05)

    return writing


def compared(where: str, truth: Rows, copied: Rows) -> str:
    missing, extra = truth - copied, copied - truth
    if not missing and not extra:
        return ""
    return (
        f"{where}: {missing.total()} rows missing, {extra.total()} too many: "
        f"missing {list(missing)[:2]}, instead {list(extra)[:2]}"
    )


class MysqlWorld(World):
    kind = "mysql"
    rolling: ClassVar[Mapping[str, Any]] = {"refresh": "changes"}

    def __init__(self, directory: Path) -> None:
        self._server = MysqlServer.start(directory / "source")
        self._replica = MysqlServer.start(directory / "oracle")
        self.port = self._server.port
        self._first_log = self._before = ""
        self._replayed = ""

    def close(self) -> None:
        self._server.stop()
        self._replica.stop()

    def settings(self, port: int) -> ConnectionSettings:
        return ConnectionSettings("mysql", "127.0.0.1", port, "root")

    def create(self, schema: str, seed: int, rows: int) -> list[str]:
        self._roll_back_prepared()
        self._server.query(f"CREATE DATABASE `{schema}`")
        self._server.query("FLUSH BINARY LOGS")
        self._first_log = self._server.query("SHOW BINARY LOG STATUS")[0][0]
        self._before = self._server.query("SELECT @@global.gtid_executed")[0][0]
        self._replayed = ""
        self._replica.query(f"CREATE DATABASE `{schema}`")
        with self._server.connect() as connection:
            mysql_history.create(connection, schema, seed, rows)
        return [f"{schema}.{subject.name}" for subject in mysql_history.SUBJECTS]

    def writing(self, schema: str, seed: int) -> Writing:
        write = mysql_history.write(self._server.connect, schema, PAUSE)
        return Writing(enduring(write, (pymysql.err.OperationalError, pymysql.err.InterfaceError)), seed, 4)

    def crash(self) -> None:
        self._server.crash()
        self._roll_back_prepared()

    def _roll_back_prepared(self) -> None:
        # The sessions that prepared them are gone.
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("XA RECOVER")
            for *_, xid in cursor.fetchall():
                with contextlib.suppress(pymysql.err.MySQLError):
                    cursor.execute(f"XA ROLLBACK '{xid}'")

    def differences(self, table: str, position: str, columns: list[str], rows: list[tuple[Any, ...]]) -> str:
        if self._replayed != position:
            (wanted,) = self._server.query("SELECT GTID_SUBTRACT(%s, %s)", (position, self._before))[0]
            oracle.replay(self._server, self._replica, wanted.replace("\n", ""), self._first_log)
            self._replayed = position
        truth = oracle.rows_at(self._replica, table, columns)
        return compared(f"{table} at {position}", truth, Counter(tuple(map(oracle.plain, row)) for row in rows))

    def left_behind(self) -> list[str]:
        return []


class PostgresWorld(World):
    kind = "postgres"
    # Tables whose keys the log does not have are read in full where rows are read again.
    rolling: ClassVar[Mapping[str, Any]] = {"refresh": "auto", "standing_slot": "chaos"}

    def __init__(self, directory: Path) -> None:
        # What a writer has not asked to be on disk stays in memory for long, and is lost by a crash.
        options = {"wal_writer_delay": "10s", "wal_writer_flush_after": "0", "max_connections": "60"}
        self._server = PostgresServer.start(directory / "source", options=options)
        self._recovery = PostgresRecovery(self._server, directory / "oracle")
        self.port = self._server.port
        self._reached = ""
        self._directory = directory

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._recovery.close()
        self._server.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def settings(self, port: int) -> ConnectionSettings:
        return ConnectionSettings("postgres", "127.0.0.1", port, settings_of(self._server).user, "", "postgres")

    def create(self, schema: str, seed: int, rows: int) -> list[str]:
        self._roll_back_prepared()
        with session(settings_of(self._server)) as connection:
            standing = name_of(connection, "chaos")
        slots.drop(settings_of(self._server), standing, standing)
        self._server.query(f"CREATE SCHEMA {schema}")
        with self._server.connect() as connection:
            postgres_history.create(connection, schema, seed, rows)
        self._schema = schema
        return [f"{schema}.{subject.name}" for subject in postgres_history.SUBJECTS]

    def writing(self, schema: str, seed: int) -> Writing:
        write = postgres_history.write(self._server.connect, schema, PAUSE)
        # What it had prepared may be rolled back after a crash.
        lost = psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.UndefinedObject
        return Writing(enduring(write, lost), seed, 4)

    def crash(self) -> None:
        # An immediate shutdown writes nothing: what was committed with synchronous_commit=off is lost.
        self._server._signal(signal.SIGQUIT)
        self._server._ended_within(120)
        self._server._launch()
        self._roll_back_prepared()

    def _roll_back_prepared(self) -> None:
        for _ in range(20):
            prepared = self._server.query("SELECT gid FROM pg_prepared_xacts")
            for (gid,) in prepared:
                with contextlib.suppress(psycopg.Error):
                    self._server.query(f"ROLLBACK PREPARED '{gid}'")
            if not prepared:
                return
            time.sleep(0.05)

    def differences(self, table: str, position: str, columns: list[str], rows: list[tuple[Any, ...]]) -> str:
        if self._reached != position:
            self._recovery.advance_to(position)
            self._reached = position
        schema, _, name = table.partition(".")
        subject = next(one for one in postgres_history.SUBJECTS if one.name == name)
        with self._recovery.connect() as connection:
            connection.execute("SET TimeZone TO 'UTC'")
            truth = Counter(
                tuple(map(_plain, row)) for row in connection.execute(postgres_history.select(schema, subject))
            )
        return compared(f"{table} at {position}", truth, Counter(tuple(map(_plain, row)) for row in rows))

    def left_behind(self) -> list[str]:
        return [
            name
            for (name,) in self._server.query(
                "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name LIKE 'cdc%' "
                "UNION ALL SELECT pubname::text FROM pg_publication"
            )
            if not name.startswith(slots.STANDING)
        ]


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) and value.tzinfo else value


class Worlds:
    """One world of each kind, created on first use."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="cdc-chaos-")
        self._made: dict[str, World] = {}

    def __getitem__(self, kind: str) -> World:
        if kind not in self._made:
            kinds: dict[str, Callable[[Path], World]] = {"mysql": MysqlWorld, "postgres": PostgresWorld}
            self._made[kind] = kinds[kind](Path(self._directory.name, kind))
        return self._made[kind]

    def close(self) -> None:
        for world in self._made.values():
            world.close()
        self._directory.cleanup()
