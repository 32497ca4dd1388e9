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
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pymysql

from airflow_provider_cdc.sources.api.source import ConnectionSettings
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

LOCK_SECONDS = 2
Rows = Counter[tuple[Any, ...]]


class Busy(Exception):
    """A lock was not granted in time, or the server was away."""


class Refused(Exception):
    """The server refuses a statement."""


LOSSES: Mapping[str, Mapping[str, int]] = {
    "mysql": {"purge": 3, "expire": 1},
    "postgres": {"drop_slot": 1, "invalidate": 2},
}
"""Each way in which a server loses log that a run may need, and its weight.

``purge``, ``expire``
    ``PURGE BINARY LOGS``; a log file is rotated while the server keeps log only for a second.
``drop_slot``, ``invalidate``
    The run's slots are dropped; WAL is removed by ``max_slot_wal_keep_size``, which invalidates the slots.
"""


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
    def alter(self, schema: str, statement: str) -> None:
        """Do a statement in ``schema``. It waits for locks only for a moment.

        :raises Busy: a session holds a lock, or the server was away.
        :raises Refused: the statement is not possible now.
        """

    @abstractmethod
    def purge(self, how: str) -> str:
        """Let the server remove log, or lose a slot, in one of the ways in `LOSSES`; return what happened."""

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
        # The log files that the server purges. They are linked, so files that it still writes are complete, too.
        self._archive = directory / "log"
        self._archive.mkdir()

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
        # A table that is altered may not have the columns that the writers know, or may be gone for a moment.
        return Writing(enduring(write, (pymysql.err.MySQLError,)), seed, 4)

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

    def alter(self, schema: str, statement: str) -> None:
        try:
            with self._server.connect(database=schema) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET SESSION sql_require_primary_key = 0, lock_wait_timeout = {LOCK_SECONDS}")
                cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}")
                cursor.execute(statement)
        except pymysql.err.MySQLError as error:
            # Lock wait timeout, deadlock, and errors of the connection.
            busy = error.args[0] in (0, 1053, 1205, 1213, 2003, 2006, 2013)
            raise (Busy if busy else Refused)(str(error)) from error

    def purge(self, how: str) -> str:
        self._server.query("FLUSH BINARY LOGS")
        self._link_log()
        if how == "purge":
            self._server.query(f"PURGE BINARY LOGS TO '{self._server.query('SHOW BINARY LOG STATUS')[0][0]}'")
        else:
            self._server.query("SET GLOBAL binlog_expire_logs_seconds = 1")
            time.sleep(1.5)
            self._server.query("FLUSH BINARY LOGS")
            self._server.query("SET GLOBAL binlog_expire_logs_seconds = DEFAULT")
        return f"the log begins with {self._server.query('SHOW BINARY LOGS')[0][0]}"

    def _link_log(self) -> list[Path]:
        """Link the present log files into the archive, and return all files of the history in their order."""
        for name, *_ in self._server.query("SHOW BINARY LOGS"):
            with contextlib.suppress(FileExistsError):
                (self._archive / name).hardlink_to(self._server.data / name)
        return sorted(path for path in self._archive.iterdir() if path.name >= self._first_log)

    def differences(self, table: str, position: str, columns: list[str], rows: list[tuple[Any, ...]]) -> str:
        if self._replayed != position:
            (wanted,) = self._server.query("SELECT GTID_SUBTRACT(%s, %s)", (position, self._before))[0]
            oracle.replay_files(self._replica, wanted.replace("\n", ""), self._link_log())
            self._replayed = position
        names = [
            name
            for (name,) in self._replica.query(
                "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) = %s "
                "ORDER BY ORDINAL_POSITION",
                (table,),
            )
        ]
        if names != columns:
            return f"{table} at {position} has the columns {names}, the copy has {columns}"
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
        # The oracle replays WAL that the server has removed.
        archive = directory / "log"
        archive.mkdir(parents=True)
        archive.chmod(0o777)
        options |= {"archive_mode": "on", "archive_command": f"cp '%p' '{archive}/%f'"}
        self._server = PostgresServer.start(directory / "source", options=options)
        self._recovery = PostgresRecovery(self._server, directory / "oracle", archive)
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
        # What it had prepared may be rolled back after a crash. A table that is altered may not have the columns that
        # the writers know.
        return Writing(enduring(write, (psycopg.Error,)), seed, 4)

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
        try:
            names, truth = self._truth(self._recovery.connect(), table, columns)
        except psycopg.errors.LockNotAvailable:
            # DDL was under way at the position, so the recovery keeps its lock.
            with self._recovery.promoted(self._directory / "promoted") as server:
                names, truth = self._truth(server.connect(), table, columns)
        if names != columns:
            return f"{table} at {position} has the columns {names}, the copy has {columns}"
        return compared(f"{table} at {position}", truth, Counter(tuple(map(_plain, row)) for row in rows))

    def _truth(
        self, connecting: psycopg.Connection[tuple[Any, ...]], table: str, columns: list[str]
    ) -> tuple[list[str], Rows]:
        schema, _, name = table.partition(".")
        casts = next(one for one in postgres_history.SUBJECTS if one.name == name).casts
        with connecting as connection:
            connection.execute("SET TimeZone TO 'UTC'")
            connection.execute("SET lock_timeout = '5s'")
            found = connection.execute(
                "SELECT column_name::text FROM information_schema.columns "
                "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                (schema, name),
            )
            names = [column for (column,) in found]
            if names != columns:
                return names, Counter()
            chosen = ", ".join(f"{column}::{casts[column]}" if column in casts else column for column in columns)
            return names, Counter(
                tuple(map(_plain, row)) for row in connection.execute(f"SELECT {chosen} FROM {table}")
            )

    def alter(self, schema: str, statement: str) -> None:
        try:
            with self._server.connect() as connection:
                connection.execute(f"SET search_path TO {schema}")
                connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
                connection.execute(statement)
        except psycopg.Error as error:
            raise (Busy if isinstance(error, psycopg.OperationalError) else Refused)(str(error)) from error

    def purge(self, how: str) -> str:
        if how == "drop_slot":
            return self._drop_slots()
        self._server.query("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        self._server.reload()
        for _ in range(3):
            self._server.query("SELECT pg_logical_emit_message(false, 'chaos', 'x'), pg_switch_wal()")
        self._server.query("CHECKPOINT")
        self._server.query("ALTER SYSTEM RESET max_slot_wal_keep_size")
        self._server.reload()
        found = self._server.query("SELECT slot_name, wal_status FROM pg_replication_slots")
        return ", ".join(f"{name} is {status}" for name, status in found)

    def _drop_slots(self) -> str:
        dropped = []
        for name, pid in self._server.query(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE slot_name LIKE 'cdc%' AND NOT temporary"
        ):
            if pid:
                self._server.query("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                self._server.query("SELECT pg_drop_replication_slot(%s)", (name,))
                dropped.append(name)
        return f"dropped {', '.join(dropped)}"

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
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC).replace(tzinfo=None)
    # A numeric without a precision is published as text.
    return str(value) if isinstance(value, Decimal) else value


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
