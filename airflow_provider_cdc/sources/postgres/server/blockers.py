"""Waits a limited time for table locks, and reports which sessions hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import LockNotGranted
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

SECONDS = 10

# The server grants locks in turn, so a session that waits for a lock blocks readers, too. A prepared transaction has no
# session. Until the server restarts, the prepared transaction keeps the virtual transaction id that its session had. So
# several prepared transactions may have the same id. In that case, the query returns all of these prepared
# transactions. A lock on a partition counts as a lock on the root.
_HOLDERS = """
SELECT c.oid::regclass::text, l.granted, l.pid, a.usename, a.state, p.gid, p.owner,
    extract(epoch FROM now() - COALESCE(a.xact_start, p.prepared))::float8
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
    """Limit the time for which the session waits for a table lock to `SECONDS`.

    This context manager yields a list. Before the caller accesses tables, it must add the names of the tables to the
    list.

    :raises LockNotGranted: a table was locked for longer than `SECONDS`. The message names the table and the sessions
        that lock it.
    """
    tables: list[TableName] = []
    query(connection, f"SET lock_timeout = '{SECONDS}s'")
    try:
        yield tables
    except psycopg.errors.LockNotAvailable as error:
        holders = _holders(connection, tables)
        raise LockNotGranted(
            f"a lock blocked readers for {SECONDS} s: {'; '.join(holders) or 'the lock has just been released'}",
            where=", ".join(map(str, tables)) or settings.address,
            hint="wait until the other session ends, or end it (pg_terminate_backend, ROLLBACK PREPARED); then retry "
            "the task",
        ) from error


def _holders(connection: Connection, tables: Sequence[TableName]) -> list[str]:
    schemas_and_names = [table.schema for table in tables], [table.name for table in tables]
    holders = []
    for table, granted, pid, user, state, gid, owner, age in query(connection, _HOLDERS, schemas_and_names):
        who = f"session {pid} of {user} ({state})" if gid is None else f"prepared transaction {gid!r} of {owner}"
        holders.append(
            f"{who} {'holds' if granted else 'waits for'} the lock ACCESS EXCLUSIVE on {table} for {duration(age or 0)}"
        )
    return holders
