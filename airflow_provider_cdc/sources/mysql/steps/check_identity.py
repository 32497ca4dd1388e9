"""Checks that the server, the server's history and its settings are the same as when a run began or a copy was made."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ConfigurationError, ExactnessError
from airflow_provider_cdc.sources.api.source import ConnectionSettings, NeededLog, Reach, Runway
from airflow_provider_cdc.sources.mysql.checks.asked import OF_A_RUN
from airflow_provider_cdc.sources.mysql.checks.context import RunContext
from airflow_provider_cdc.sources.mysql.server.dialect import RETENTION_HOURS, Service
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import file_number, log_files, stamp_of
from airflow_provider_cdc.sources.mysql.server.replication import log_settings
from airflow_provider_cdc.sources.mysql.server.server import CLOCK, kept_seconds, service
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, session, value
from airflow_provider_cdc.sources.mysql.steps.log_server import check_log_server


def check_identity(
    settings: ConnectionSettings,
    connection: Connection,
    expected: MysqlFacts,
    position: GtidSet,
    moment: Moment = Moment.EACH_STEP,
) -> None:
    """Check that the server is the server of ``expected``, and that its log history and settings have not changed. The
    same is checked of the server from which the log is read.

    :raises SourceReplaced: another server answered, or the server's history does not contain ``position``.
    :raises LogGone: the log was purged past ``position``. Or the server has crashed since ``position``, or was
        restarted more than once.
    :raises ExactnessError: a setting on which exactness depends is wrong, or was set after ``expected`` was recorded.
    """
    context = RunContext(connection, settings=settings, expected=expected.of_source, position=position)
    if problems := problems_of(OF_A_RUN, moment, context):
        raise ExactnessError(
            "; ".join(f"{problem.where} {problem.what}" for problem in problems),
            where=f"server {context.state.server_uuid}",
            hint="correct the setting, do not change it during a run, and trigger a new run",
        )
    check_log_server(settings, connection, expected, position, moment)


# Determines whether a server has reached a position or a time. The server may be a replica or a source.


def has_reached(settings: ConnectionSettings, target: AsOf) -> Reach:
    """`Source.has_reached`.

    A server has reached a time when its clock is past the time: every later commit then gets a later commit time
    (docs/design/as-of.md).
    """
    if isinstance(target, Lsn):
        raise ConfigurationError(
            f"{target} is an LSN, and the source is MySQL", where=settings.address, hint="give a GTID set or a time"
        )
    with session(settings) as connection:
        ((executed, now),) = query(connection, f"SELECT @@global.gtid_executed, {CLOCK}")
    if isinstance(target, GtidSet):
        missing = target - GtidSet.parse(str(executed))
        return Reach(not missing, f"it lacks {format_count(len(missing), 'transaction')}: {str(missing)[:200]}")
    assert isinstance(target, datetime)
    clock = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(now))
    return Reach(clock > target, f"the server's clock shows {clock:%Y-%m-%d %H:%M:%S} UTC")


# Determines how long a MySQL server keeps its binary log.


def runway(settings: ConnectionSettings) -> Runway:
    """Implements `Source.runway`."""
    with session(log_settings(settings)) as connection:
        return _runway(connection, service(connection))


def needed_log(settings: ConnectionSettings, facts: MysqlFacts, since: Sequence[MysqlFacts]) -> NeededLog:
    """Implements `Source.needed_log`.

    The server removes whole files, oldest first, when it begins a new file. It removes a file if the file was closed
    longer ago than the setting allows. A file is closed when the next file is created.
    """
    settings, facts, since = log_settings(settings), facts.of_log, [one.of_log for one in since]
    with session(settings) as connection:
        host = service(connection)
        runway = _runway(connection, host)
        files = log_files(connection)
        now = int(value(connection, "UNIX_TIMESTAMP()"))
    names = {file_number(name): name for name in files}
    places = (*(one.begun for one in since), facts.needed_from)
    begun = [place for place in places if place is not None]
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
        hint=host.longer,
        begins=f"{first}:{position}",
        # A quiet server may write to the same file for days, and does not remove it.
        certain=is_closed,
    )


def _runway(connection: Connection, host: Service) -> Runway:
    seconds = kept_seconds(connection, host)
    if seconds is not None:
        return Runway(float(seconds), host.keep)
    if host.keep == RETENTION_HOURS:
        return Runway(None, "this user may not see how long the server keeps its log")
    return Runway(None, "the server does not purge its log by itself", unbounded=True)
