"""The server behind a session: the settings that exactness rests on, and its identity.

Preflight checks the settings before a run; every later step checks them again, together with the identity. Settings
that the log itself shows (row image, format) are checked once more on each event: a session can have its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pymysql

from airflow_provider_cdc.core.copies.history import MARK
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import ExactnessError, LogGone, Problem, SourceReplaced
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.amazon import is_amazon, setting_hint
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    check_continuity,
    check_place,
    log_files,
    log_status,
    settled_end_of_log,
)
from airflow_provider_cdc.sources.mysql.server.log_mark import LogMark, check_mark, mark_of, mark_of_present
from airflow_provider_cdc.sources.mysql.server.session import (
    HOSTNAME,
    SERVER_UUID,
    Connection,
    RunSettings,
    is_server_itself,
    query,
    value,
    variables,
)


@dataclass(frozen=True)
class _Rule:
    """A global variable, the values it may have, and what is wrong with any other.

    ``absent``: what a server counts as that does not have the variable.
    """

    variable: str
    allowed: tuple[str, ...]
    why: str
    absent: str = "unknown"

    def hint(self, *, amazon: bool) -> str:
        setting = f"{self.variable} = {self.allowed[0]}"
        if amazon:
            return setting_hint(setting)
        if self.variable in ("log_bin", "log_replica_updates", "innodb_force_recovery"):
            return f"start the server with {setting}"
        return f"SET PERSIST {setting}"


_ALWAYS = (
    _Rule("log_bin", ("ON",), "there is no binary log, so nothing tells what changed while the tables were read"),
    _Rule("gtid_mode", ("ON",), "transactions have no GTIDs, so there is no position to name"),
    _Rule("enforce_gtid_consistency", ("ON",), "some transactions may be logged without a GTID"),
    _Rule("binlog_format", ("ROW",), "changes are logged as statements, without the rows"),
    _Rule("binlog_row_image", ("FULL",), "the log leaves out columns of changed rows"),
    _Rule(
        "binlog_order_commits",
        ("ON",),
        "transactions may become visible in another order than that of the log and of gtid_executed",
    ),
    _Rule(
        "binlog_error_action",
        ("ABORT_SERVER",),
        "after a failed write to the log the server goes on without a log",
    ),
    _Rule(
        "innodb_force_recovery",
        ("0",),
        "damaged pages are skipped without an error, and rows of transactions that did not commit may be shown",
        absent="0",
    ),
)
_ON_A_REPLICA = (
    _Rule("log_replica_updates", ("ON",), "the server is a replica and does not log what it replicates"),
    _Rule(
        "replica_preserve_commit_order",
        ("ON",),
        "the server is a replica and commits in another order than its source",
    ),
)
# The log does not show these either, and only a restart changes them: the same before and after a single restart, they
# were the same all along.
_FIXED = ("innodb_native_foreign_keys", "log_replica_updates", "lower_case_table_names", "version")
_FIXED_PREFIX = "fixed."
# The log does not show what these were; when they were set last shows that they were not touched during a run.
WATCHED = ("binlog_error_action", "binlog_order_commits", "replica_preserve_commit_order")
# Whoever knows where in the log a run began sees every transaction that has no GTID. Whoever looks a past position up
# by GTIDs may be sent behind some.
WATCHED_IN_THE_PAST = (*WATCHED, "gtid_mode")
_DURABLE = ("sync_binlog", "innodb_flush_log_at_trx_commit")
_LAST_SET = "last_set."
STARTED, LOG_PLACE = "started", "log_place"
_STARTED = (
    "(SELECT CAST(UNIX_TIMESTAMP() - VARIABLE_VALUE AS SIGNED) FROM performance_schema.global_status "
    "WHERE VARIABLE_NAME = 'Uptime')"
)
_PRIVILEGE_MISSING = 1227


def setting_problems(connection: Connection, *, replicated: bool = False) -> list[Problem]:
    """What is wrong with the server's settings now.

    :param replicated: it is held to the rules for a replica, whether it still is one or not.
    """
    rules = [*_ALWAYS, *(_ON_A_REPLICA if replicated or is_replica(connection) is not False else ())]
    values = variables(connection, [rule.variable for rule in rules])
    proxy = Problem(
        "connection",
        "a proxy answers in place of the server, and may pass statements on to several servers",
        "connect to the server itself, or let the proxy pass connections on as they are",
    )
    wrong = [rule for rule in rules if values.get(rule.variable, rule.absent) not in rule.allowed]
    amazon = bool(wrong) and is_amazon(connection)
    return ([] if is_server_itself(connection) else [proxy]) + [
        Problem(rule.variable, f"is {values.get(rule.variable, 'unknown')}: {rule.why}", rule.hint(amazon=amazon))
        for rule in wrong
    ]


def durability_warnings(connection: Connection) -> list[str]:
    """Settings with which the server may lose what it has committed, when its machine fails."""
    found = variables(connection, _DURABLE)
    return [
        f"{name} is {found.get(name, 'unknown')}: if the server's machine fails, transactions are lost that were "
        "visible already, so a run that is in progress begins anew, and a copy that was just published may hold them"
        for name in _DURABLE
        if found.get(name) != "1"
    ]


def identity(settings: ConnectionSettings, connection: Connection) -> dict[str, str]:
    """What tells this server, in this state of its settings, from another: JSON for the manifest.

    It is to be taken before the initial position: what is set later shows up as a difference.
    """
    found = _state(connection)
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


def check_identity(
    settings: ConnectionSettings, connection: Connection, expected: Mapping[str, str], position: GtidSet
) -> None:
    """Make sure that this is the server of ``expected``, and that its history and settings are intact.

    :raises SourceReplaced: another server, or one whose history does not contain ``position``.
    :raises LogGone: the log was purged past ``position``, or the server crashed since then, or was started again more
        often than once.
    :raises ExactnessError: a setting that the proof rests on is wrong, or was set since ``expected`` was taken.
    """
    found = _state(connection)
    uuid = found[SERVER_UUID]
    if uuid != expected[SERVER_UUID] or found[HOSTNAME] != expected.get(HOSTNAME, found[HOSTNAME]):
        raise SourceReplaced(
            f"the run began on server {expected[SERVER_UUID]} ({expected.get(HOSTNAME)}), but server {uuid} "
            f"({found[HOSTNAME]}) answers",
            where="server_uuid",
            hint="point the connection back to the first server, or trigger a new run on this one",
        )
    if STARTED not in expected:
        raise ExactnessError(
            "the run was begun by an older version of this provider, which did not record when the server was started",
            where=f"server {uuid}",
            hint="trigger a new run",
        )
    begun, files, here = LogPlace.parse(expected[LOG_PLACE]), log_files(connection), RunSettings.of(settings, found)
    check_place(here, files, begun)
    if found[STARTED] != expected[STARTED]:
        check_continuity(here, files, begun)
    check_log(connection, position)
    if MARK in expected:
        # What was committed between the beginning and the position is there, and not only others with these GTIDs.
        check_mark(here, files, LogMark.parse(expected[MARK]))
    problems = [f"{problem.where} {problem.what}" for problem in setting_problems(connection)]
    problems += [
        f"{key.removeprefix(_LAST_SET)} was set at {when}, after the run began: what it was in between is unknown"
        for key, when in found.items()
        if key.startswith(_LAST_SET) and when and when != expected.get(key, "")
    ]
    problems += [
        f"{key.removeprefix(_FIXED_PREFIX)} is {found.get(key, 'unknown')} since the server was started again; "
        f"when the run began it was {expected.get(key, 'unknown')}"
        for key in sorted({*found, *expected})
        if key.startswith(_FIXED_PREFIX) and found.get(key) != expected.get(key)
    ]
    if problems:
        raise ExactnessError(
            "; ".join(problems),
            where=f"server {uuid}",
            hint="put the setting right, leave it alone during a run, and trigger a new run",
        )


def _state(connection: Connection) -> dict[str, str]:
    uuid, host, start = query(connection, f"SELECT @@global.server_uuid, @@global.hostname, {_STARTED}")[0]
    _, _, alone, ignored, *_ = log_status(connection)
    fixed = variables(connection, _FIXED) | {"binlog_do_db": alone, "binlog_ignore_db": ignored}
    return (
        {SERVER_UUID: str(uuid), HOSTNAME: str(host), STARTED: str(start)}
        | {f"{_FIXED_PREFIX}{name}": setting for name, setting in fixed.items()}
        | {f"{_LAST_SET}{variable}": when for variable, when in _last_set(connection).items()}
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
