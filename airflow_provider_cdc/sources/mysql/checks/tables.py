"""Checks of the tables: engines, keys, foreign keys, partitions."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import TablesContext
from airflow_provider_cdc.sources.mysql.chunking.misplaced_partition_rows import misplaced_problems
from airflow_provider_cdc.sources.mysql.tables.cascades import watermark_problems
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables, table_sql

_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)

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
                f"ALTER TABLE {table_sql(table.name)} ADD PRIMARY KEY (…), or set `consistency` to `auto` or `lock`",
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
        "add a primary key, or set `consistency` to `auto` or `lock`",
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
        "set `consistency` to `auto` or `lock`, or leave the table out",
        _unlogged_cascades,
    ),
)
