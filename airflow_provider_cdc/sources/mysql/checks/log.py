"""Checks of the binary log: its filters and its retention."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import TablesContext
from airflow_provider_cdc.sources.mysql.server.amazon import retention_problem
from airflow_provider_cdc.sources.mysql.tables.cascades import locked_with

_BYTES_PER_SECOND = 20_000_000
_MARGIN = 4
_LEAST_SECONDS = 600
"""The expected read rate of a run, a safety factor, and a minimum. The server must keep the log for `_MARGIN` times the
expected duration of the reads, plus `_LEAST_SECONDS`."""

_NO_FILTER = "start the server without the filter; replicas can filter instead (replicate_do_db, …)"


def _filters(context: TablesContext) -> Iterable[Problem]:
    """Yield a problem if the log omits changes in some schemas, or omits statements because of the session's default
    schema."""
    if context.filters is None:
        return
    included, excluded = context.filters
    schemas = dict.fromkeys(name.schema for table in context.tables for name in locked_with(table))
    unlogged = [schema for schema in schemas if (included and schema not in included) or schema in excluded]
    for schema in unlogged:
        yield Problem(
            f"schema {schema}",
            "the server does not log changes in this schema (binlog_do_db, binlog_ignore_db)",
            _NO_FILTER,
        )
    for option, names in ("binlog_do_db", included), ("binlog_ignore_db", excluded):
        # For row changes, the filter applies to the schema of the table. For TRUNCATE, ALTER and other DDL, the filter
        # applies to the default schema of the session.
        if names and schemas and not unlogged:
            which = "not in this list" if names is included else "in this list"
            yield Problem(
                option,
                f"is {', '.join(sorted(names))}: if a session's default schema is {which}, the server does not log "
                "the TRUNCATE, ALTER, RENAME and DROP statements of this session, whatever schema their tables are "
                "in. Runs cannot detect these statements",
                _NO_FILTER,
            )


def _retention(context: TablesContext) -> Iterable[Problem]:
    """Yield a problem if the server may purge the log before the run has read it."""
    # MySQL before 8.0.29 does not have this variable, and always purges the log.
    settings = {"binlog_expire_logs_auto_purge": "ON"} | context.variables(
        ["binlog_expire_logs_auto_purge", "binlog_expire_logs_seconds"]
    )
    keeps = int(settings.get("binlog_expire_logs_seconds", "0"))
    needed = _LEAST_SECONDS + _MARGIN * sum(table.bytes for table in context.tables) // _BYTES_PER_SECOND
    if context.is_amazon:
        if (problem := retention_problem(context.connection, needed)) is not None:
            yield problem
        return
    if settings.get("binlog_expire_logs_auto_purge") == "ON" and 0 < keeps < needed:
        yield Problem(
            "binlog_expire_logs_seconds",
            f"is {keeps}: the log may be purged before a run over these tables has read it",
            f"SET PERSIST binlog_expire_logs_seconds = {max(needed, 86_400)}",
        )


LOG: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.log-filters",
        "The log contains all changes to the copied schemas, regardless of the default schema of the session.",
        (Moment.PREFLIGHT, Moment.POSITION_FIXED),
        _NO_FILTER,
        _filters,
    ),
    Check(
        "mysql.log-retention",
        "The server keeps the log for longer than a run over these tables takes.",
        (Moment.PREFLIGHT,),
        "raise binlog_expire_logs_seconds",
        _retention,
    ),
)
