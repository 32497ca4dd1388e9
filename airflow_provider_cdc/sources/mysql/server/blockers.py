"""Limits the time for which a session waits for table locks of other sessions, and names the sessions that hold these
locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pymysql

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import LockNotGranted
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.driver_errors import LOCK_WAIT_TIMEOUT
from airflow_provider_cdc.sources.mysql.server.session import Connection, account, query, set_session
from airflow_provider_cdc.sources.mysql.server.statement_size import batches, size_of

SECONDS = 10
_DENIED = 1142

# The query includes pending locks. The server grants locks in the order of the requests, so a pending lock blocks
# readers, too. The query includes all tables of the schemas, because the locked table may be a table to which a copied
# table refers.
_HOLDERS = """
SELECT OBJECT_SCHEMA, OBJECT_NAME, LOCK_STATUS, LOCK_TYPE, PROCESSLIST_ID, PROCESSLIST_USER, PROCESSLIST_HOST,
    PROCESSLIST_TIME
FROM performance_schema.metadata_locks JOIN performance_schema.threads ON THREAD_ID = OWNER_THREAD_ID
WHERE OBJECT_TYPE = 'TABLE' AND LOCK_TYPE IN ('SHARED_NO_READ_WRITE', 'EXCLUSIVE')
    AND PROCESSLIST_ID <> CONNECTION_ID() AND OBJECT_SCHEMA IN ({})
ORDER BY LOCK_STATUS <> 'GRANTED', OBJECT_SCHEMA, OBJECT_NAME, PROCESSLIST_ID LIMIT 20
"""


@contextmanager
def naming_blockers(settings: ConnectionSettings, connection: Connection) -> Iterator[list[TableName]]:
    """Let the session wait for a table lock for at most `SECONDS`.

    Yields a list. The caller adds each table to the list before it runs a statement on the table.

    :raises LockNotGranted: one of the tables was locked for a longer time. The message names the sessions that hold the
        lock.
    """
    tables: list[TableName] = []
    set_session(connection, {"lock_wait_timeout": str(SECONDS)})
    try:
        yield tables
    except pymysql.OperationalError as error:
        if error.args[0] != LOCK_WAIT_TIMEOUT:
            raise
        holders = _holders(connection, tables)
        raise LockNotGranted(
            f"a lock blocked readers for {SECONDS} s: {'; '.join(holders) or 'the sessions are unknown'}",
            where=", ".join(map(str, tables)) or settings.address,
            hint="wait until the other session ends, or end it (KILL); the task can be retried. To see the other "
            f"session, this user needs: GRANT SELECT ON performance_schema.* TO {account(connection)}",
        ) from error


def _holders(connection: Connection, tables: Sequence[TableName]) -> list[str]:
    if not tables:
        return []
    schemas = sorted({table.schema for table in tables})
    try:
        rows = [
            row
            for some in batches(connection, schemas, lambda schema: size_of([schema]), len(schemas))
            for row in query(connection, _HOLDERS.format(", ".join(["%s"] * len(some))), some)
        ]
    except pymysql.OperationalError as error:
        if error.args[0] != _DENIED:
            raise
        return []
    return [
        f"session {session} of {user}@{host} {'holds' if status == 'GRANTED' else 'waits for'} the lock {kind} on "
        f"{schema}.{table}, for {seconds} s"
        for schema, table, status, kind, session, user, host, seconds in rows
    ]
