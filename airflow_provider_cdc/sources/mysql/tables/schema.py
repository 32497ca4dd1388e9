"""Read the definitions of tables from the server: names, columns, keys, sizes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pymysql

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import Problem, SchemaChanged, TransientError
from airflow_provider_cdc.sources.mysql.server.session import (
    Connection,
    account,
    batches,
    query,
    size_of,
    table_sql,
    value,
)
from airflow_provider_cdc.sources.mysql.tables.labels import with_labels
from airflow_provider_cdc.sources.planning import patterns as patterns_of_tables

# Check whether a table's partitioning expression works for each row, with the same result in every session.
#
# REBUILD, REORGANIZE and COALESCE PARTITION compute the partition of each row again. ADD PARTITION does the same for
# hash partitions. If the expression raises an error for a row, the server drops the row. The statement still succeeds,
# and the loss is not logged. When the row was stored, the expression raised no error. So only errors that depend on
# ``sql_mode`` matter. With ERROR_FOR_DIVISION_BY_ZERO in strict mode, a division by zero is an error. Without
# NO_UNSIGNED_SUBTRACTION, a negative difference of unsigned numbers is an error. All other partitioning expressions
# fail in every session or in none. If the computation of a VIRTUAL column fails, the whole statement fails.


_FUNCTIONS = frozenset(
    "abs ceiling datediff dayofmonth dayofweek dayofyear extract floor hour microsecond minute month quarter second "
    "time_to_sec to_days to_seconds unix_timestamp weekday year yearweek".split()
)
_NEVER_NEGATIVE = frozenset("year yearweek".split())
_SIGNED_COLUMN = re.compile(r"(?:tiny|small|medium|big)?int(?:\(\d+\))?|date|datetime(?:\(\d\))?|time(?:\(\d\))?")
_TOKEN = re.compile(
    r"""\s*(?:`(?P<column>(?:[^`]|``)+)`
    | (?P<extract>extract\(\w+\ from)\b
    | (?P<divided>%|\bDIV\b)
    | (?P<number>\d+)\b
    | (?P<word>[a-z_]\w*)
    | (?P<sign>[-+*(),]))""",
    re.VERBOSE | re.IGNORECASE,
)


def may_fail(method: str, expression: str, columns: Iterable[Column]) -> bool:
    """Whether a row that was stored in one session may belong to no partition in another session.

    :param method: PARTITION_METHOD or SUBPARTITION_METHOD of the information schema.
    :param expression: the expression as the information schema shows it.
    :param columns: the columns of the table.
    """
    scanned = _scan(method, expression, columns)
    return not scanned.known or scanned.is_unsigned_difference


def is_unsigned_difference(method: str, expression: str, columns: Iterable[Column]) -> bool:
    """Whether the sql_mode NO_UNSIGNED_SUBTRACTION may decide the value of the expression, or whether the expression
    fails.

    The server compiles the expression when a session opens the table, with the sql_mode of that session. Other sessions
    then use the same open table. So a session's own sql_mode does not determine how the server computes the expression.

    The parameters are those of `may_fail`.
    """
    return _scan(method, expression, columns).is_unsigned_difference


@dataclass(frozen=True)
class _Scanned:
    """The properties of a partitioning expression that its text shows.

    ``known``
        apart from subtractions, every session can compute all parts of the expression.
    ``is_unsigned_difference``
        the expression contains a subtraction, and the operands may be unsigned.
    """

    known: bool
    is_unsigned_difference: bool


def _scan(method: str, expression: str, columns: Iterable[Column]) -> _Scanned:
    if method.endswith(("KEY", "COLUMNS")):
        # These partitioning methods use the column values directly, without an expression.
        return _Scanned(known=True, is_unsigned_difference=False)
    types = {column.name.lower(): column.type for column in columns}
    at, end = 0, len(expression.rstrip())
    known, subtracts, signed, divides = True, False, True, False
    unknown = _Scanned(known=False, is_unsigned_difference="-" in expression)
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            return unknown
        at = match.end()
        kind, text = match.lastgroup, match[match.lastgroup].lower()
        known &= not divides or (kind == "number" and int(text) != 0)
        divides = kind == "divided"
        if kind == "column":
            signed &= _SIGNED_COLUMN.fullmatch(types.get(text.replace("``", "`"), "")) is not None
        elif kind == "word":
            if text not in _FUNCTIONS:
                return unknown
            signed &= text not in _NEVER_NEGATIVE
        elif kind == "number":
            # The server may treat a number with more digits as unsigned.
            signed &= len(text) <= 18
        subtracts |= kind == "sign" and text == "-"
    return _Scanned(known, subtracts and not signed)


