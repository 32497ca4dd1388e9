"""Checks of the server, and of the server settings on which exact copies depend."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.checks.context import ServerContext
from airflow_provider_cdc.sources.postgres.server.platform import change_setting, platform
from airflow_provider_cdc.sources.postgres.server.session import value
from airflow_provider_cdc.sources.postgres.server.session_variables import REQUIRED

_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)


def _primary(context: ServerContext) -> Iterable[Problem]:
    if value(context.connection, "pg_is_in_recovery()"):
        yield Problem(
            "server", "is a standby; this version copies only from a primary", "name the primary in the connection"
        )


def _logical_log(context: ServerContext) -> Iterable[Problem]:
    level = value(context.connection, "current_setting('wal_level')")
    if level != "logical":
        yield Problem(
            "wal_level",
            f"is {level}: the log does not show which rows changed",
            change_setting(platform(context.connection), "wal_level", "logical"),
        )


def _damaged_pages(context: ServerContext) -> Iterable[Problem]:
    for name, required in REQUIRED.items():
        if value(context.connection, f"current_setting('{name}')") != required.value:
            yield Problem(
                name,
                "is on: on a damaged page, the server silently skips rows, or reads wrong data",
                f"RESET {name} for the server, for this database and for this user. Then find out which pages are "
                "damaged",
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
        "set wal_level = logical",
        _logical_log,
    ),
    Check(
        "postgres.damaged-pages",
        "The server raises an error at a damaged page. It does not skip the page or use its contents.",
        _WHEN,
        "reset zero_damaged_pages and ignore_checksum_failure. Then find out which pages are damaged",
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
