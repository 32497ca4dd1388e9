"""Estimates how long a PostgreSQL server keeps the log for the slot of a run."""

from __future__ import annotations

from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.optional_capabilities import Runway
from airflow_provider_cdc.sources.postgres.server.session import query, session

_KEPT = "max_slot_wal_keep_size"
# The average rate at which the server has written log, in bytes per second since its statistics were last reset.
_RATE = (
    "SELECT wal_bytes::float8 / greatest(1, extract(epoch FROM clock_timestamp() - stats_reset)::float8) "
    "FROM pg_stat_wal"
)


def runway(settings: ConnectionSettings) -> Runway:
    """`TellsRunway.runway`. The slot keeps the log up to a limit in bytes, so the time is estimated from the write
    rate."""
    with session(settings) as connection:
        ((megabytes,),) = query(connection, "SELECT setting::bigint FROM pg_settings WHERE name = %s", (_KEPT,))
        ((rate,),) = query(connection, _RATE)
    if megabytes < 0:
        why = f"{_KEPT} is -1: only the disk limits the log that a slot keeps"
        return Runway(None, why, unbounded=True)
    if not rate:
        return Runway(None, f"{_KEPT} is {megabytes:,} MB, and the rate at which the server writes log is unknown")
    written = f"the server writes {rate / 2**20 * 3600:,.1f} MB of log per hour on average"
    return Runway(megabytes * 2**20 / rate, f"{_KEPT} is {megabytes:,} MB, and {written}")
