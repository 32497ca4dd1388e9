"""Lists the checks of PostgreSQL in the order in which they run. There is a group for each subject: server, run,
tables and request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_cdc.core.checks import Check, Moment, Raised, problems_of
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.planning.survey import request_problems
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.checks.context import (
    CatalogContext,
    RequestContext,
    RunContext,
    ServerContext,
    UserContext,
)
from airflow_provider_cdc.sources.postgres.checks.history import HISTORY
from airflow_provider_cdc.sources.postgres.checks.slots import LOCKS, PUBLICATION, ROOM
from airflow_provider_cdc.sources.postgres.checks.tables import (
    COLUMNS,
    EVENT_TRIGGERS,
    PLANNABLE,
    RELATIONS,
    ROWS_ELSEWHERE,
)
from airflow_provider_cdc.sources.postgres.server.server import change_setting, decodes_on_demand, platform
from airflow_provider_cdc.sources.postgres.server.session import Connection, value
from airflow_provider_cdc.sources.postgres.server.session_variables import REQUIRED

# Checks of the privileges of the connection's user.


def _slots(context: UserContext) -> Iterable[Problem]:
    return context.missing_of_server


def _tables(context: CatalogContext) -> Iterable[Problem]:
    return context.missing_of_tables


SERVER_PRIVILEGES: tuple[Check[UserContext], ...] = (
    Check(
        "postgres.may-read-log",
        "The user may create and read slots, and write messages to the log. If the connection names no publication, "
        "the user may create one.",
        (Moment.PREFLIGHT,),
        "grant what the message says, or name a publication in the connection",
        _slots,
    ),
)

TABLE_PRIVILEGES: tuple[Check[CatalogContext], ...] = (
    Check(
        "postgres.may-read-tables",
        "The user may read the tables, with all of their partitions and copied columns. If the connection names no "
        "publication, the user may also publish the tables.",
        (Moment.PREFLIGHT,),
        "GRANT SELECT on the tables; let their owner create a publication, or grant the owner's role",
        _tables,
    ),
)


# Checks of a run's options and table patterns.


def _options(context: RequestContext) -> Iterable[Problem]:
    return request_problems("postgres", context.patterns, context.options)


def _names(context: RequestContext) -> Iterable[Problem]:
    return context.unresolved


REQUEST: tuple[Check[RequestContext], ...] = (
    Check(
        "postgres.options",
        "This kind of source supports the options.",
        (Moment.PREFLIGHT,),
        "choose one of the values that the message lists",
        _options,
    ),
    Check(
        "postgres.tables-exist",
        "Each pattern names a table.",
        (Moment.PREFLIGHT,),
        "correct the pattern, or the connection's database",
        _names,
    ),
)


# Checks of the server, and of the server settings on which exact copies depend.


_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)


def _primary(context: ServerContext) -> Iterable[Problem]:
    if value(context.connection, "pg_is_in_recovery()"):
        yield Problem(
            "server", "is a standby; this version copies only from a primary", "name the primary in the connection"
        )


def _logical_log(context: ServerContext) -> Iterable[Problem]:
    level = value(context.connection, "current_setting('wal_level')")
    if level != "logical" and not decodes_on_demand(context.connection, level):
        yield Problem(
            "wal_level",
            f"is {level}: the log does not show which rows changed",
            change_setting(platform(context.connection), "wal_level", "logical"),
        )


def _damaged_pages(context: ServerContext) -> Iterable[Problem]:
    for name, required in REQUIRED.items():
        found = value(context.connection, f"current_setting('{name}', true)")
        if found not in (None, required.value):
            yield Problem(
                name,
                f"is {found}: {required.why}",
                f"RESET {name} for the server, for this database and for this user. Then find out what is damaged",
            )


def _encoding(context: ServerContext) -> Iterable[Problem]:
    encoding = value(context.connection, "current_setting('server_encoding')")
    if encoding != "UTF8":
        yield Problem(
            f"database {value(context.connection, 'current_database()')}",
            f"the encoding is {encoding}. The log and the tables may contain different text, except in UTF8 databases",
            "copy from a database created with ENCODING 'UTF8'",
        )


SETTINGS: tuple[Check[ServerContext], ...] = (
    Check(
        "postgres.primary",
        "The server is a primary.",
        _WHEN,
        "name the primary in the connection",
        _primary,
        (Raised(Moment.EACH_SESSION, "sources.postgres.server.session_setup:_check_server"),),
    ),
    Check(
        "postgres.logical-log",
        "The log shows which rows changed.",
        _WHEN,
        "set wal_level = logical (PostgreSQL 19 and later: replica or logical)",
        _logical_log,
    ),
    Check(
        "postgres.damaged-pages",
        "The server raises an error at a damaged page or value. It does not skip the page or use its contents.",
        _WHEN,
        "reset zero_damaged_pages, ignore_checksum_failure and composite_type_mismatch. Then find out what is damaged",
        _damaged_pages,
        (Raised(Moment.EACH_SESSION, "sources.postgres.server.session_setup:check"),),
    ),
    Check(
        "postgres.encoding",
        "Text is the same whether it is read from tables or from the log.",
        _WHEN,
        "copy from a database created with ENCODING 'UTF8'",
        _encoding,
    ),
)


OF_SERVER: tuple[Check[UserContext], ...] = (*SETTINGS, *SERVER_PRIVILEGES, *ROOM)
OF_A_RUN: tuple[Check[RunContext], ...] = HISTORY
OF_TABLES: tuple[Check[CatalogContext], ...] = (
    *TABLE_PRIVILEGES,
    *ROWS_ELSEWHERE,
    *COLUMNS,
    *RELATIONS,
    *PUBLICATION,
)
OF_A_REQUEST: tuple[Check[RequestContext], ...] = (
    *REQUEST,
    *SETTINGS,
    *SERVER_PRIVILEGES,
    *PLANNABLE,
    *LOCKS,
    *EVENT_TRIGGERS,
    *ROOM,
)


def check_settings(connection: Connection, moment: Moment) -> None:
    """Check the settings of a server.

    :raises PreflightError: a setting does not fit.
    """
    if problems := problems_of(SETTINGS, moment, ServerContext(connection)):
        raise PreflightError(problems)


def check_fixed(catalog: Catalog, tables: Sequence[Table], plans: Sequence[TablePlan], publication: str = "") -> None:
    """Run the checks of the tables that preflight has checked, while the position is fixed.

    :param publication: the publication of the run. Empty: it does not exist yet, and is not checked.
    :raises PreflightError: a table can no longer be copied, or the publication does not have all of its changes.
    """
    context = CatalogContext(catalog, tables=tables, plans=plans, publication=publication)
    if problems := problems_of((*RELATIONS, *PUBLICATION), Moment.POSITION_FIXED, context):
        raise PreflightError(problems)
