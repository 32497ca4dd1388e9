"""A bounded look at rows, before a run, for values that no Arrow type holds.

With the policy ``error`` one such value stops a run, at the end of a read that may have taken hours. Most tables that
have any have them among their oldest or newest rows. So these are looked at: it proves nothing of the others, which are
looked at when they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pymysql

from airflow_provider_cdc.core.plan import TablePlan
from airflow_provider_cdc.core.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.schema import read_tables, table_sql
from airflow_provider_cdc.sources.mysql.session import Connection, query, quote, session
from airflow_provider_cdc.sources.mysql.types import ColumnType, Family, column_types
from airflow_provider_cdc.sources.odd_values import seen_problem

ROWS = 1000
"""At most so many at either end of the key."""
_MILLISECONDS = 2000
_INTERRUPTED = (1317, 3024)

_MOMENTS = (Family.DATE, Family.DATETIME, Family.TIMESTAMP)
# sql_mode may have let in days that their month does not have.
_IS_ODD = "COALESCE(MONTH({0}) = 0 OR DAYOFMONTH({0}) = 0 OR DAYOFMONTH({0}) > DAYOFMONTH(LAST_DAY({0})), FALSE)"

_log = logging.getLogger(__name__)


def sample(settings: ConnectionSettings, plans: Sequence[TablePlan]) -> list[Problem]:
    """A problem for each column of the planned tables that would stop the run, for all that this look shows."""
    with session(settings) as connection:
        tables = read_tables(connection, [plan.table for plan in plans])
        return [
            problem
            for plan, table in zip(plans, tables, strict=True)
            for problem in _problems(connection, replace(table, options=plan.options))
        ]


def _problems(connection: Connection, table: Table) -> Iterable[Problem]:
    columns = [column for column in column_types(table) if column.family in _MOMENTS and column.policy == "error"]
    if not columns:
        return
    try:
        ((rows, *counts),) = query(connection, _statement(table, columns))
    except pymysql.OperationalError as error:
        if error.args[0] not in _INTERRUPTED:
            raise
        _log.info("%s: the look at some of its rows took too long and was given up", table.name)
        return
    for column, count in zip(columns, counts, strict=True):
        if count:
            yield seen_problem(table, column.name, int(count), int(rows))


def _statement(table: Table, columns: Sequence[ColumnType]) -> str:
    looked_at = [quote(name) for name in dict.fromkeys([*table.key, *(column.name for column in columns)])]
    select = f"SELECT {', '.join(looked_at)} FROM {table_sql(table.name)}"
    some = f"({select} LIMIT {ROWS})"
    if table.key:
        ends = [
            f"({select} FORCE INDEX ({quote(table.key_index)}) "
            f"ORDER BY {', '.join(f'{quote(name)} {way}' for name in table.key)} LIMIT {ROWS})"
            for way in ("ASC", "DESC")
        ]
        # Each row has a key of its own, so that none counts twice.
        some = " UNION ".join(ends)
    counts = [f"SUM({_IS_ODD.format(quote(column.name))})" for column in columns]
    return f"SELECT /*+ MAX_EXECUTION_TIME({_MILLISECONDS}) */ COUNT(*), {', '.join(counts)} FROM ({some}) AS looked_at"
