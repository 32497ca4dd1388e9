"""Reads the identity of a session's server, and compares the history of a copy with the history of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from airflow_provider_cdc.core.positions.facts import Finding, HistoryRelation, Trace
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import ConfigurationError, LockNotGranted, SourceReplaced, TerminalError
from airflow_provider_cdc.sources.api.source import (
    MEASURE_SECONDS,
    OLDEST_XMIN,
    REPLICA_LAG,
    THREADS_RUNNING,
    ConnectionSettings,
    one_number,
)
from airflow_provider_cdc.sources.postgres.server import session_setup, timelines
from airflow_provider_cdc.sources.postgres.server.facts import MEANING, PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import Connection, mapped_errors, query, session, value

NEXT_XID = "txid_snapshot_xmax(txid_current_snapshot())::text"
"""SQL for a lower bound of the server's next transaction id. The bound never decreases, even after a restart, because
all lower ids were in the log before they were visible, and a run flushes the log before its position counts."""


def identity(connection: Connection) -> PostgresFacts:
    """Return the values that distinguish this server from other servers."""
    system, database, oid, version, timeline, meaning, next_xid = query(
        connection,
        "SELECT s.system_identifier::text, d.datname, d.oid::text, current_setting('server_version'), "
        f"{session_setup.TIMELINE}, current_setting('{MEANING}'), {NEXT_XID} "
        "FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()",
    )[0]
    return PostgresFacts(system, session_setup.timeline(timeline), database, oid, version, meaning, next_xid)


def taken_over(settings: ConnectionSettings, connection: Connection, facts: PostgresFacts, start: Lsn) -> PostgresFacts:
    """Return ``facts`` with the present timeline, if a standby took over after the position ``start``.

    If the connection reaches another server, or a standby, return ``facts``.

    :raises SourceReplaced: the standby took over before ``start``.
    """
    here = identity(connection)
    if here.system_identifier != facts.system_identifier or not here.timeline:
        return facts
    if why := timelines.why_not_here(settings, here.timeline, facts.timeline, start):
        raise SourceReplaced(
            why,
            where=f"timeline {here.timeline}",
            hint="set `refresh` to `auto` or `full`, so that the run reads the tables in full",
        )
    return replace(facts, timeline=here.timeline)


def relations(settings: ConnectionSettings, connection: Connection, traces: Sequence[Trace]) -> list[Finding]:
    """`Source.relations`.

    The end of the log and the id of the next transaction never decrease. If one of these values is less than it was
    when a copy was made, the server was reset to an earlier state. If neither value is less, the server may still have
    been reset, but this cannot be detected.

    If a standby took over, a position on the timeline of the earlier primary belongs to the present history if it is
    not after the fork.
    """
    end, next_xid, shown = query(
        connection, f"SELECT pg_current_wal_insert_lsn()::text, {NEXT_XID}, {session_setup.TIMELINE}"
    )[0]
    here = session_setup.timeline(shown)
    forks = timelines.forks(settings, here) if {trace.timeline for trace in traces} - {"", here} else {}
    return [_relation(Lsn.parse(end), int(next_xid), here, forks, trace) for trace in traces]


def _relation(end: Lsn, next_xid: int, here: str, forks: Mapping[str, Lsn], trace: Trace) -> Finding:
    start = trace.position
    if not isinstance(start, Lsn):
        return Finding(HistoryRelation.UNKNOWN, "the copy does not record its position")
    if trace.timeline not in ("", here):
        fork = forks.get(trace.timeline)
        if fork is None:
            why = f"a standby was promoted, and it is unknown where its timeline {here} left timeline {trace.timeline}"
            return Finding(HistoryRelation.UNKNOWN, why)
        if start > fork:
            return Finding(HistoryRelation.OTHER, f"a standby took over at {fork}, before the copy's position {start}")
    if end < start:
        return Finding(HistoryRelation.OTHER, f"the server's log ends at {end}, before the copy's position {start}")
    if trace.mark.isdecimal() and next_xid < int(trace.mark):
        why = f"the server has counted {next_xid:,} transactions, but {int(trace.mark):,} when the copy was made"
        return Finding(HistoryRelation.OTHER, why)
    return Finding(HistoryRelation.SAME)


# Measures the load of a PostgreSQL server.


_LAG = """SELECT CASE WHEN pg_is_in_recovery() THEN
    CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
    ELSE COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0) END
