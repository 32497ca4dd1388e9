"""Determines how long a MySQL server keeps its binary log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_cdc.core.run.spool_chain import reached
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.log import NeededLog
from airflow_provider_cdc.sources.api.planning import Runway
from airflow_provider_cdc.sources.mysql.server.amazon import is_amazon, retention_hours
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, file_number, log_files, stamp_of
from airflow_provider_cdc.sources.mysql.server.server import begun_at
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value, variables

_AUTO_PURGE, _SECONDS = "binlog_expire_logs_auto_purge", "binlog_expire_logs_seconds"
_AMAZON = "binlog retention hours"


def runway(settings: ConnectionSettings) -> Runway:
    """Implements `Source.runway`."""
    with session(settings) as connection:
        return _runway(connection)


def needed_log(
    settings: ConnectionSettings, identity: Mapping[str, str], since: Sequence[Mapping[str, str]]
) -> NeededLog:
    """Implements `Source.needed_log`.

    The server removes whole files, oldest first, when it begins a new file. It removes a file if the file was closed
    longer ago than the setting allows. A file is closed when the next file is created.
    """
    with session(settings) as connection:
        runway = _runway(connection)
        files = log_files(connection)
        now = int(value(connection, "UNIX_TIMESTAMP()"))
    names = {file_number(name): name for name in files}
    spooled = reached(identity)
    begun = [place for one in since if (place := begun_at(one)) is not None]
    place = LogPlace.parse(spooled.end) if spooled is not None else begun_at(identity)
    begun += [] if place is None else [place]
    first = min((file_number(place.file) for place in begun), default=max(names))
    seconds, is_closed = runway.seconds, first + 1 in names
    if seconds is not None and is_closed and (closed := stamp_of(settings, names[first + 1])):
        seconds = max(0.0, seconds - (now - int(closed)))
    position = min((place.position for place in begun if file_number(place.file) == first), default=0)
    needed = sum(size for name, size in files.items() if file_number(name) >= first)
    return NeededLog(
        # The server does not report how much it has purged. No limit is in bytes, so this is only for display.
        written=needed,
        kept=max(0, needed - position),
        seconds=seconds,
        limit=runway.why if runway.seconds is None else f"{runway.why} = {runway.seconds:,.0f} s",
        hint=f"raise {_AMAZON} (CALL mysql.rds_set_configuration)"
        if runway.why == _AMAZON
        else f"raise {_SECONDS} (SET PERSIST)",
        begins=f"{first}:{position}",
        # A quiet server may write to the same file for days, and does not remove it.
        certain=is_closed,
    )


def _runway(connection: Connection) -> Runway:
    if is_amazon(connection):
        hours = retention_hours(connection)
        if hours is None:
            return Runway(None, "this user may not see how long the server keeps its log")
        return Runway(hours * 3600.0, _AMAZON)
    values = variables(connection, [_AUTO_PURGE, _SECONDS])
    seconds = int(values.get(_SECONDS, "0"))
    # Before 8.0.29, automatic purging cannot be switched off.
    if not seconds or values.get(_AUTO_PURGE, "ON") != "ON":
        return Runway(None, "the server does not purge its log by itself", unbounded=True)
    return Runway(float(seconds), _SECONDS)
