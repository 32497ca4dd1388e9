"""Determines how long a MySQL server keeps its binary log."""

from __future__ import annotations

from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.optional_capabilities import Runway
from airflow_provider_cdc.sources.mysql.server.amazon import is_amazon, retention_hours
from airflow_provider_cdc.sources.mysql.server.session import session, variables

_AUTO_PURGE, _SECONDS = "binlog_expire_logs_auto_purge", "binlog_expire_logs_seconds"


def runway(settings: ConnectionSettings) -> Runway:
    """Implements `TellsRunway.runway`."""
    with session(settings) as connection:
        if is_amazon(connection):
            hours = retention_hours(connection)
            if hours is None:
                return Runway(None, "this user may not see how long the server keeps its log")
            return Runway(hours * 3600.0, "binlog retention hours")
        values = variables(connection, [_AUTO_PURGE, _SECONDS])
    seconds = int(values.get(_SECONDS, "0"))
    # Before 8.0.29, automatic purging cannot be switched off.
    if not seconds or values.get(_AUTO_PURGE, "ON") != "ON":
        return Runway(None, "the server does not purge its log by itself", unbounded=True)
    return Runway(float(seconds), _SECONDS)
