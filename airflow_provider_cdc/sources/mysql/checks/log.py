"""The binary log: what it leaves out, how long it is kept, and what its reader stops for."""

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
"""A run is expected to read so fast; the log has to outlive it so many times over, and the rest of the run besides."""

_NO_FILTER = "start the server without the filter; its replicas can filter for themselves (replicate_do_db, …)"


def _filters(context: TablesContext) -> Iterable[Problem]:
    """A log that leaves out schemas, or what is done from there."""
    if context.filters is None:
        return
    included, excluded = context.filters
    schemas = dict.fromkeys(name.schema for table in context.tables for name in locked_with(table))
    unlogged = [schema for schema in schemas if (included and schema not in included) or schema in excluded]
    for schema in unlogged:
        yield Problem(f"schema {schema}", "the server does not log it (binlog_do_db, binlog_ignore_db)", _NO_FILTER)
    for option, names in ("binlog_do_db", included), ("binlog_ignore_db", excluded):
        # Rows are logged or not by the schema that they are in, but TRUNCATE, ALTER and the like by the one that the
        # session is in.
        if names and schemas and not unlogged:
            which = "another one" if names is included else "one of these"
            yield Problem(
                option,
                f"is {', '.join(sorted(names))}: what a session whose default schema is {which} does to tables of any "
                "schema by TRUNCATE, ALTER, RENAME or DROP is not in the log, so it would not be noticed",
                _NO_FILTER,
            )


def _retention(context: TablesContext) -> Iterable[Problem]:
    """A log that is thrown away before the run has read it."""
    # Before 8.0.29 it cannot be switched off.
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
        "The log has what is done in all copied schemas, from whichever schema it is done.",
        (Moment.PREFLIGHT, Moment.POSITION_FIXED),
        _NO_FILTER,
        _filters,
    ),
    Check(
        "mysql.log-retention",
        "The log is kept for longer than a run over these tables takes.",
        (Moment.PREFLIGHT,),
        "raise binlog_expire_logs_seconds",
        _retention,
    ),
)
