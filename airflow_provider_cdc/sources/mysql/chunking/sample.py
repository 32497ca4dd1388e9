"""Checks the values of the first and last rows of tables, in key order (`sources.planning.survey`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pymysql

from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.driver import INTERRUPTED
from airflow_provider_cdc.sources.mysql.server.server import naming_blockers
from airflow_provider_cdc.sources.mysql.server.session import query, quote, session, table_sql
from airflow_provider_cdc.sources.mysql.tables.charsets import has_gaps
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, column_types
from airflow_provider_cdc.sources.planning.survey import gave_up, problems_of

ROWS = 1000
"""Maximum number of rows at each end of the key."""
_MILLISECONDS = 2000

_MOMENTS = (Family.DATE, Family.DATETIME, Family.TIMESTAMP)
# Depending on sql_mode, the column may contain days that the month does not have.
_IS_NO_DATE = "MONTH({0}) = 0 OR DAYOFMONTH({0}) = 0 OR DAYOFMONTH({0}) > DAYOFMONTH(LAST_DAY({0}))"
_CHARACTERS = 1000
"""The maximum number of characters that are checked in each text."""
# The server converts an unassigned code to a question mark. In these character sets, the byte of the question mark does
# not occur in any other character.
_IS_NO_TEXT = (
    "LENGTH(CAST({0} AS BINARY)) - LENGTH(REPLACE(CAST({0} AS BINARY), 0x3F, '')) < "
    "LENGTH(CAST(CONVERT({0} USING utf8mb4) AS BINARY)) "
    "- LENGTH(REPLACE(CAST(CONVERT({0} USING utf8mb4) AS BINARY), 0x3F, ''))"
)
_IS_REPLACED = "LOCATE(0xEFBFBD, CAST(CONVERT({0} USING utf8mb4) AS BINARY)) > 0"
_IS_SURROGATE = "REGEXP_LIKE(HEX({0}), '^(?:.{{4}})*D[89A-F]')"
_OF_CHARSETS = {"ucs2": _IS_SURROGATE, "tis620": _IS_REPLACED, "big5": f"({_IS_NO_TEXT}) OR {_IS_REPLACED}"}


def sample(settings: ConnectionSettings, plans: Sequence[TablePlan]) -> list[Problem]:
    """Sample the planned tables. Return a problem for each column in which a sampled value would stop the run.

    :raises LockNotGranted: a session keeps a table locked against readers.
    """
    with session(settings) as connection, naming_blockers(settings, connection) as concerned:
        concerned += [plan.table for plan in plans]

        def looks(table: Table, columns: Sequence[ColumnType]) -> Iterator[Sequence[int]]:
            try:
                ((rows, *counts),) = query(connection, _statement(table, columns))
            except pymysql.OperationalError as error:
                if error.args[0] not in INTERRUPTED:
                    raise
                gave_up(table)
                return
            # SUM returns a DECIMAL, and NULL if there are no rows.
            yield [int(rows), *(int(count or 0) for count in counts)]

        tables = read_tables(connection, [plan.table for plan in plans])
        return problems_of(plans, tables, _at_risk, looks, _stops_always)


def _at_risk(table: Table) -> list[ColumnType]:
    return [column for column in column_types(table) if column.policy == "error" and _is_odd(column)]


def _stops_always(table: Table, column: ColumnType) -> bool:
    return column.family is Family.TEXT and table.identifies(column.name)


def _is_odd(column: ColumnType) -> str:
    """Return an SQL condition that finds the values of the column that no Arrow type holds. Empty: there are no such
    values in this type."""
    if column.family in _MOMENTS:
        odd = _IS_NO_DATE
    elif column.family is Family.TEXT and has_gaps(column.charset):
        odd = _OF_CHARSETS.get(column.charset, _IS_NO_TEXT)
    else:
        return ""
    return odd.format(quote(column.name))


def _looked_at(column: ColumnType) -> str:
    name = quote(column.name)
    return f"LEFT({name}, {_CHARACTERS}) AS {name}" if column.family is Family.TEXT else name


def _statement(table: Table, columns: Sequence[ColumnType]) -> str:
    beside = [column for column in columns if column.name not in table.key]
    looked_at = [*map(quote, table.key), *(_looked_at(column) for column in beside)]
    select = f"SELECT {', '.join(looked_at)} FROM {table_sql(table.name)}"
    some = f"({select} LIMIT {ROWS})"
    if table.key:
        ends = [
            f"({select} FORCE INDEX ({quote(table.key_index)}) "
            f"ORDER BY {', '.join(f'{quote(name)} {way}' for name in table.key)} LIMIT {ROWS})"
            for way in ("ASC", "DESC")
        ]
        # One sample is from the beginning of the key, the other from its end. Each row has a unique key, so UNION
        # removes only the duplicates of rows that are in both samples.
        some = " UNION ".join(ends)
    counts = [f"SUM(COALESCE({_is_odd(column)}, FALSE))" for column in columns]
    return f"SELECT /*+ MAX_EXECUTION_TIME({_MILLISECONDS}) */ COUNT(*), {', '.join(counts)} FROM ({some}) AS looked_at"