SYSTEM_SCHEMAS = frozenset({"information_schema", "mysql", "ndbinfo", "performance_schema", "sys"})
_TABLES_AT_ONCE = 1000
_MAY_LACK_PARTITIONS = "may_lack_partitions"
"""Key in a table's details: true if, with another sql_mode, some rows may belong to no partition."""
_UNSIGNED_DIFFERENCE = "unsigned_difference"
"""Key in a table's details: the partitioning expression, if `is_unsigned_difference` is true for it."""


def resolve(connection: Connection, patterns: Sequence[str]) -> tuple[list[TableName], list[Problem]]:
    """Return the base tables that match ``patterns``, sorted and unique. Also return a problem for each pattern that
    matches no table.

    A pattern is ``schema.table``; ``*`` matches any sequence of characters in either part. System schemas match no
    pattern. Names are compared as on the server: upper and lower case are equal if ``lower_case_table_names`` is not 0.
    """
    kinds = {
        TableName(schema, name): kind
        for schema, name, kind in query(
            connection, "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES"
        )
        if schema not in SYSTEM_SCHEMAS
    }
    ignore_case = value(connection, "@@lower_case_table_names") != 0
    unmatched = partial(_matches_nothing, connection)
    return patterns_of_tables.resolve(patterns, kinds, ["BASE TABLE"], unmatched, ignore_case=ignore_case)


def read_tables(
    connection: Connection, names: Sequence[TableName], key_indexes: Mapping[TableName, str] | None = None
) -> tuple[Table, ...]:
    """Return the tables' definitions, in the order of ``names``.

    Each definition contains all columns, including generated and invisible ones, in the order of the log.
    ``Column.type`` is the COLUMN_TYPE of the information schema. ``Column.details`` has, where they apply: ``charset``
    and ``collation``; ``generated``: ``virtual`` or ``stored``; ``invisible``: true; ``labels``: the labels of enums
    and sets whose type does not show them (`hidden_labels`). ``Table.details`` contains the results of
    `may_lack_partitions` and `unsigned_difference`.

    The key is the primary key. If the table has no primary key, the key is the first visible unique index of whole,
    stored NOT NULL columns.

    :param key_indexes: for each table, the name of the index to prefer as the key.
    :raises SchemaChanged: a table does not exist, or this user may not see it.
    """
    if not names:
        return ()
    columns = _columns(connection, names)
    indexes = _indexes(connection, names)
    sizes = {
        TableName(schema, name): (rows or 0, size or 0)
        for schema, name, rows, size in select_of_tables(
            connection, names, "TABLE_ROWS, DATA_LENGTH", "TABLES", "AND TABLE_TYPE = 'BASE TABLE'"
        )
    }
    partition_details = _partition_details(connection, columns)
    tables = []
    for name in names:
        if name not in columns or name not in sizes:
            raise missing(name)
        key_index, key = _key(columns[name], indexes.get(name, {}), (key_indexes or {}).get(name, ""))
        rows, size = sizes[name]
        details = partition_details.get(name, {})
        tables.append(Table(name, tuple(columns[name]), key, key_index, int(rows), int(size), details=details))
    return tuple(tables)


def missing(name: TableName) -> SchemaChanged:
    """Return the error for a table that does not exist."""
    return SchemaChanged(
        "the table does not exist, or this user may not see it",
        where=str(name),
        hint="restore the table or this user's privileges on the table, or trigger a new run without the table",
    )


