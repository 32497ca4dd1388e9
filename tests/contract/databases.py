"""The databases of the contract tests and the differences of their SQL, without any code under test.

Statements that are the same for all kinds are in the tests. Table names in them are unqualified.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, ClassVar

import psycopg
import pymysql

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from tests.soon import soon

Row = tuple[Any, ...]

PASSWORD = "c0rrect-h0rse:/@ü"
LOCK_SECONDS = 10
"""A test that locks itself out should fail, and soon."""


class Database(ABC):
    """A private database on a real server, and an account with a password for the code under test."""

    kind: ClassVar[str]
    position_key: ClassVar[str]
    at_one_position: ClassVar[str]
    of_another_kind: ClassVar[str]
    """The consistency that keyless tables need, and one that only another kind of database has."""
    impossible_date: ClassVar[tuple[str, str]]
    """A date that Arrow cannot hold: in SQL, and as the server prints it."""
    new_account: ClassVar[str]
    drop_account: ClassVar[str]
    analyzing: ClassVar[str]
    rotating: ClassVar[str]
    quotation: ClassVar[str]
    locking: ClassVar[tuple[str, ...]]
    """Statements that lock a table against readers until their session ends."""
    waiting: ClassVar[str]
    """How many sessions wait for a lock on a table."""

    def __init__(self, schema: str, settings: ConnectionSettings) -> None:
        self.schema = schema
        self.settings = settings
        self._prepared: set[str] = set()

    @abstractmethod
    def parse(self, position: str) -> object:
        """Read a position."""

    @abstractmethod
    def connect(self) -> Any:
        """A session in autocommit (DB-API) with the database as its default, not the product's."""

    @abstractmethod
    def create(self, name: str, columns: str) -> None:
        """Create a table that can be copied."""

    def analyze(self, name: str) -> None:
        """Give the server good estimates of a table."""
        self.execute(f"{self.analyzing} {name}")

    def rotate_log(self) -> None:
        """Begin another file of the log."""
        self.execute(self.rotating)

    @abstractmethod
    def _prepare(self, xid: str, *statements: str) -> None: ...

    @abstractmethod
    def _decide(self, xid: str, verb: str) -> None: ...

    @abstractmethod
    def lose_log(self) -> None:
        """Throw away the log of all that happened so far. For servers that no other test uses."""

    @abstractmethod
    def spoil(self, name: str) -> None:
        """Make a table one that cannot be copied."""

    @abstractmethod
    def kept(self) -> list[str]:
        """Names of what the server keeps for runs in this database."""

    @abstractmethod
    def sessions(self) -> list[int]:
        """The product's sessions."""

    @abstractmethod
    def kill(self, session: int) -> None:
        """End a session."""

    @contextmanager
    def account(self) -> Iterator[None]:
        """Have the account while the context is open."""
        user = self.settings.user
        self.execute(*self.new_account.format(user=user, password=PASSWORD).split("; "))
        yield
        self.execute(self.drop_account.format(user=user))

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Have a table locked against readers while the context is open."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in self.locking:
                cursor.execute(statement.format(table))
            yield

    def quote(self, name: str) -> str:
        """An identifier in SQL."""
        return self.quotation + name.replace(self.quotation, 2 * self.quotation) + self.quotation

    def name(self, table: str) -> TableName:
        return TableName(self.schema, table)

    def execute(self, *statements: str) -> None:
        """Run statements, each in its own transaction."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def transaction(self, *statements: str, end: str = "COMMIT") -> None:
        """Run statements in one transaction."""
        self.execute("BEGIN", *statements, end)

    def prepare(self, xid: str, *statements: str) -> None:
        """Run statements in a transaction that ends prepared (two-phase commit)."""
        self._prepare(xid, *statements)
        self._prepared.add(xid)

    def record_commit(self, xid: str, verb: str) -> None:
        """``COMMIT`` or ``ROLLBACK`` a prepared transaction."""
        self._decide(xid, verb)
        self._prepared.discard(xid)

    def close(self) -> None:
        """End what would keep the database from being dropped."""
        for xid in list(self._prepared):
            self.record_commit(xid, "ROLLBACK")
        self.wait_for_no_session()

    def query(self, sql: str) -> list[Row]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]

    def rows(self, table: str) -> Counter[Row]:
        """All rows of a table, as a plain SELECT gives them to another driver."""
        return Counter(self.query(f"SELECT * FROM {table}"))

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert rows of numbers, texts without backslashes, and nulls."""
        if rows:
            self.execute(f"INSERT INTO {table} VALUES {', '.join(map(_literal, rows))}")

    def lock_waits(self) -> int:
        """How many sessions wait for a lock on a table."""
        ((count,),) = self.query(self.waiting)
        return int(count)

    def wait_for_no_session(self) -> None:
        """A server takes a moment to notice that a session was closed."""
        soon(self.sessions, [])


