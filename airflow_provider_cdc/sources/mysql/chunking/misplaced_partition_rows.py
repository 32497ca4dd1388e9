"""Rows that are in another partition than the one they belong to.

EXCHANGE PARTITION … WITHOUT VALIDATION leaves them there. A SELECT of the whole table shows them; one of a range of the
key does not, where the server knows by the range which partitions it needs. Their keys need not even be unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pymysql

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.chunking.axes import axis_of
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, quote
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables, table_sql

_ALTERED = (1146, 1412, 1735)
"""No such table; its definition has changed since the view; no such partition."""


def misplaced_problems(connection: Connection, tables: Sequence[Table]) -> Iterable[Problem]:
    """Tables by whose chunks such rows would be passed over: partitions made by the key's first column.

    What belongs to a partition the server tells by itself: asked for the rows of a value, it does not look into a
    partition that has none of them. Asked for are the first and the last value that are there: a partition by ranges
    of the column has rows beyond its range exactly if one of them is. By lists and hashes rows may be misplaced between
    the ends, too; those are not found.
    """
    keyed_tables = {table.name: table for table in tables if not table.keyless}
    parts = select_of_tables(
        connection,
        list(keyed_tables),
        "PARTITION_NAME, PARTITION_EXPRESSION",
        "PARTITIONS",
        "AND PARTITION_NAME IS NOT NULL ORDER BY PARTITION_ORDINAL_POSITION",
    )
    # Each of its subpartitions has the partition's name.
    for schema, name, part, expression in dict.fromkeys(parts):
        table = keyed_tables[TableName(schema, name)]
        # In whatever quotes; also where it is the argument of a function. KEY () is by the whole key.
        by_first = not expression or table.key[0].lower() in expression.lower()
        if by_first and _has_others(connection, table, part):
            yield Problem(
                str(table.name),
                f"partition {part} has rows that belong to another one (EXCHANGE PARTITION … WITHOUT VALIDATION leaves "
                "them there): the server does not find them by their key",
                f"look at CHECK TABLE {table_sql(table.name)}; ALTER TABLE {table_sql(table.name)} REPAIR PARTITION "
                f"{quote(part)} moves them, or leave the table out",
                str(table.name),
            )


def _has_others(connection: Connection, table: Table, part: str) -> bool:
    try:
        return _ends_in_others(connection, table, part)
    except pymysql.MySQLError as error:
        if error.args[0] not in _ALTERED:
            raise
    # Partitions come and go. Before the position is fixed, all this is asked again; after it, the log tells of that.
    return False


def _ends_in_others(connection: Connection, table: Table, part: str) -> bool:
    axis = axis_of(table.column(table.key[0]))
    if axis is None:
        # It is read in one piece.
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
            # A value that is not even equal to itself (a date that no calendar has) is no proof.
            if query(connection, f"SELECT {condition} {first}", [*end[0], 1]) == [(1,)]:
                return True
    return False


@contextmanager
def _one_view(connection: Connection) -> Iterator[None]:
    """So that a row which is deleted between two looks is there for both."""
    query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    try:
        yield
    finally:
        query(connection, "ROLLBACK")
