"""Checks of the privileges of the connection's user."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import ServerContext, TablesContext
from airflow_provider_cdc.sources.mysql.tables.cascades import locked_with


def _reads_log(context: ServerContext) -> Iterable[Problem]:
    return context.privileges.server_problems()


def _reads_tables(context: TablesContext) -> Iterable[Problem]:
    return context.unreadable


def _locks_tables(context: TablesContext) -> Iterable[Problem]:
    return context.privileges.lock_problems([name for table in context.planned("lock") for name in locked_with(table)])


SERVER_PRIVILEGES: tuple[Check[ServerContext], ...] = (
    Check(
        "mysql.may-read-log",
        "The user may query the end of the log, and read the log.",
        (Moment.PREFLIGHT,),
        "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* to the user of the connection",
        _reads_log,
    ),
)

READ_PRIVILEGES: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.may-read-tables",
        "The user may read all columns of the tables (the server silently omits columns that the user may not read), "
        "and the server can read a row of each.",
        (Moment.PREFLIGHT, Moment.POSITION_FIXED),
        "GRANT SELECT on the tables to the user of the connection; repair a table that the server cannot read",
        _reads_tables,
    ),
)

LOCK_PRIVILEGES: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.may-lock-tables",
        "The user may lock the tables that are read under a lock.",
        (Moment.PREFLIGHT,),
        "GRANT LOCK TABLES on the schemas to the user of the connection",
        _locks_tables,
    ),
)