def _literal(row: Row) -> str:
    values = ("NULL" if v is None else str(v) if isinstance(v, int) else "'" + v.replace("'", "''") + "'" for v in row)
    return f"({', '.join(values)})"


class MysqlDatabase(Database):
    kind = "mysql"
    position_key = "initial_gtid_set"
    at_one_position = "lock"
    of_another_kind = "exported"
    impossible_date = "'0000-00-00'", "0000-00-00"
    new_account = "CREATE USER {user} IDENTIFIED BY '{password}'; GRANT ALL ON *.* TO {user}"
    drop_account = "DROP USER {user}"
    analyzing = "ANALYZE TABLE"
    rotating = "FLUSH BINARY LOGS"
    quotation = "`"
    locking = ("LOCK TABLES {} WRITE",)
    waiting = "SELECT COUNT(*) FROM performance_schema.processlist WHERE STATE = 'Waiting for table metadata lock'"

    def __init__(self, server: MysqlServer, schema: str) -> None:
        self._server = server
        super().__init__(schema, ConnectionSettings("mysql", server.host, server.port, f"u_{schema}", PASSWORD))

    def parse(self, position: str) -> GtidSet:
        return GtidSet.parse(position)

    def connect(self) -> pymysql.Connection[Any]:
        # Strict, but for dates. With TLS the driver would load all authorities of the system each time.
        start = f"SET sql_mode = 'STRICT_ALL_TABLES,ALLOW_INVALID_DATES', innodb_lock_wait_timeout = {LOCK_SECONDS}"
        return self._server.connect(database=self.schema, charset="utf8mb4", init_command=start, ssl_disabled=True)

    def create(self, name: str, columns: str) -> None:
        self.execute(f"CREATE TABLE {name} ({columns})")

    def _prepare(self, xid: str, *statements: str) -> None:
        self.execute(f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'")

    def _decide(self, xid: str, verb: str) -> None:
        self.execute(f"XA {verb} '{xid}'")

    def lose_log(self) -> None:
        self.rotate_log()
        ((last, *_),) = self.query("SHOW BINARY LOG STATUS")
        self.execute(f"PURGE BINARY LOGS TO '{last}'")

    def spoil(self, name: str) -> None:
        self.execute(f"ALTER TABLE {name} ENGINE=MyISAM")

    def kept(self) -> list[str]:
        return []

    def sessions(self) -> list[int]:
        sql = "SELECT PROCESSLIST_ID FROM performance_schema.session_connect_attrs WHERE ATTR_NAME = 'program_name'"
        return [number for (number,) in self.query(f"{sql} AND ATTR_VALUE = 'airflow-provider-cdc'")]

    def kill(self, session: int) -> None:
        with suppress(pymysql.OperationalError):  # it ended by itself
            self.execute(f"KILL {session}")


class PostgresDatabase(Database):
    kind = "postgres"
    position_key = "initial_lsn"
    at_one_position = "exported"
    of_another_kind = "lock"
    impossible_date = "'infinity'", "infinity"
    new_account = "CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{password}'"
    drop_account = "DROP ROLE {user}"
    analyzing = "ANALYZE"
    rotating = "SELECT pg_switch_wal()"
    quotation = '"'
    locking = "BEGIN", "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'relation' AND datname = current_database()"

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server = server
        account = f"u_{database}", PASSWORD, database
        super().__init__("public", ConnectionSettings("postgres", server.host, server.port, *account))

    def parse(self, position: str) -> Lsn:
        return Lsn.parse(position)

    def connect(self) -> psycopg.Connection[Row]:
        return self._server.connect(database=self.settings.database, options=f"-c lock_timeout={LOCK_SECONDS}s")

    def create(self, name: str, columns: str) -> None:
        self.execute(f"CREATE TABLE {name} ({columns})", f"ALTER TABLE {name} REPLICA IDENTITY FULL")

    def _prepare(self, xid: str, *statements: str) -> None:
        self.transaction(*statements, end=f"PREPARE TRANSACTION '{xid}'")

    def _decide(self, xid: str, verb: str) -> None:
        self.execute(f"{verb} PREPARED '{xid}'")

    def lose_log(self) -> None:
        self.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT temporary")

    def spoil(self, name: str) -> None:
        self.execute(f"ALTER TABLE {name} SET UNLOGGED")

    def kept(self) -> list[str]:
        slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
        return [str(name) for (name,) in self.query(f"{slots} UNION ALL SELECT pubname FROM pg_publication")]

    def sessions(self) -> list[int]:
        sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'airflow-provider-cdc'"
        return [pid for (pid,) in self.query(sql)]

    def kill(self, session: int) -> None:
        self.execute(f"SELECT pg_terminate_backend({session})")
