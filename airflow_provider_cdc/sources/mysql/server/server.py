"""The server behind a session: which one it is, and with which settings that the log does not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pymysql

from airflow_provider_cdc.core.copies.history import MARK
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import LogGone, SourceReplaced
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    log_status,
    settled_end_of_log,
)
from airflow_provider_cdc.sources.mysql.server.log_mark import mark_of, mark_of_present
from airflow_provider_cdc.sources.mysql.server.session import (
    HOSTNAME,
    SERVER_UUID,
    Connection,
    RunSettings,
    query,
    value,
    variables,
)

# The log does not show these either, and only a restart changes them: the same before and after a single restart, they
# were the same all along.
_FIXED = ("innodb_native_foreign_keys", "log_replica_updates", "lower_case_table_names", "version")
FIXED_PREFIX = "fixed."
# The log does not show what these were; when they were set last shows that they were not touched during a run.
WATCHED = ("binlog_error_action", "binlog_order_commits", "replica_preserve_commit_order")
# Whoever knows where in the log a run began sees every transaction that has no GTID. Whoever looks a past position up
# by GTIDs may be sent behind some.
WATCHED_IN_THE_PAST = (*WATCHED, "gtid_mode")
_DURABLE = ("sync_binlog", "innodb_flush_log_at_trx_commit")
LAST_SET = "last_set."
STARTED, LOG_PLACE = "started", "log_place"
_STARTED = (
    "(SELECT CAST(UNIX_TIMESTAMP() - VARIABLE_VALUE AS SIGNED) FROM performance_schema.global_status "
    "WHERE VARIABLE_NAME = 'Uptime')"
)
_PRIVILEGE_MISSING = 1227


def durability_warnings(connection: Connection) -> list[str]:
    """Settings with which the server may lose what it has committed, when its machine fails."""
    values = variables(connection, _DURABLE)
    return [
        f"{name} is {values.get(name, 'unknown')}: if the server's machine fails, transactions are lost that were "
        "visible already, so a run that is in progress begins anew, and a copy that was just published may hold them"
        for name in _DURABLE
        if values.get(name) != "1"
    ]


def identity(settings: ConnectionSettings, connection: Connection) -> dict[str, str]:
    """What tells this server, in this state of its settings, from another: JSON for the manifest.

    It is to be taken before the initial position: what is set later shows up as a difference.
    """
    found = state(connection)
    here = RunSettings.of(settings, found)
    return found | {LOG_PLACE: str(settled_end_of_log(here, connection))}


def with_mark(
    settings: ConnectionSettings, connection: Connection, identity: Mapping[str, str], place: LogPlace | None = None
) -> dict[str, str]:
    """``identity`` with the mark of a position that was fixed after it was taken.

    :param place: where the log has the position; None: it is the present one.
    """
    here, begun = RunSettings.of(settings, identity), LogPlace.parse(identity[LOG_PLACE])
    if place is None:
        return {**identity, MARK: mark_of_present(here, connection, begun)}
    return {**identity, LOG_PLACE: str(place), MARK: mark_of(here, place)}


def begun_at(identity: Mapping[str, str]) -> LogPlace | None:
    """The place in the log at which ``identity`` was taken; None: it does not say."""
    place = identity.get(LOG_PLACE, "")
    return LogPlace.parse(place) if place else None


def started(connection: Connection) -> str:
    """When the server was started: another time is another start."""
    # The server counts from its start to the statement's, in whole seconds; so the difference is the same at all times.
    return str(value(connection, _STARTED))


def state(connection: Connection) -> dict[str, str]:
    """What the server is now: which one, since when, and with which settings that the log does not show."""
    uuid, host, start = query(connection, f"SELECT @@global.server_uuid, @@global.hostname, {_STARTED}")[0]
    _, _, alone, ignored, *_ = log_status(connection)
    fixed = variables(connection, _FIXED) | {"binlog_do_db": alone, "binlog_ignore_db": ignored}
    return (
        {SERVER_UUID: str(uuid), HOSTNAME: str(host), STARTED: str(start)}
        | {f"{FIXED_PREFIX}{name}": setting for name, setting in fixed.items()}
        | {f"{LAST_SET}{variable}": when for variable, when in _last_set(connection).items()}
    )


def check_log(connection: Connection, initial: GtidSet) -> None:
    """Make sure that the server executed ``initial`` and still has the log of everything after it.

    :raises SourceReplaced: the server's history does not contain ``initial``.
    :raises LogGone: the log was purged past ``initial``.
    """
    # Purged first: what is purged between the two reads is then found missing by the reader, not overlooked here.
    purged, executed = (
        GtidSet.parse(value(connection, f"@@global.{name}")) for name in ("gtid_purged", "gtid_executed")
    )
    if not initial <= executed:
        raise SourceReplaced(
            f"the server's history lacks {initial - executed}, which the run's initial position contains",
            where="gtid_executed",
            hint="point the connection back to the server the run began on, or trigger a new run",
        )
    if not purged <= initial:
        raise LogGone(
            f"the log of {purged - initial} was purged, which the run still needs",
            where="gtid_purged",
            hint="trigger a new run, and raise binlog_expire_logs_seconds so that the log outlives it",
        )


def is_replica(connection: Connection) -> bool | None:
    """Whether the server replicates from another; None if this user may not know, which is a problem of its own."""
    try:
        return bool(query(connection, "SHOW REPLICA STATUS"))
    except pymysql.OperationalError as error:
        if error.args[0] == _PRIVILEGE_MISSING:
            return None
        raise


def last_set(connection: Connection) -> dict[str, datetime | None]:
    """When the settings that the log does not show, or not whoever looks for a past position in it, were last set by
    hand; None: not since the server's start. What the server does not tell is left out."""
    return {
        name: datetime.fromisoformat(when).replace(tzinfo=UTC) if when else None
        for name, when in _last_set(connection, WATCHED_IN_THE_PAST).items()
    }


def _last_set(connection: Connection, names: Sequence[str] = WATCHED) -> dict[str, str]:
    marks = ", ".join(["%s"] * len(names))
    rows = query(
        connection,
        "SELECT VARIABLE_NAME, COALESCE(CAST(SET_TIME AS CHAR), '') FROM performance_schema.variables_info "
        f"WHERE VARIABLE_NAME IN ({marks})",
        names,
    )
    return dict(rows)
