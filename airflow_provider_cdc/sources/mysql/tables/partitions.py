"""Facts about tables at the recorded position: their engine, and whether each of their rows belongs to a partition.

With these facts, a run can prove for more statements that they change no row.

After EXCHANGE PARTITION … WITHOUT VALIDATION, a table may contain a row that belongs to no partition, because its value
is beyond the last range or in no list. SELECT shows such a row. The next REBUILD or REORGANIZE PARTITION drops the row
silently and without a trace in the log. If all rows belong to partitions at the position, all later rows do, too. In
all other statements, the server rejects such rows. An EXCHANGE PARTITION is in the log and stops the run.

The facts are queried after the position was fixed. They are also true at the position if the table still has the
identity that it had before the position was fixed. In this case, no statement altered the table or exchanged a
partition in between.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pymysql

from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import KNOWN_AT_POSITION, Table, TableName
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, table_sql
from airflow_provider_cdc.sources.mysql.tables.identity import TableIdentity, read_identities
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables

_ENGINE, _IN_PARTITIONS = "its engine is InnoDB", "all of its rows belong to partitions"
_INNODB = "InnoDB"
_MOST_BYTES = 256 * 2**20
"""Maximum total size of the tables to scan. A table must be scanned for the greatest value of its partitioning column
if the column has no index."""
_MOST_MILLISECONDS = 10_000
_ONE_COLUMN = re.compile(r"`((?:[^`]|``)+)`")


def has_known_engine(table: Table) -> bool:
    """Whether the table is known to have been an InnoDB table at its position."""
    return _ENGINE in table.details.get(KNOWN_AT_POSITION, ())


def has_rows_in_partitions_only(table: Table) -> bool:
    """Whether all rows of the table are known to have belonged to partitions at its position."""
    return _IN_PARTITIONS in table.details.get(KNOWN_AT_POSITION, ())


def with_known_at_position(
    connection: Connection,
    tables: Sequence[Table],
    plans: Sequence[TablePlan],
    unaltered: Callable[[], Mapping[TableName, bool]],
) -> tuple[Table, ...]:
    """Return the tables. For each table that is read, the facts known at the position are added to its details.

    For a table that is rolled forward, the facts that were recorded for its base copy still hold.

    :param unaltered: a function that returns the tables that were not altered since the position. The value of a table
        is true if no partition was exchanged either. This function is called last.
    """
    rolled = {plan.table for plan in plans if plan.base}
    read = [table for table in tables if table.name not in rolled]
    names = [table.name for table in read]
    engines = {
        TableName(schema, name): engine
        for schema, name, engine in select_of_tables(connection, names, "ENGINE", "TABLES")
    }
    in_partitions = _in_partitions(connection, read)
    same = unaltered() if read else {}
    found = []
    for table in tables:
        known = []
        if table.name in same and engines.get(table.name) == _INNODB:
            known.append(_ENGINE)
            if same[table.name] and table.name in in_partitions:
                known.append(_IN_PARTITIONS)
        found.append(replace(table, details={**table.details, KNOWN_AT_POSITION: known}))
    return tuple(found)


def with_same_identity(connection: Connection, before: Mapping[TableName, TableIdentity]) -> Mapping[TableName, bool]:
    """Return the tables whose identity is the same as ``before``.

    The value of a table is true if its partitions are also known to have the same numbers as before. Only these numbers
    show an EXCHANGE PARTITION.
    """
    now = read_identities(connection, list(before))
    return {
        name: bool(then.ids and now[name].ids)
        for name, then in before.items()
        if name in now and not then.differs(now[name])
    }


def _in_partitions(connection: Connection, tables: Sequence[Table]) -> set[TableName]:
    """Return the partitioned tables for which a quick check shows that all rows belong to partitions."""
    last: dict[TableName, tuple[str, str, str]] = {}
    for schema, name, method, expression, bound in select_of_tables(
        connection,
        [table.name for table in tables],
        "PARTITION_METHOD, PARTITION_EXPRESSION, PARTITION_DESCRIPTION",
        "PARTITIONS",
        "AND PARTITION_NAME IS NOT NULL ORDER BY PARTITION_ORDINAL_POSITION",
    ):
        last[TableName(schema, name)] = method, expression or "", bound or ""
    found, ranges = set(), {}
    for name, (method, expression, bound) in last.items():
        # Every hash value belongs to a partition. If the last range has several bounds, the first bound decides.
        if method.endswith(("HASH", "KEY")) or (method.startswith("RANGE") and bound.startswith("MAXVALUE")):
            found.add(name)
        elif method == "RANGE" or (
            # For other bounds, the server's quoting is not documented.
            method == "RANGE COLUMNS" and _ONE_COLUMN.fullmatch(expression) and bound.isascii() and "\\" not in bound
        ):
            ranges[name] = method, expression, bound
    indexed = _indexed(connection, list(ranges))
    room = _MOST_BYTES
    for table in sorted((table for table in tables if table.name in ranges), key=lambda table: table.bytes):
        method, expression, bound = ranges[table.name]
        column = _ONE_COLUMN.fullmatch(expression)
        if column is None or column[1].replace("``", "`") not in indexed[table.name]:
            room -= table.bytes
            if room < 0:
                continue
        if _is_below(connection, table.name, method, expression, bound):
            found.add(table.name)
    return found


def _is_below(connection: Connection, name: TableName, method: str, expression: str, bound: str) -> bool:
    """Whether all values are below the end of the last range. NULL always belongs to the first range."""
    # RANGE partitions use integers. With "<= end - 1", the result is the same whether or not the server rounds.
    end = bound if method == "RANGE COLUMNS" else f"{bound} - 1"
    sign = "<" if method == "RANGE COLUMNS" else "<="
    # Do not compare in a WHERE clause. The server would then skip all partitions that should not contain values beyond
    # the end, even if they do.
    statement = (
        f"SELECT /*+ MAX_EXECUTION_TIME({_MOST_MILLISECONDS}) */ COALESCE(MAX({expression}) {sign} {end}, TRUE) "
        f"FROM {table_sql(name)}"
    )
    try:
        return query(connection, statement) == [(1,)]
    except pymysql.MySQLError:
        # The query takes too long, or the table has just been altered. In both cases, it is unknown whether all values
        # are below the end.
        return False


def _indexed(connection: Connection, names: Sequence[TableName]) -> dict[TableName, set[str]]:
    """For each table, return the columns whose greatest value the server can find in an index."""
    found: dict[TableName, set[str]] = defaultdict(set)
    for schema, table, column in select_of_tables(
        connection,
        names,
        "COLUMN_NAME",
        "STATISTICS",
        "AND SEQ_IN_INDEX = 1 AND SUB_PART IS NULL AND IS_VISIBLE = 'YES' AND INDEX_TYPE = 'BTREE' "
        "AND COLUMN_NAME IS NOT NULL",
    ):
        found[TableName(schema, table)].add(column)
    return found
