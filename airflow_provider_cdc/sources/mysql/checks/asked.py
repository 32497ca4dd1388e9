"""The MySQL checks, grouped by their context (server, run, tables, request), in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import RequestContext, RunContext, ServerContext, TablesContext
from airflow_provider_cdc.sources.mysql.checks.history import HISTORY
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS, SETTINGS_SINCE
from airflow_provider_cdc.sources.mysql.chunking.pushed_conditions import misplaced_problems
from airflow_provider_cdc.sources.mysql.server.dialect import RETENTION_HOURS
from airflow_provider_cdc.sources.mysql.server.server import kept_seconds
from airflow_provider_cdc.sources.mysql.server.session import table_sql
from airflow_provider_cdc.sources.mysql.tables.cascades import locked_with, watermark_problems
from airflow_provider_cdc.sources.mysql.tables.generated import type_problems, virtual_problems
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables
from airflow_provider_cdc.sources.planning.survey import request_problems

# Checks of the columns: types, keys, generated values.


_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)


def _types(context: TablesContext) -> Iterable[Problem]:
    for table in context.tables:
        yield from type_problems(table)


def _virtual_columns(context: TablesContext) -> Iterable[Problem]:
    return virtual_problems(context.connection, context.tables)


COLUMNS: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.column-types",
        "Arrow can represent the type of every column. Different rows have different published key values.",
        _WHEN,
        "leave the column out with `Table.columns`, change the column's type, set `On.unrepresentable`, "
        "or leave the table out",
        _types,
    ),
    Check(
        "mysql.virtual-columns",
        "The values of VIRTUAL columns do not depend on the session.",
        _WHEN,
        "leave the column out with `Table.columns`, make the column STORED, drop the column, or leave the table out",
        _virtual_columns,
    ),
)


# Checks of the binary log: its filters and its retention.


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
    needed = _LEAST_SECONDS + _MARGIN * sum(table.bytes for table in context.tables) // _BYTES_PER_SECOND
    keeps = kept_seconds(context.connection, context.service)
    if keeps is not None and keeps < needed:
        shown = keeps // 3600 if context.service.keep == RETENTION_HOURS else keeps
        yield Problem(
            context.service.keep,
            f"is {shown or 'not set'}: the log may be purged before a run over these tables has read it",
            context.service.keep_log(needed),
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


# Checks of the privileges of the connection's user.


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


# Checks of the tables: engines, keys, foreign keys, partitions.


_ENGINE = "InnoDB"


def _parents(context: TablesContext) -> Iterable[Problem]:
    return context.hidden


def _engines(context: TablesContext) -> Iterable[Problem]:
    names = [table.name for table in context.tables]
    engines = {
        TableName(schema, name): engine
        for schema, name, engine in select_of_tables(context.connection, names, "ENGINE", "TABLES")
    }
    for table in context.tables:
        where, engine = str(table.name), engines.get(table.name)
        if engine != _ENGINE:
            yield Problem(
                where,
                f"the engine {engine} has no transactions and no read views, so the table cannot be read at a position",
                f"ALTER TABLE {table_sql(table.name)} ENGINE={_ENGINE}, or leave the table out",
                where,
            )


def _keys(context: TablesContext) -> Iterable[Problem]:
    for table in context.planned("watermark"):
        if table.keyless:
            yield Problem(
                str(table.name),
                "the consistency `watermark` needs a primary key or a unique index of whole NOT NULL columns, and "
                "the table has neither",
                f"ALTER TABLE {table_sql(table.name)} ADD PRIMARY KEY (…), or set `Read.consistency` to `auto` or "
                f"`lock`",
                str(table.name),
            )


def _misplaced_rows(context: TablesContext) -> Iterable[Problem]:
    return misplaced_problems(context.connection, context.tables)


def _unlogged_cascades(context: TablesContext) -> Iterable[Problem]:
    return watermark_problems(context.connection, context.planned("watermark"))


PARENTS: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.parents",
        "If a foreign key action can change rows of a copied table without an entry in the log, the run knows the "
        "parent table.",
        _WHEN,
        "grant SELECT on the parent tables, drop the foreign key, or leave the table out",
        _parents,
    ),
)

TABLES: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.engine",
        "The engine of each table has transactions and read views.",
        _WHEN,
        "change the table's engine to InnoDB, or leave the table out",
        _engines,
    ),
    Check(
        "mysql.key",
        "If a table is read without a lock, it has a key that identifies its rows.",
        (Moment.PREFLIGHT,),
        "add a primary key, or set `Read.consistency` to `auto` or `lock`",
        _keys,
        (Raised(Moment.POSITION_FIXED, "sources.mysql.steps.snapshot:tables_of"),),
    ),
)

PARTITIONS: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.misplaced-rows",
        "Every row is in the partition that its key belongs to. Otherwise a chunk could omit the row.",
        _WHEN,
        "ALTER TABLE … REPAIR PARTITION, or leave the table out",
        _misplaced_rows,
    ),
)

CASCADES: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.unlogged-cascades",
        "Some foreign key actions change rows without an entry in the log. A table with such rows is read at one "
        "exact position.",
        _WHEN,
        "set `Read.consistency` to `auto` or `lock`, or leave the table out",
        _unlogged_cascades,
    ),
)


# Checks of the patterns and options of a run.


def _options(context: RequestContext) -> Iterable[Problem]:
    return request_problems("mysql", context.patterns, context.options)


def _names(context: RequestContext) -> Iterable[Problem]:
    return context.unresolved


REQUEST: tuple[Check[RequestContext], ...] = (
    Check(
        "mysql.options",
        "MySQL sources support the given options.",
        (Moment.PREFLIGHT,),
        "choose one of the values that the message lists",
        _options,
    ),
    Check(
        "mysql.tables-exist",
        "Each pattern matches a table.",
        (Moment.PREFLIGHT,),
        "correct the pattern, or grant the user SELECT on the tables that it should match",
        _names,
    ),
)


OF_SERVER: tuple[Check[ServerContext], ...] = (*SETTINGS, *SERVER_PRIVILEGES)
OF_A_RUN: tuple[Check[RunContext], ...] = (*HISTORY, *SETTINGS, *SETTINGS_SINCE)
OF_TABLES: tuple[Check[TablesContext], ...] = (
    *READ_PRIVILEGES,
    *PARENTS,
    *TABLES,
    *COLUMNS,
    *PARTITIONS,
    *CASCADES,
    *LOCK_PRIVILEGES,
    *LOG,
)
OF_A_REQUEST: tuple[Check[RequestContext], ...] = (*REQUEST, *OF_SERVER, *OF_TABLES)
