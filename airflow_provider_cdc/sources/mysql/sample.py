"""Looks at the first and the last rows of tables, in key order (`sources.sampling`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pymysql

from airflow_provider_cdc.core.plan import TablePlan
from airflow_provider_cdc.core.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.blockers import naming_blockers
from airflow_provider_cdc.sources.mysql.schema import read_tables, table_sql
from airflow_provider_cdc.sources.mysql.session import query, quote, session
from airflow_provider_cdc.sources.mysql.types import ColumnType, Family, column_types
from airflow_provider_cdc.sources.sampling import gave_up, problems_of

ROWS = 1000
"""At most so many at either end of the key."""
_MILLISECONDS = 2000
_INTERRUPTED = (1317, 3024)

_MOMENTS = (Family.DATE, Family.DATETIME, Family.TIMESTAMP)
# sql_mode may have let in days that their month does not have.
_IS_ODD = "COALESCE(MONTH({0}) = 0 OR DAYOFMONTH({0}) = 0 OR DAYOFMONTH({0}) > DAYOFMONTH(LAST_DAY({0})), FALSE)"


def sample(settings: ConnectionSettings, plans: Sequence[TablePlan]) -> list[Problem]:
    """A problem for each column of the planned tables that would stop the run, as far as this look shows.

    :raises LockNotGranted: a session keeps a table locked against readers.
    """
    with session(settings) as connection, naming_blockers(settings, connection) as concerned:
        concerned += [plan.table for plan in plans]

        def looks(table: Table, columns: Sequence[ColumnType]) -> Iterator[Sequence[int]]:
            try:
                ((rows, *counts),) = query(connection, _statement(table, columns))
            except pymysql.OperationalError as error:
                if error.args[0] not in _INTERRUPTED:
                    raise
                gave_up(table)
                return
            # SUM is a DECIMAL, and NULL of no rows.
            yield [int(rows), *(int(count or 0) for count in counts)]

        tables = read_tables(connection, [plan.table for plan in plans])
        return problems_of(plans, tables, _at_risk, looks)


def _at_risk(table: Table) -> list[ColumnType]:
    return [column for column in column_types(table) if column.family in _MOMENTS and column.policy == "error"]


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