def may_lack_partitions(table: Table) -> bool:
    """Whether a row that was stored in one session may belong to no partition in another session."""
    return bool(table.details.get(_MAY_LACK_PARTITIONS))


def unsigned_difference(table: Table) -> str:
    """Return the partitioning expression if its value depends on the session's sql_mode (NO_UNSIGNED_SUBTRACTION); else
    "".

    If a statement has a condition on the expression's columns, the server evaluates the expression to select
    partitions. So the statement may fail, or may miss rows. A statement without a condition reads all partitions.
    """
    return str(table.details.get(_UNSIGNED_DIFFERENCE, ""))


def difference(recorded: Table, now: Table) -> str:
    """Describe the changes of a table since it was recorded; empty if no change could affect a copy."""
    before, after = ([_shape(column) for column in table.columns] for table in (recorded, now))
    if before != after:
        names = {shape[0] for shape in set(before) ^ set(after)} or {"their order"}
        return f"its columns have changed ({', '.join(sorted(map(str, names)))})"
    return "" if recorded.key == now.key else "its key has changed"


def check_unchanged(connection: Connection, tables: Sequence[Table]) -> None:
    """Make sure that tables have the same columns and keys as when they were recorded.

    This check does not detect a change that was undone, but the log shows such a change.

    :raises SchemaChanged: a table has other columns or another key.
    """
    # Prefer the recorded key index. Otherwise, the check could choose a new unique index as the key, although such an
    # index does not affect the run.
    key_indexes = {table.name: table.key_index for table in tables}
    for table, now in zip(tables, read_tables(connection, list(key_indexes), key_indexes), strict=True):
        if what := difference(table, now):
            raise SchemaChanged(
                what, where=str(table.name), hint="the table changed since the run began: trigger a new run"
            )


def select_of_tables(
    connection: Connection,
    names: Sequence[TableName],
    columns: str,
    view: str,
    rest: str = "",
    *,
    schema_column: str = "TABLE_SCHEMA",
) -> list[tuple[Any, ...]]:
    """Return the rows of these tables in a ``view`` of the information schema. Each row has the schema, the table and
    ``columns``."""
    rows: list[tuple[Any, ...]] = []
    # The server looks up single tables only if the condition names one schema.
    schemas: dict[str, list[str]] = defaultdict(list)
    for name in names:
        schemas[name.schema].append(name.name)
    for schema, tables in schemas.items():
        for some in batches(connection, list(dict.fromkeys(tables)), lambda name: size_of([name]), _TABLES_AT_ONCE):
            marks = ", ".join(["%s"] * len(some))
            rows += query(
                connection,
                f"SELECT {schema_column}, TABLE_NAME, {columns} FROM information_schema.{view} "
                f"WHERE {schema_column} = %s AND TABLE_NAME IN ({marks}) {rest}",
                (schema, *some),
            )
    return rows


def _shape(column: Column) -> tuple[Any, ...]:
    return column.name, column.type, column.nullable, tuple(sorted(column.details.items()))


def _matches_nothing(connection: Connection, pattern: str, wanted: TableName, others: list[TableName]) -> Problem:
    if others:
        return Problem(pattern, "is a view, not a table", "name the tables that the view reads")
    if wanted.schema.lower() in SYSTEM_SCHEMAS:
        return Problem(
            pattern, "is in a system schema", "leave the table out: changes of system tables are not in the log"
        )
    if "*" in pattern:
        return Problem(
            pattern,
            "matches no table that this user may see",
            "correct the pattern, or grant SELECT on the tables",
        )
    return Problem(
        pattern,
        "there is no such table, or this user may not see it",
        f"correct the name, or GRANT SELECT ON {table_sql(wanted)} TO {account(connection)}",
    )


