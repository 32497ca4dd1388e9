"""Amazon RDS and Aurora: how they differ from a self-managed server."""

from __future__ import annotations

import pymysql

from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, variables

_BASE = "/rdsdbbin"
_NO_TABLE, _DENIED = 1146, (1142, 1143, 1044)
_RETENTION = "binlog retention hours"


def is_amazon(connection: Connection) -> bool:
    """Return whether the server is Amazon RDS or Aurora. On these servers, users can neither set start options nor have
    the privilege SUPER."""
    values = variables(connection, ["basedir", "aurora_version"])
    return "aurora_version" in values or values.get("basedir", "").startswith(_BASE)


def setting_hint(setting: str) -> str:
    """Return a hint for changing a setting on Amazon RDS or Aurora."""
    return f"set {setting} in the parameter group of the instance or cluster, and reboot if it asks for that"


def retention_hours(connection: Connection) -> int | None:
    """Return the number of hours for which Amazon keeps the log. This setting of Amazon does not depend on
    binlog_expire_logs_seconds.

    0: the setting has no value. None: the user may not read the setting.
    """
    try:
        rows = query(connection, f"SELECT value FROM mysql.rds_configuration WHERE name = '{_RETENTION}'")
    except pymysql.MySQLError as error:
        if error.args[0] in (_NO_TABLE, *_DENIED):
            return None
        raise
    return int(rows[0][0] or 0) if rows else 0


def retention_problem(connection: Connection, needed: int) -> Problem | None:
    """Return a problem if Amazon keeps the log for less time than a run needs.

    None: Amazon keeps the log long enough, or the user may not read the setting.

    :param needed: the number of seconds for which a run needs the log.
    """
    hours = retention_hours(connection)
    if hours is None or hours * 3600 >= needed:
        return None
    return Problem(
        _RETENTION,
        f"is {hours or 'not set'}: the log may be purged before a run over these tables has read it",
        f"CALL mysql.rds_set_configuration('{_RETENTION}', {max(24, -(-needed // 3600))})",
    )
