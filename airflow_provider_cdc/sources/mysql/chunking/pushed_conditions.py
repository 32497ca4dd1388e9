"""The part of a condition that MySQL can evaluate (`sources.planning.selections`). Only comparisons of integers,
decimals, dates and times are evaluated by MySQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pymysql

from airflow_provider_cdc.core.filters.evaluator import value_of
from airflow_provider_cdc.core.filters.parser import Literal
from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.chunking.axes import axis_of
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, quote, table_sql
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables, unsigned_difference
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, column_types
from airflow_provider_cdc.sources.planning.selections import Pushable, pushed, span

_MOMENTS = (Family.DATE, Family.DATETIME, Family.TIMESTAMP)
_FIRST, _LAST = datetime(1970, 1, 2), datetime(2038, 1, 18)
"""TIMESTAMP literals are pushed down only between these limits, which are inside the limits of the type. This package
does not rely on the server's conversion of literals near the limits of the type."""


def pushed_condition(table: Table) -> str:
    """Return the condition that the server evaluates. Empty: the server sends all rows. Sessions use the time zone
    UTC."""
    if unsigned_difference(table):
        return ""
    types_by_name = {column.name: column for column in column_types(table)}
    return pushed(table.selection.where, lambda name: _pushable(types_by_name[name]))


def pushed_span(table: Table) -> tuple[KeyValue | None, KeyValue | None]:
    """Return the least and the greatest value of the key's first column that the pushed condition allows, in the form
    of chunk bounds. None: the condition has no limit on this side, or the limit is unknown. Use the result only for
    estimates."""
    if table.keyless or table.selection.where is None:
        return None, None
    (column,) = (column for column in column_types(table) if column.name == table.key[0])
    if _pushable(column) is None:
        return None, None

    def value(literal: Literal) -> Any:
        return None if _spelt(column, literal) is None else value_of(literal, column.arrow).as_py()

    least, greatest = span(table.selection.where, column.name, value)
    return _bound(least), _bound(greatest)


def _bound(value: Any) -> KeyValue | None:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return value.isoformat() if isinstance(value, date) else value


def _pushable(column: ColumnType) -> Pushable | None:
    if column.family in _MOMENTS and not pa.types.is_string(column.arrow):
        odd = True
    elif column.family is Family.DECIMAL or pa.types.is_integer(column.arrow):
        odd = False
    else:
        return None
    # The server interprets a YEAR of two digits as another year, and treats a BIT as a string in some contexts.
    if column.family in (Family.YEAR, Family.BITS):
        return None
    return Pushable(quote(column.name), partial(_spelt, column), odd, column.nullable)


def _spelt(column: ColumnType, literal: Literal) -> str | None:
    value = value_of(literal, column.arrow).as_py()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime):
        plain = value.replace(tzinfo=None)
        if column.family is Family.TIMESTAMP and not _FIRST <= plain <= _LAST:
            return None
        if plain.microsecond % 10 ** (6 - column.scale):
            # Do not rely on the rounding of the server.
            return None
        return f"TIMESTAMP'{plain.isoformat(' ', 'microseconds')}'"
    assert isinstance(value, date)
    return f"DATE'{value.isoformat()}'"


# Finds misplaced rows: rows in a partition to which they do not belong.
#
# EXCHANGE PARTITION … WITHOUT VALIDATION can put rows into a wrong partition. A SELECT of the whole table returns such
# rows. A SELECT of a key range misses such rows if the server reads only the partitions to which the range belongs. The
# keys of misplaced rows may even be duplicates of other keys.


_ALTERED = (1146, 1412, 1735)
"""Error codes: the table does not exist, the table's definition has changed since the snapshot, and the partition does
not exist."""


def misplaced_problems(connection: Connection, tables: Sequence[Table]) -> Iterable[Problem]:
    """Report tables whose chunked reads would miss misplaced rows. Only tables that are partitioned by the first column
    of the key are checked.

    The server itself determines the partition to which a value belongs, because a query for a value does not read
    partitions that cannot contain the value. The check makes this query for the first and the last value in each
    partition. If the table is partitioned by RANGE of this column, a partition has misplaced rows exactly if its first
    or last value is misplaced. In LIST and HASH partitions, rows between these two values may be misplaced, too. The
    check does not find such rows.

    Tables with an `unsigned_difference` are not checked. They are read in one piece, without a condition.
    """
    keyed_tables = {table.name: table for table in tables if not table.keyless and not unsigned_difference(table)}
    parts = select_of_tables(
        connection,
        list(keyed_tables),
        "PARTITION_NAME, PARTITION_EXPRESSION",
        "PARTITIONS",
        "AND PARTITION_NAME IS NOT NULL ORDER BY PARTITION_ORDINAL_POSITION",
    )
    # Remove duplicates, because each subpartition is listed with the name of its partition.
    for schema, name, part, expression in dict.fromkeys(parts):
        table = keyed_tables[TableName(schema, name)]
        # In the expression, the column may be quoted in any way, or may be the argument of a function. KEY () uses the
        # whole key.
        by_first = not expression or table.key[0].lower() in expression.lower()
        if by_first and _has_others(connection, table, part):
            yield Problem(
                str(table.name),
                f"partition {part} has rows that belong to another partition, and the server does not find these rows "
                "by their key. EXCHANGE PARTITION … WITHOUT VALIDATION can cause this",
                f"run CHECK TABLE {table_sql(table.name)}, and move the rows with ALTER TABLE {table_sql(table.name)} "
                f"REPAIR PARTITION {quote(part)}; or leave the table out",
                str(table.name),
            )


def _has_others(connection: Connection, table: Table, part: str) -> bool:
    try:
        return _ends_in_others(connection, table, part)
    except pymysql.MySQLError as error:
        if error.args[0] not in _ALTERED:
            raise
    # Partitions may have been added or dropped meanwhile. The check is repeated before the position is fixed. If
    # partitions are added or dropped later, the log shows these changes.
    return False


def _ends_in_others(connection: Connection, table: Table, part: str) -> bool:
    axis = axis_of(table.column(table.key[0]))
    if axis is None:
        # The table is read in one piece.
        return False
    column = quote(axis.column).replace("%", "%%")
    index = f"PARTITION ({quote(part)}) FORCE INDEX ({quote(table.key_index)})"
    rows = f"FROM {table_sql(table.name)} {index}".replace("%", "%%")
    stored = axis.read.format(column)
    condition = f"{column} = {axis.bound.format('%s')}"
    with _one_view(connection):
        for way in ("ASC", "DESC"):
            first = f"{rows} ORDER BY {column} {way} LIMIT %s"
            end = query(connection, f"SELECT {stored} {first}", [1])
            if not end or query(connection, f"SELECT 1 {rows} WHERE {condition} LIMIT 1", end[0]):
                continue
            # The query with WHERE also finds no row if the value is not equal to itself, for example a date that is not
            # in the calendar. So check that the value is equal to itself.
            if query(connection, f"SELECT {condition} {first}", [*end[0], 1]) == [(1,)]:
                return True
    return False


@contextmanager
def _one_view(connection: Connection) -> Iterator[None]:
    """Run both queries of the block in one snapshot. If a row is deleted between the queries, both queries still see
    the row."""
    query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    try:
        yield
    finally:
        query(connection, "ROLLBACK")
