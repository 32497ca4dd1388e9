"""Waits until replicas have executed transactions, and finds the end of the log if it is read from a replica.

With the option ``log_conn_id``, the log is read from a replica of the source (`ConnectionSettings.log_server`). Its
files and offsets are its own. So the end of the reads is found there by GTIDs: the replica must have executed
everything that the source shows, and the present end of its log is behind that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, end_of_log
from airflow_provider_cdc.sources.mysql.server.server import executed, replica_status, shown, state
from airflow_provider_cdc.sources.mysql.server.session import Connection, RunSettings, session, value

_SLICE_SECONDS = 1.0


def log_settings(settings: ConnectionSettings) -> ConnectionSettings:
    """Return the settings of the server from which the log is read."""
    return settings.log_server or settings


@contextmanager
def log_session(settings: ConnectionSettings) -> Iterator[tuple[RunSettings, Connection]]:
    """Open a session on the server from which the log is read. Also return settings with which further sessions accept
    only this server."""
    found = log_settings(settings)
    with session(found) as connection:
        yield RunSettings.of(found, state(connection)), connection


def end_of_shown(settings: ConnectionSettings, source: Connection) -> LogPlace:
    """Return a place in the log that is read: everything that the source shows now is before it.

    :param source: a session of the source.
    :raises SourceUnavailable: the replica does not execute this in time.
    """
    if settings.log_server is None:
        return end_of_log(settings, source)
    with log_session(settings) as (here, connection):
        wait_for(settings, source, connection, shown(source))
        return end_of_log(here, connection)


def wait_for(settings: ConnectionSettings, source: Connection, connection: Connection, position: GtidSet) -> None:
    """Wait until the server from which the log is read has executed a position of the source.

    :param source, connection: sessions of the source, and of the server from which the log is read.
    :raises SourceUnavailable: it has not executed the position within the time limit.
    """
    # Transactions that the source neither has executed nor owns any more were rolled back.
    wait_until_executed(
        connection,
        lambda: position & shown(source),
        settings.replica_wait_seconds,
        f"log server {log_settings(settings).host}:{log_settings(settings).port}",
        "what the run needs of the log",
    )


def wait_until_executed(
    connection: Connection, position: Callable[[], GtidSet], seconds: float, where: str, what: str
) -> float:
    """Wait until a replica has executed a position. Return the seconds.

    :param where, what: the replica and the position, for the message.
    :raises SourceUnavailable: the replica has not executed the position within the time limit.
    """
    began = time.monotonic()
    while not has_executed(connection, wanted := position(), min(seconds, _SLICE_SECONDS)):
        if time.monotonic() - began > seconds:
            missing = wanted - executed(connection)
            raise SourceUnavailable(
                f"the replica has lagged behind {what} for {seconds:.0f} s: it lacks "
                f"{str(missing)[:200]}{_obstacles(connection)}",
                where=where,
                hint="find out why the replica lags (SHOW REPLICA STATUS), or raise `Read.replica_wait_seconds`",
            )
    return time.monotonic() - began


def has_executed(connection: Connection, position: GtidSet, seconds: float) -> bool:
    """Wait until the server has executed the position, for some seconds at most."""
    return int(value(connection, "WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", (str(position), seconds))) == 0


def _obstacles(connection: Connection) -> str:
    """Describe what keeps a replica behind its source: threads that do not run, errors, and a delay."""
    harmless = {"Replica_IO_Running": "Yes", "Replica_SQL_Running": "Yes", "SQL_Delay": "0"}
    names = (*harmless, "Last_IO_Error", "Last_SQL_Error")
    found = [(name, str(channel[name])) for channel in replica_status(connection) for name in names]
    return "".join(f"; {name}: {text[:300]}" for name, text in found if text != harmless.get(name, ""))
