"""Reads chunks of tables, without a lock or in a transaction that began under a lock.

``lock`` follows the design of Materialize: under a short table lock, read ``@@gtid_executed`` and open a
consistent-snapshot transaction, then unlock and read. The transaction sees the table exactly at the position, because
the lock prevents commits of changes to the table between the reading of the position and the opening of the
transaction. This needs two sessions, because START TRANSACTION releases the table locks of its own session.

``watermark`` needs neither a lock nor a transaction. ``core.tables.net_change`` explains why each chunk may be read at
a different time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
import pymysql

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import (
    LockNotGranted,
)
from airflow_provider_cdc.sources.api.source import ChunkReader, ConnectionSettings, ReplicaRead
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.mysql.chunking.chunks import where
from airflow_provider_cdc.sources.mysql.chunking.pushed_conditions import pushed_condition
from airflow_provider_cdc.sources.mysql.server.driver import (
    LOCK_WAIT_TIMEOUT,
    is_of_table,
    mapped_errors,
    table_error,
)
from airflow_provider_cdc.sources.mysql.server.server import executed, started
from airflow_provider_cdc.sources.mysql.server.session import (
    Connection,
    RunSettings,
    query,
    session,
    set_session,
    table_sql,
    variables,
)
from airflow_provider_cdc.sources.mysql.tables.cascades import locked_with
from airflow_provider_cdc.sources.session import Kept, session_of

_GROUP_CONSISTENCY = "group_replication_consistency"
_SIGN_SECONDS = 60
_DEADLOCK = 1213


@contextmanager
def open_reader(
    settings: ConnectionSettings, table: Table, consistency: str, lock: LockPolicy, kept: Kept | None = None
) -> Iterator[ChunkReader]:
    """Open a session to read chunks of ``table``. At the end of the block, the session and its locks and transaction
    end.

    :param kept: a pool of sessions that stay open after the block.
    :raises LockNotGranted: with ``lock``, the lock was not granted within the policy.
    """
    if consistency == "watermark":
        with session_of(kept, "reading", lambda: session(settings, reading=True)) as reading:
            reader = TableReader(reading, table, None, Held())
            yield reader
            reader.close()
        return
    # A table that is divided by values has several parts. The parts of one task are read in one transaction, so that
    # the task takes the lock only once.
    with session_of(kept, f"locked {table.name}", lambda: _locked(settings, table, lock)) as locked:
        reader = TableReader(locked.reading, table, locked.upper, locked.held, locked.control)
        yield reader
        reader.close()


@dataclass(frozen=True)
class _Locked:
    """A session whose transaction began under the lock, at the position ``upper``. ``control`` is the session that
    holds the lock; None: the lock was released."""

    reading: Connection
    upper: GtidSet
    held: Held
    control: Connection | None = None


@contextmanager
def _locked(settings: ConnectionSettings, table: Table, lock: LockPolicy) -> Iterator[_Locked]:
    with session(settings, reading=True) as reading:
        _do_not_wait_for_the_group(reading)
        with session(settings) as control, table_lock(control, locked_with(table), lock) as held:
            query(reading, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            upper = executed(control)
            if lock.through_read:
                yield _Locked(reading, upper, held, control)
                return
        if table.cascades_from and isinstance(settings, RunSettings):
            from airflow_provider_cdc.sources.mysql.log.segments import check_parents

            check_parents(settings, table, upper)
        yield _Locked(reading, upper, held)


class Held:
    """Measures how long a lock is held. The time ends with the call of ``release``."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._stop: float | None = None

    def take(self) -> None:
        self._start = time.monotonic()

    def release(self) -> None:
        self._stop = time.monotonic()

    @property
    def seconds(self) -> float:
        if self._start is None:
            return 0.0
        return (time.monotonic() if self._stop is None else self._stop) - self._start