def _columns(connection: Connection, names: Sequence[TableName]) -> dict[TableName, list[Column]]:
    found: dict[TableName, list[Column]] = defaultdict(list)
    for schema, table, name, kind, nullable, charset, collation, extra in select_of_tables(
        connection,
        names,
        "COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, CHARACTER_SET_NAME, COLLATION_NAME, EXTRA",
        "COLUMNS",
        "ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
    ):
        details: dict[str, str | int | bool] = {}
        if charset is not None:
            details |= {"charset": charset, "collation": collation}
        if "VIRTUAL GENERATED" in extra:
            details["generated"] = "virtual"
        elif "STORED GENERATED" in extra:
            details["generated"] = "stored"
        if "INVISIBLE" in extra:
            details["invisible"] = True
        # With some settings of lower_case_table_names, the letter case may differ from the requested letter case.
        found[TableName(schema, table)].append(Column(name, kind, nullable == "YES", details))
    return {name: with_labels(connection, name, columns) for name, columns in found.items()}


def _partition_details(
    connection: Connection, columns: Mapping[TableName, Sequence[Column]]
) -> dict[TableName, dict[str, Any]]:
    """Return the entries of ``Table.details`` about the partitioning of each table."""
    details: dict[TableName, dict[str, Any]] = defaultdict(dict)
    for schema, table, *expressions in select_of_tables(
        connection,
        list(columns),
        "PARTITION_METHOD, PARTITION_EXPRESSION, SUBPARTITION_METHOD, SUBPARTITION_EXPRESSION",
        "PARTITIONS",
        "AND PARTITION_ORDINAL_POSITION = 1",
    ):
        name = TableName(schema, table)
        for method, expression in (expressions[:2], expressions[2:]):
            if method and may_fail(method, expression or "", columns[name]):
                details[name][_MAY_LACK_PARTITIONS] = True
            if method and is_unsigned_difference(method, expression or "", columns[name]):
                details[name].setdefault(_UNSIGNED_DIFFERENCE, expression)
    return details


_IndexParts = dict[str, list[tuple[Any, ...]]]


def _indexes(connection: Connection, names: Sequence[TableName]) -> dict[TableName, _IndexParts]:
    """Return the parts of every unique index, primary key first: (column, prefix length, visible)."""
    parts_by_table: dict[TableName, _IndexParts] = defaultdict(lambda: defaultdict(list))
    for schema, table, index, *part in select_of_tables(
        connection,
        names,
        "INDEX_NAME, COLUMN_NAME, SUB_PART, IS_VISIBLE",
        "STATISTICS",
        "AND NON_UNIQUE = 0 ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX",
    ):
        parts_by_table[TableName(schema, table)][index].append(tuple(part))
    return parts_by_table


def _key(columns: Sequence[Column], indexes: _IndexParts, first: str) -> tuple[str, tuple[str, ...]]:
    """Return the index to use as the key, and its columns. The index named ``first`` is preferred if it is usable."""
    usable = {column.name for column in columns if not column.nullable and column.details.get("generated") != "virtual"}
    for index, parts in sorted(indexes.items(), key=lambda item: item[0] != first):
        key = tuple(column for column, _, _ in parts)
        # A primary key may contain a prefix of a column, because rows that differ in the prefix also differ in the
        # column.
        whole = index == "PRIMARY" or all(prefix is None for _, prefix, _ in parts)
        if whole and usable.issuperset(key) and all(visible == "YES" for _, _, visible in parts):
            return index, key
    return "", ()


# Names the table that is missing, if a statement about several tables fails because one of them does not exist.


_NO_TABLE = (1049, 1146)
"""The error numbers for a database and for a table that does not exist."""


@contextmanager
def naming_missing_tables(connection: Connection, names: Sequence[TableName]) -> Iterator[None]:
    """Replace the error for a table that does not exist. The run may leave this table out if the error names it.

    :param names: the tables that the statements in the block name.
    :raises SchemaChanged: a table does not exist.
    :raises TransientError: a table did not exist for a moment, as when another table takes its name.
    """
    try:
        yield
    except pymysql.MySQLError as error:
        if error.args[0] not in _NO_TABLE:
            raise
        there = {TableName(schema, name) for schema, name, _ in select_of_tables(connection, names, "1", "TABLES")}
        for name in names:
            if name not in there:
                raise missing(name) from error
        what, where = "a table was missing for a moment", ", ".join(map(str, names))
        raise TransientError(what, where=where, hint="the task can be retried as it is") from error
