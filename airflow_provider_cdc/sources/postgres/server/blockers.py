"""Waiting for locks that other sessions hold on tables, for a bounded time, and naming who holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import LockNotGranted
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

SECONDS = 10

# A lock that is only waited for holds up readers as well, for the server grants locks in turn. A prepared transaction
# has no session, and its virtual transaction is called after the one that it was in the session, until the server is
# restarted; so several may be called the same, and then all of them are named. A partition is part of its root.
_HOLDERS = """
SELECT c.oid::regclass::text, l.granted, l.pid, a.usename, a.state, p.gid, p.owner,
    date_trunc('second', now() - COALESCE(a.xact_start, p.prepared))::text
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
JOIN pg_class r ON r.oid = COALESCE(pg_partition_root(c.oid), c.oid)
JOIN pg_namespace n ON n.oid = r.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS w(schema, name) ON (n.nspname, r.relname) = (w.schema, w.name)
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND EXISTS (
    SELECT FROM pg_locks x WHERE x.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
    AND x.locktype = 'transactionid' AND x.transactionid = p.transaction)
WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY NOT l.granted, 1, l.pid LIMIT 20
"""


@contextmanager
def naming_blockers(settings: ConnectionSettings, connection: Connection) -> Iterator[list[TableName]]:
    """Let the session wait for a table for `SECONDS` at most.

    Gives a list, which the caller fills with the tables concerned before it asks for anything of them.

    :raises LockNotGranted: one of them was locked for longer; the message names it, and the sessions that hold it.
    """
    tables: list[TableName] = []
    query(connection, f"SET lock_timeout = '{SECONDS}s'")
    try:
        yield tables
    except psycopg.errors.LockNotAvailable as error:
        holders = _holders(connection, tables)
        raise LockNotGranted(
            f"locked against readers for {SECONDS} s: {'; '.join(holders) or 'the lock has just been released'}",
            where=", ".join(map(str, tables)) or settings.address,
            hint="let the other session end, or end it (pg_terminate_backend, ROLLBACK PREPARED); "
            "the task can be retried",
        ) from error


def _holders(connection: Connection, tables: Sequence[TableName]) -> list[str]:
    schemas_and_names = [table.schema for table in tables], [table.name for table in tables]
    holders = []
    for table, granted, pid, user, state, gid, owner, age in query(connection, _HOLDERS, schemas_and_names):
        who = f"session {pid} of {user} ({state})" if gid is None else f"prepared transaction {gid!r} of {owner}"
        holders.append(f"{who} {'holds' if granted else 'waits for'} the lock ACCESS EXCLUSIVE on {table}, for {age}")
    return holders
