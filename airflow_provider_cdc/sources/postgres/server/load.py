"""Measures the load of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.errors import ConfigurationError, TerminalError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.load import (
    MEASURE_SECONDS,
    OLDEST_XMIN,
    REPLICA_LAG,
    THREADS_RUNNING,
    one_number,
)
from airflow_provider_cdc.sources.postgres.server.session import Connection, mapped_errors, query, session, value

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
    where = f"parameter governor, {signal}"
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