ELSE (SELECT COALESCE(MAX(EXTRACT(EPOCH FROM r.replay_lag)), 0)
    FROM pg_stat_replication r JOIN pg_stat_activity a USING (pid) WHERE a.datid IS NULL) END"""
_XMIN = """SELECT COALESCE(MAX(age(xmin)), 0) FROM (
    SELECT backend_xmin AS xmin FROM pg_stat_activity WHERE pid <> pg_backend_pid()
    UNION ALL SELECT xmin FROM pg_replication_slots
    UNION ALL SELECT transaction FROM pg_prepared_xacts) AS held"""
_SIGNALS = {
    THREADS_RUNNING: "SELECT count(*) FROM pg_stat_activity "
    "WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    REPLICA_LAG: _LAG,
    OLDEST_XMIN: _XMIN,
}
SIGNALS = frozenset(_SIGNALS)


def load(settings: ConnectionSettings, signals: Sequence[str]) -> dict[str, float]:
    """`Source.load`."""
    with session(settings) as connection:
        query(connection, f"SET statement_timeout = {MEASURE_SECONDS * 1000}")
        query(connection, "SET default_transaction_read_only = on")
        return {signal: _measured(connection, signal) for signal in signals}


def _measured(connection: Connection, signal: str) -> float:
    where = f"parameter governor (Limits.governor), {signal}"
    # Without this role, the views show other sessions without their state, so the numbers would be too small.
    if signal in _SIGNALS and not value(connection, "pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"):
        raise ConfigurationError(
            "the user may not see the sessions of other users",
            where=where,
            hint="grant the role pg_read_all_stats (or pg_monitor) to the user of the connection",
        )
    try:
        # With binary results, the server accepts only one statement.
        with mapped_errors(where), connection.cursor() as cursor:
            rows = cursor.execute(_SIGNALS.get(signal, signal), binary=True).fetchall()
    except TerminalError as error:
        what = f"cannot be measured: {error.message}"
        raise ConfigurationError(what, where=where, hint="correct the query") from error
    return one_number(signal, rows)


# Waits a limited time for table locks, and reports which sessions hold them.


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


# Detects what kind of server it is. On managed services, settings and privileges are changed in other ways than on a
# plain server.


OWN, RDS, CLOUD_SQL, AZURE = "", "Amazon RDS", "Google Cloud SQL", "Azure"

_ON_DEMAND_SINCE = 190_000

_ROLES = {"rds_superuser": RDS, "cloudsqlsuperuser": CLOUD_SQL, "azure_pg_admin": AZURE}


def platform(connection: Connection) -> str:
    """Return the managed service that runs the server, or `OWN` if there is none. A service is recognized by its
    roles."""
    roles = {name for (name,) in query(connection, "SELECT rolname::text FROM pg_roles")}
    return next((service for role, service in _ROLES.items() if role in roles), OWN)


def change_setting(service: str, name: str, value: str) -> str:
    """Return a hint that says how to change a server setting that needs a restart."""
    if service == RDS:
        if name == "wal_level":
            return "set rds.logical_replication = 1 in the DB (cluster) parameter group, and reboot the instance"
        return f"set {name} = {value} in the DB (cluster) parameter group, and reboot the instance"
    if service == CLOUD_SQL:
        if name == "wal_level":
            return "set the database flag cloudsql.logical_decoding = on, which restarts the instance"
        return f"set the database flag {name} = {value}, which restarts the instance"
    if service == AZURE:
        return f"set the server parameter {name} = {value}, and restart the server"
    return f"ALTER SYSTEM SET {name} = {value}, and restart the server"


def allow_replication(service: str, user: str) -> str:
    """Return a hint that says how to allow a user to create slots and read from them. ``user`` is already quoted."""
    return f"GRANT rds_replication TO {user}" if service == RDS else f"ALTER ROLE {user} REPLICATION"


def decodes_on_demand(connection: Connection, wal_level: str) -> bool:
    """Return whether the server decodes its log only while a logical slot exists. The first logical slot switches the
    decoding on, although ``wal_level`` is not ``logical``."""
    return connection.info.server_version >= _ON_DEMAND_SINCE and wal_level == "replica"
