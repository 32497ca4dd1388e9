"""Read the definitions of tables from the server: names, columns, keys, sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import Problem, SchemaChanged
from airflow_provider_cdc.sources.mysql.server.session import Connection, account, query, quote, value
from airflow_provider_cdc.sources.mysql.server.statement_size import batches, size_of
from airflow_provider_cdc.sources.mysql.tables.hidden_labels import with_labels
from airflow_provider_cdc.sources.mysql.tables.partition_expressions import is_unsigned_difference, may_fail
from airflow_provider_cdc.sources.planning import patterns as patterns_of_tables

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


def table_sql(name: TableName) -> str:
    """Return the table's name, quoted for SQL."""
    return quote(name.schema, name.name)


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