class TableReader:
    """Reads chunks of one table through one session."""

    replica_read: ReplicaRead | None = None

    def __init__(
        self,
        connection: Connection,
        table: Table,
        upper: GtidSet | None,
        held: Held,
        locking: Connection | None = None,
    ) -> None:
        self.upper = upper
        self._connection = connection
        self._locking = locking
        self._last_sign = time.monotonic()
        self._held = held
        self._table = table
        # This module is imported only here, because it loads kernels that steps which only plan and record do not need.
        from airflow_provider_cdc.sources.mysql.decode.rows import StatementReader

        self._statements = StatementReader(connection, table.as_read)
        self._pushed = pushed_condition(table)

    @property
    def lock_seconds(self) -> float:
        return self._held.seconds

    @property
    def nulled(self) -> Mapping[str, int]:
        return self._statements.nulled

    @property
    def odd(self) -> Sequence[OddValue]:
        return self._statements.odd

    def wait_until_durable(self) -> str:
        if self._locking is not None:
            # The lock ends with its session, and what was read without the lock does not count.
            with mapped_errors(f"{self._table.name}, the end of its read under the lock"):
                query(self._locking, "DO 0")
        return started(self._connection)

    def close(self) -> None:
        self._statements.close()

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        condition, params = where(self._table, chunk)
        if self._pushed:
            condition = f"({condition}) AND ({self._pushed})" if condition else self._pushed
        with mapped_errors(f"{self._table.name}, {chunk}", table=str(self._table.name)):
            for batch in self._statements.read(condition, params):
                yield batch
                self._keep_lock()

    def _keep_lock(self) -> None:
        """Keep the locking session alive. The server would end a session that is idle for too long, and would release
        its locks."""
        if self._locking is not None and time.monotonic() - self._last_sign > _SIGN_SECONDS:
            query(self._locking, "DO 0")
            self._last_sign = time.monotonic()


def _do_not_wait_for_the_group(connection: Connection) -> None:
    """Set the session's group_replication_consistency to EVENTUAL. Otherwise, a transaction may wait until this server
    has applied the changes of the replication group. These changes wait for the lock that this session holds."""
    if variables(connection, [_GROUP_CONSISTENCY]):
        set_session(connection, {_GROUP_CONSISTENCY: "'EVENTUAL'"})


@contextmanager
def table_lock(connection: Connection, names: Sequence[TableName], policy: LockPolicy) -> Iterator[Held]:
    """Hold read locks on all tables. While the locks are held, no session can commit changes to these tables."""
    held = Held()
    set_session(connection, {"lock_wait_timeout": str(policy.wait_seconds)})
    _do_not_wait_for_the_group(connection)
    _take_lock(connection, names, policy)
    held.take()
    try:
        yield held
    except BaseException:
        # If UNLOCK TABLES fails, the locks are released when the session ends. Report the first error, not the error of
        # UNLOCK TABLES.
        with suppress(pymysql.MySQLError):
            query(connection, "UNLOCK TABLES")
        raise
    else:
        query(connection, "UNLOCK TABLES")
    finally:
        held.release()


def _take_lock(connection: Connection, names: Sequence[TableName], policy: LockPolicy) -> None:
    statement = "LOCK TABLES " + ", ".join(f"{table_sql(name)} READ" for name in names)
    for attempt in range(1, policy.tries + 1):
        try:
            query(connection, statement)
            return
        except pymysql.OperationalError as error:
            if len(names) == 1 and is_of_table(error):
                raise table_error(str(names[0]), error) from error
            if error.args[0] not in (LOCK_WAIT_TIMEOUT, _DEADLOCK):
                raise
        if attempt < policy.tries:
            time.sleep(policy.pause_seconds)
    raise LockNotGranted(
        f"the read lock was not granted in {format_count(policy.tries, 'try', 'tries')} of {policy.wait_seconds} s",
        where=", ".join(map(str, names)),
        hint="end the transactions that hold locks on the tables, or increase `Read.lock_tries`. "
        "performance_schema.metadata_locks shows these transactions. Prepared XA transactions hold locks, too: "
        "XA RECOVER lists them",
    )
