"""Everything that a run needs, checked before it: all problems at once, each with its hint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pymysql

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import LogGone, PreflightError, Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.chunking.misplaced_partition_rows import misplaced_problems
from airflow_provider_cdc.sources.mysql.server.amazon import is_amazon, retention_problem
from airflow_provider_cdc.sources.mysql.server.blockers import naming_blockers
from airflow_provider_cdc.sources.mysql.server.log_history import log_status
from airflow_provider_cdc.sources.mysql.server.privileges import Privileges
from airflow_provider_cdc.sources.mysql.server.server import durability_warnings, setting_problems
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, variables
from airflow_provider_cdc.sources.mysql.tables.cascades import (
    locked_with,
    parents_of,
    watermark_problems,
    with_parents,
)
from airflow_provider_cdc.sources.mysql.tables.generated import generated_problems
from airflow_provider_cdc.sources.mysql.tables.identity import identity_warnings
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables, resolve, select_of_tables, table_sql
from airflow_provider_cdc.sources.mysql.tables.types import (
    ColumnType,
    Family,
    is_wide_decimal,
    unsupported,
    unsupported_key,
)
from airflow_provider_cdc.sources.planning.request_checks import request_problems

_log = logging.getLogger(__name__)

_ENGINE = "InnoDB"

_BYTES_PER_SECOND = 20_000_000
_MARGIN = 4
_LEAST_SECONDS = 600
"""A run is expected to read so fast; the log has to outlive it so many times over, and the rest of the run besides."""

_NO_FILTER = "start the server without the filter; its replicas can filter for themselves (replicate_do_db, …)"

# With these in their labels columns show '?' there instead: the server's catalog has no characters beyond U+FFFF.
_BEYOND_THE_CATALOG = frozenset({"gb18030", "utf16", "utf16le", "utf32", "utf8mb4"})


def preflight(settings: ConnectionSettings, patterns: Sequence[str], options: TableOptions) -> list[TablePlan]:
    """Check everything that a run needs, and decide how each table is read.

    :param patterns: ``schema.table``; ``*`` matches any run of characters in either part, and a pattern
        that begins with ``!`` leaves out what those before it named (``!shop._*_gho``).
    :param options: consistency ``auto`` reads tables with a key by ``watermark``, and the others with ``lock``.
    :raises PreflightError: with every problem found.
    :raises LockNotGranted: a session keeps a table locked against readers.
    :raises SourceUnavailable: the server cannot be reached.
    :raises ConfigurationError: the connection cannot work, or the server is too old.
    """
    with session(settings) as connection, naming_blockers(settings, connection) as concerned:
        privileges = Privileges(connection)
        names, unresolved = resolve(connection, patterns)
        concerned += names
        problems = [*request_problems("mysql", patterns, options), *unresolved]
        problems += [*setting_problems(connection), *privileges.server_problems()]
        unreadable = {name: problem for name in names if (problem := privileges.select_problem(name))}
        problems += unreadable.values()
        tables = read_tables(connection, [name for name in names if name not in unreadable])
        tables = tuple(replace(table, options=options) for table in tables)
        tables, hidden = with_parents(connection, privileges, tables)
        problems += hidden
        plans = [_plan(table, options) for table in tables]
        problems += _table_problems(connection, tables, options.consistency)
        if options.consistency == "watermark":
            problems += watermark_problems(connection, tables)
        locked = {plan.table for plan in plans if plan.consistency == "lock"}
        problems += privileges.lock_problems(
            [name for table in tables if table.name in locked for name in locked_with(table)]
        )
        problems += _filter_problems(connection, tables)
        problems += _retention_problems(connection, tables)
        warnings = [*durability_warnings(connection), *identity_warnings(connection)]
    if problems:
        raise PreflightError(problems)
    for warning in warnings:
        _log.warning("%s", warning)
    return plans


def check_server(settings: ConnectionSettings) -> list[Problem]:
    """`ChecksServer.check_server`."""
    with session(settings) as connection:
        return [*setting_problems(connection), *Privileges(connection).server_problems()]


def recheck(
    connection: Connection, tables: Sequence[Table], plans: Sequence[TablePlan]
) -> tuple[tuple[Table, ...], list[Problem]]:
    """Of all that is checked of tables, what a run that reads them would publish wrongly; and the tables with what a
    run needs to know of their parents (`cascades.with_parents`).

    It is asked once the initial position is fixed, for tables as they are there.
    """
    privileges = Privileges(connection)
    problems = [problem for table in tables if (problem := privileges.select_problem(table.name))]
    tables, hidden = with_parents(connection, privileges, tables)
    unlocked = [table for table, plan in zip(tables, plans, strict=True) if plan.consistency == "watermark"]
    problems += [*hidden, *watermark_problems(connection, unlocked)]
    problems += [*_table_problems(connection, tables, ""), *_filter_problems(connection, tables)]
    return tables, problems


def _plan(table: Table, options: TableOptions) -> TablePlan:
    key = f"{table.key_index} ({', '.join(table.key)})"
    if options.consistency == "lock":
        chosen, reason = "lock", "lock was asked for: read at one position, fixed under a short lock"
    elif table.keyless and options.consistency != "watermark":
        chosen = "lock"
        reason = "no key tells its rows apart, so it is read at one position, fixed under a short lock"
    elif table.cascades_from and options.consistency != "watermark":
        chosen = "lock"
        reason = "the log lacks what its foreign keys change, so it is read at one position, fixed under a short lock"
    else:
        chosen = "watermark"
        reason = f"its key {key} tells what changed while it was read, so it needs no lock"
    if table.cascades_from:
        reason += f"; deleting rows of {parents_of(table)}, or changing their keys, before it is read stops the run"
    reason += _policy_reason(table)
    return TablePlan(table.name, chosen, reason, table.rows, table.bytes, options.unrepresentable)


def _policy_reason(table: Table) -> str:
    """Which columns the policy changes: as text, or with nulls that the table does not have."""
    policy = table.options.unrepresentable
    changed = [
        column.name
        for column in table.columns
        if unsupported(column, apart := table.identifies(column.name), policy) is None
        and (kind := ColumnType.of(column, apart, policy)).policy != "error"
        # Text is text anyway.
        and not (policy == "string" and kind.family is Family.TEXT)
    ]
    if not changed:
        return ""
    becomes = "published as text" if policy == "string" else "null where no Arrow type holds the value"
    return f"; {becomes}: {', '.join(changed)}"


def _table_problems(connection: Connection, tables: Sequence[Table], consistency: str) -> Iterable[Problem]:
    names = [table.name for table in tables]
    engines = {
        TableName(schema, name): engine
        for schema, name, engine in select_of_tables(connection, names, "ENGINE", "TABLES")
    }
    for table in tables:
        where, engine, policy = str(table.name), engines.get(table.name), table.options.unrepresentable
        if engine != _ENGINE:
            yield Problem(
                where,
                f"its engine {engine} has no transactions and no read views, so it is at no position",
                f"ALTER TABLE {table_sql(table.name)} ENGINE={_ENGINE}, or leave the table out",
                where,
            )
        if table.keyless and consistency == "watermark":
            yield Problem(
                where,
                "watermark needs a primary key or a unique index of whole NOT NULL columns, and there is none",
                f"ALTER TABLE {table_sql(table.name)} ADD PRIMARY KEY (…), or choose auto or lock",
                where,
            )
        for column in table.columns:
            apart = table.identifies(column.name)
            reason = unsupported(column, apart, policy)
            hint = "change the column's type, or leave the table out"
            if reason is not None and is_wide_decimal(column):
                hint = f"set unrepresentable to string{'' if apart else ' or null'}, or leave the table out"
            if reason is None and column.name in table.key:
                reason = unsupported_key(column, policy)
            if reason is None and _has_hidden_labels(column.type, str(column.details.get("charset"))):
                reason = "a member of its type has a '?', which is also what the server shows for rarer characters"
            if reason is not None:
                yield Problem(f"{where}.{column.name}", reason, hint, where)
    yield from _virtual_problems(connection, tables)
    yield from misplaced_problems(connection, tables)


def _virtual_problems(connection: Connection, tables: Sequence[Table]) -> Iterable[Problem]:
    virtual = [table for table in tables if any(one.details.get("generated") == "virtual" for one in table.columns)]
    expressions: dict[TableName, dict[str, str]] = {table.name: {} for table in virtual}
    for schema, name, column, expression in select_of_tables(
        connection, list(expressions), "COLUMN_NAME, GENERATION_EXPRESSION", "COLUMNS"
    ):
        expressions[TableName(schema, name)][column] = expression
    for table in virtual:
        yield from generated_problems(table, expressions[table.name])


def _has_hidden_labels(column_type: str, charset: str) -> bool:
    return column_type.startswith(("enum", "set")) and "?" in column_type and charset in _BEYOND_THE_CATALOG


def _filter_problems(connection: Connection, tables: Sequence[Table]) -> Iterable[Problem]:
    """A log that leaves out schemas, or what is done from there."""
    try:
        status = log_status(connection)
    except (LogGone, pymysql.OperationalError):
        # There is no log, or no privilege: both are problems of their own.
        return
    included, excluded = (set(filter(None, names.split(","))) for names in status[2:4])
    schemas = dict.fromkeys(name.schema for table in tables for name in locked_with(table))
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


def _retention_problems(connection: Connection, tables: Sequence[Table]) -> Iterable[Problem]:
    """A log that is thrown away before the run has read it."""
    # Before 8.0.29 it cannot be switched off.
    settings = {"binlog_expire_logs_auto_purge": "ON"} | variables(
        connection, ["binlog_expire_logs_auto_purge", "binlog_expire_logs_seconds"]
    )
    keeps = int(settings.get("binlog_expire_logs_seconds", "0"))
    needed = _LEAST_SECONDS + _MARGIN * sum(table.bytes for table in tables) // _BYTES_PER_SECOND
    if is_amazon(connection):
        if (problem := retention_problem(connection, needed)) is not None:
            yield problem
        return
    if settings.get("binlog_expire_logs_auto_purge") == "ON" and 0 < keeps < needed:
        yield Problem(
            "binlog_expire_logs_seconds",
            f"is {keeps}: the log may be purged before a run over these tables has read it",
            f"SET PERSIST binlog_expire_logs_seconds = {max(needed, 86_400)}",
        )
