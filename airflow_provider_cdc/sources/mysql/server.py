"""The server behind a session: the settings that exactness rests on, and its identity.

Preflight checks the settings before a run; every later step checks them again, together with the identity. Settings
that the log itself shows (row image, format) are checked once more on each event: a session can have its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pymysql

from airflow_provider_cdc.core.gtid import GtidSet
from airflow_provider_cdc.errors import ExactnessError, LogGone, Problem, SourceReplaced
from airflow_provider_cdc.sources.mysql.session import Connection, query, value


@dataclass(frozen=True)
class _Rule:
    """A global variable, the values it may have, and what is wrong with any other."""

    variable: str
    allowed: tuple[str, ...]
    why: str

    @property
    def hint(self) -> str:
        setting = f"{self.variable} = {self.allowed[0]}"
        if self.variable in ("log_bin", "log_replica_updates"):
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
)
_ON_A_REPLICA = (
    _Rule("log_replica_updates", ("ON",), "the server is a replica and does not log what it replicates"),
    _Rule(
        "replica_preserve_commit_order",
        ("ON",),
        "the server is a replica and commits in another order than its source",
    ),
)
# The log does not show what these were; when they were set last shows that they were not touched during a run.
_WATCHED = ("binlog_error_action", "binlog_order_commits", "replica_preserve_commit_order")
_LAST_SET = "last_set."
_PRIVILEGE_MISSING = 1227


def setting_problems(connection: Connection) -> list[Problem]:
    """What is wrong with the server's settings now."""
    rules = [*_ALWAYS, *(_ON_A_REPLICA if is_replica(connection) is not False else ())]
    values = variables(connection, [rule.variable for rule in rules])
    return [
        Problem(rule.variable, f"is {values.get(rule.variable, 'unknown')}: {rule.why}", rule.hint)
        for rule in rules
        if values.get(rule.variable) not in rule.allowed
    ]


def identity(connection: Connection) -> dict[str, str]:
    """What tells this server, in this state of its settings, from another: JSON for the manifest."""
    uuid, version = query(connection, "SELECT @@global.server_uuid, @@global.version")[0]
    return {"server_uuid": uuid, "version": version} | {
        f"{_LAST_SET}{variable}": when for variable, when in _last_set(connection).items()
    }


def check_identity(connection: Connection, expected: Mapping[str, str], position: str) -> None:
    """Make sure that this is the server of ``expected``, and that its history and settings are intact.

    :raises SourceReplaced: another server, or one whose history does not contain ``position``.
    :raises LogGone: the log was purged past ``position``.
    :raises ExactnessError: a setting that the proof rests on is wrong, or was set since ``expected`` was taken.
    """
    found = identity(connection)
    uuid = found["server_uuid"]
    if uuid != expected["server_uuid"]:
        raise SourceReplaced(
            f"the run began on server {expected['server_uuid']}, but server {uuid} answers",
            where="server_uuid",
            hint="point the connection back to the first server, or trigger a new run on this one",
        )
    initial = GtidSet.parse(position)
    check_log(connection, initial)
    problems = [f"{problem.where} {problem.what}" for problem in setting_problems(connection)]
    problems += [
        f"{key.removeprefix(_LAST_SET)} was set at {when}, after the run began: what it was in between is unknown"
        for key, when in found.items()
        if key.startswith(_LAST_SET) and when and when != expected.get(key, "")
    ]
    if problems:
        raise ExactnessError(
            "; ".join(problems),
            where=f"server {uuid}",
            hint="put the setting right, leave it alone during a run, and trigger a new run",
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
    """Whether the server replicates from another; None if this user is not told, which is a problem of its own."""
    try:
        return bool(query(connection, "SHOW REPLICA STATUS"))
    except pymysql.OperationalError as error:
        if error.args[0] == _PRIVILEGE_MISSING:
            return None
        raise


def variables(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Global variables as text (``ON``, ``OFF``), those that the server has."""
    marks = ", ".join(["%s"] * len(names))
    rows = query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    return {name: str(setting) for name, setting in rows}


def _last_set(connection: Connection) -> dict[str, str]:
    marks = ", ".join(["%s"] * len(_WATCHED))
    rows = query(
        connection,
        "SELECT VARIABLE_NAME, COALESCE(CAST(SET_TIME AS CHAR), '') FROM performance_schema.variables_info "
        f"WHERE VARIABLE_NAME IN ({marks})",
        _WATCHED,
    )
    return dict(rows)
