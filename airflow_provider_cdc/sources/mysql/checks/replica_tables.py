"""Compares the definitions of tables on a replica with those on its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.mysql.server.session import Connection
from airflow_provider_cdc.sources.mysql.tables.cascades import changed_by_foreign_keys, relies_on_log
from airflow_provider_cdc.sources.mysql.tables.schema import difference, read_tables, select_of_tables

_PARTITIONS = (
    "PARTITION_NAME, SUBPARTITION_NAME, PARTITION_METHOD, PARTITION_EXPRESSION, SUBPARTITION_METHOD, "
    "SUBPARTITION_EXPRESSION, PARTITION_DESCRIPTION"
)
_FACTS = (
    ("TABLES", "ENGINE", "engine", ""),
    (
        "COLUMNS",
        "COLUMN_NAME, GENERATION_EXPRESSION, COLUMN_DEFAULT, EXTRA",
        "default values or generated columns",
        "ORDER BY ORDINAL_POSITION",
    ),
    (
        "PARTITIONS",
        _PARTITIONS,
        "partitions",
        "ORDER BY PARTITION_ORDINAL_POSITION, SUBPARTITION_ORDINAL_POSITION",
    ),
)


def differences_of_tables(source: Connection, replica: Connection, names: Sequence[TableName]) -> dict[TableName, str]:
    """Return the tables whose rows could differ between the servers, because their definitions do, each with the
    difference. Indexes other than the key do not matter.

    :raises SchemaChanged: a table does not exist on the source.
    """
    here = {table.name: table for table in read_tables(source, names)}
    keys = {name: table.key_index for name, table in here.items()}
    found = set(_facts(replica, names, "TABLE_TYPE", "TABLES", ""))
    differences = {name: "it does not exist there, or this user may not see it" for name in names if name not in found}
    there = [name for name in names if name in found]
    for table in read_tables(replica, there, keys):
        if what := _difference(here[table.name], table):
            differences[table.name] = what
    # Tables with such foreign keys on the source are read on the source.
    for name in changed_by_foreign_keys(replica, there):
        differences.setdefault(name, "it has a foreign key whose action changes its rows")
    for view, columns, what, order in _FACTS:
        ours, theirs = (_facts(one, there, columns, view, order) for one in (source, replica))
        for name in there:
            if ours[name] != theirs[name]:
                differences.setdefault(name, f"its {what} differ")
    return differences


def _difference(one: Table, other: Table) -> str:
    if what := difference(one, other):
        return what.replace("have changed", "differ").replace("has changed", "differs")
    if one.key_index != other.key_index:
        return f"its key is the index {other.key_index}, and {one.key_index} on the source"
    return ""


def is_read_on_replicas(table: Table, consistency: str) -> bool:
    """Return whether a run reads the table on the replicas that it has, and not on the source.

    An exact position needs a lock of the source.
    """
    return consistency == "watermark" and not computed_there(table)


def computed_there(table: Table) -> str:
    """Return which values of the table a replica computes by its own settings. Empty: its rows are those of the source.

    The applier of a replica ignores the values of STORED columns in the log, and executes the actions of foreign keys.
    """
    if table.cascades_from or relies_on_log(table):
        return "foreign keys change its rows"
    if any(column.details.get("generated") == "stored" for column in table.columns):
        return "it has STORED columns"
    return ""


def _facts(
    connection: Connection, names: Sequence[TableName], columns: str, view: str, order: str
) -> dict[TableName, list[tuple[Any, ...]]]:
    found: dict[TableName, list[tuple[Any, ...]]] = defaultdict(list)
    for schema, name, *facts in select_of_tables(connection, names, columns, view, order):
        found[TableName(schema, name)].append(tuple(facts))
    return found
