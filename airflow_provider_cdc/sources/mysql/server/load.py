"""Measures the load of a MySQL server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pymysql

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.load import (
    HISTORY_LIST,
    MEASURE_SECONDS,
    REPLICA_LAG,
    THREADS_RUNNING,
    one_number,
)
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, session, set_session


def load(settings: ConnectionSettings, signals: Sequence[str]) -> dict[str, float]:
    """`Source.load`."""
    numbers = {}
    with session(settings) as connection:
        set_session(connection, {"transaction_read_only": "ON", "max_execution_time": str(MEASURE_SECONDS * 1000)})
        for signal in signals:
            try:
                numbers[signal] = _SIGNALS[signal](connection) if signal in _SIGNALS else _of_query(connection, signal)
            except (pymysql.ProgrammingError, pymysql.OperationalError, pymysql.InternalError) as error:
                if not connection.open:
                    raise
                raise ConfigurationError(
                    f"cannot be measured: {error.args[-1]}",
                    where=f"parameter governor, {signal}",
                    hint="correct the query, or grant the privilege to the user of the connection",
                ) from error
    return numbers


def _threads_running(connection: Connection) -> float:
    return float(query(connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])


def _history_list_length(connection: Connection) -> float:
    sql = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
    return one_number(HISTORY_LIST, query(connection, sql))


def _replica_lag(connection: Connection) -> float:
    with connection.cursor() as cursor:
        cursor.execute("SHOW REPLICA STATUS")
        names = [column[0] for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    if not rows:
        raise ConfigurationError(
            "the server is not a replica, and a primary does not know the lag of its replicas",
            where=f"parameter governor, {REPLICA_LAG}",
            hint="give a query that returns the lag, such as one of a heartbeat table, as the key",
        )
    lags = [row["Seconds_Behind_Source"] for row in rows]
    # NULL: the replication is not running, so the lag grows.
    return float("inf") if None in lags else max(float(lag) for lag in lags)


def _of_query(connection: Connection, signal: str) -> float:
    return one_number(signal, query(connection, signal))


_SIGNALS: Mapping[str, Callable[[Connection], float]] = {
    THREADS_RUNNING: _threads_running,
    HISTORY_LIST: _history_list_length,
    REPLICA_LAG: _replica_lag,
}
SIGNALS = frozenset(_SIGNALS)
