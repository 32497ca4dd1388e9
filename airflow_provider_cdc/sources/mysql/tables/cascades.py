"""Foreign keys whose actions change rows but are not logged, and why copies of the affected tables are still exact.

With ON DELETE CASCADE or SET NULL (or the same actions ON UPDATE), InnoDB itself changes the rows of a child when a row
of the parent is deleted or gets another key. Before MySQL 9.6, the binary log contains this change of the parent, but
not the change of the child. Later versions do the same with ``innodb_native_foreign_keys=ON``.

Why the copy is exact: such a child is read at one exact position U, under the short lock of ``lock``. Its parents are
locked at the same time. S(U) are the rows at U. The copy is S(U), rewound to the initial position I with the child's
changes in the log between I and U. This is correct if the log has all of these changes, which means that no cascade
reached the child in U∖I (after I, up to U). Every cascade begins with a statement on a table further up the chain: the
parent, the parent's parent, and so on. The statement deletes a row there or changes a key. The log *does* contain the
event of this statement. So ``extract_delta`` tracks all of these *parents*, copied or not, and stops the run at the
first transaction of U∖I that deletes a row of a parent or changes a referenced column. Changes after U do not matter.

The parents are looked up after I is fixed. A later DDL statement on the child or on a parent is in the window and also
stops the run. So no foreign key can be added to the chain or removed from it unnoticed.

A retry of the same run cannot succeed. I stays the same, so the change is still missing from the log, even if the table
is read again at another U. A new run has another I.

A server that logs cascades may apply changes from another server that does not log cascades: as a replica of that
server (even for a minute of the run), or from the output of mysqlbinlog. The cascades of such changes are not logged.
Each event records whether the cascades of its changes were logged. So if the cascades to a table are expected in the
log, the table is marked (`relies_on_log`). If a run has a marked table, the reader stops at the first event with
unlogged cascades that deletes or updates a row, of any table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.server.privileges import Privileges
from airflow_provider_cdc.sources.mysql.server.server import is_replica
from airflow_provider_cdc.sources.mysql.server.session import Connection, account, table_sql, variables
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables, select_of_tables
from airflow_provider_cdc.sources.mysql.tables.types import unsupported

_RULES = ("CASCADE", "SET NULL", "SET DEFAULT")
_NATIVE = "innodb_native_foreign_keys"
_LOGGED = "cascades_logged"
"""Key in a table's details: foreign keys change its rows, and the log is expected to contain these changes."""
# Use these options for every parent table, even if the parent itself is copied with other options. Here, the stored
# values of the parent are only compared.
_ANY_VALUE = TableOptions(unrepresentable="string")


@dataclass(frozen=True)
class _ForeignKey:
    """A foreign key with an action that changes rows of its table."""

    parent: TableName
    referenced: tuple[str, ...]


def with_parents(
    connection: Connection, privileges: Privileges, tables: Sequence[Table]
) -> tuple[tuple[Table, ...], list[Problem]]:
    """Return ``tables``. ``Table.cascades_from`` of each returned table contains the parents with unlogged cascades to
    this table.

    A parent's ``key`` contains the referenced columns. If some parents of a table are unknown, the table is returned
    unchanged, together with problems. To find all changes that reached the table, a run needs the schemas and the
    complete rows of its parents, and the parents of these parents. If the server logs cascades, the tables that
    cascades reach are returned with the mark that `relies_on_log` reads.
    """
    if not tables:
        return (), []
    if unlogged_because(connection) is None:
        cascading = {(schema, table) for schema, table, _ in _cascading(connection, [table.name for table in tables])}
        return tuple(
            replace(copied_table, details={**copied_table.details, _LOGGED: True})
            if (copied_table.name.schema, copied_table.name.name) in cascading
            else copied_table
            for copied_table in tables
        ), []
    keys = _all_foreign_keys(connection, [table.name for table in tables])
    chains = {table.name: _chain(table.name, keys) for table in tables}
    parent_names = sorted({parent for chain in chains.values() for parent in chain})
    visible = {
        TableName(schema, name)
        for schema, name, _ in select_of_tables(connection, parent_names, "TABLE_TYPE", "TABLES")
    }
    # Read the foreign keys before checking the privileges, because the server shows this user only the foreign keys of
    # tables and columns that the user may read.
    readable_parents = [name for name in parent_names if name in visible and privileges.select_problem(name) is None]
    parents = {parent.name: parent for parent in read_tables(connection, readable_parents)}
    complete_tables, problems = [], []
    for table in tables:
        chain = chains[table.name]
        wrong = [problem for name in chain for problem in _problems(connection, table, name, parents.get(name))]
        problems += wrong
        if not wrong:
            cascades = tuple(_referenced(parents[name], columns) for name, columns in chain.items())
            table = replace(table, cascades_from=cascades)
        complete_tables.append(table)
    return tuple(complete_tables), problems


def relies_on_log(table: Table) -> bool:
    """Whether foreign keys change the table's rows, and the log must contain these changes."""
    return bool(table.details.get(_LOGGED))


def unlogged_because(connection: Connection) -> str | None:
    """Return the reason why the log does not contain the changes of cascades. None: the log contains them."""
    native = variables(connection, [_NATIVE]).get(_NATIVE)
    if native is None:
        return "MySQL logs cascades only since 9.6"
    if native == "ON":
        return f"the server does not log cascades with {_NATIVE}=ON"
    # A replica does not show whether the server that it replicates from logs cascades.
    return "this replica may have a source that does not log cascades" if is_replica(connection) is not False else None


def watermark_problems(connection: Connection, tables: Iterable[Table]) -> list[Problem]:
    """Return a problem for each table that must be read at an exact position but is planned with ``watermark``."""
    return [
        Problem(
            str(table.name),
            f"through foreign keys (ON DELETE or ON UPDATE CASCADE or SET NULL), changes of {parents_of(table)} "
            f"also change rows of this table, and {unlogged_because(connection)}. So with the consistency "
            "`watermark`, the copy would be wrong",
            "set `Read.consistency` to `auto` or `lock`, or leave the table out. If the foreign key was created after "
            "the "
            "task `preflight` ran, clear this task",
            str(table.name),
        )
        for table in tables
        if table.cascades_from
    ]


def locked_with(table: Table) -> list[TableName]:
    """Return the tables to lock so that ``table`` is read at one position: the table and its parents."""
    return list(dict.fromkeys([table.name, *(parent.name for parent in table.cascades_from)]))


def parents_of(table: Table) -> str:
    """Return the names of the parents whose changes reach ``table``, for messages."""
    return ", ".join(str(parent.name) for parent in table.cascades_from)


def _all_foreign_keys(connection: Connection, names: Sequence[TableName]) -> Mapping[TableName, list[_ForeignKey]]:
    """Return the foreign keys that have actions: those of the tables ``names``, those of their parents, and so on."""
    foreign_keys: dict[TableName, list[_ForeignKey]] = {}
    ahead = list(names)
    while ahead:
        keys_of_generation = _foreign_keys(connection, ahead)
        foreign_keys |= {name: keys_of_generation.get(name, []) for name in ahead}
        parents = {key.parent for keys in foreign_keys.values() for key in keys}
        ahead = sorted(parents - foreign_keys.keys())
    return foreign_keys


def _cascading(connection: Connection, names: Sequence[TableName]) -> set[tuple[str, str, str]]:
    """Return the foreign keys of the tables ``names`` whose actions change rows. The result has the schema, the table
    and the name of each foreign key."""
    return {
        (schema, table, constraint)
        for schema, table, constraint, *rules in select_of_tables(
            connection,
            names,
            "CONSTRAINT_NAME, UPDATE_RULE, DELETE_RULE",
            "REFERENTIAL_CONSTRAINTS",
            schema_column="CONSTRAINT_SCHEMA",
        )
        if any(rule in _RULES for rule in rules)
    }


def changed_by_foreign_keys(connection: Connection, names: Sequence[TableName]) -> set[TableName]:
    """Return those of the tables whose rows the server changes by actions of foreign keys."""
    return {TableName(schema, name) for schema, name, _ in _cascading(connection, names)}


def _foreign_keys(connection: Connection, names: Sequence[TableName]) -> dict[TableName, list[_ForeignKey]]:
    cascading = _cascading(connection, names)
    columns: dict[tuple[str, str, str, TableName], list[str]] = defaultdict(list)
    for schema, table, constraint, parent_schema, parent, column in select_of_tables(
        connection,
        names,
        "CONSTRAINT_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME, REFERENCED_COLUMN_NAME",
        "KEY_COLUMN_USAGE",
        "AND REFERENCED_TABLE_NAME IS NOT NULL ORDER BY CONSTRAINT_NAME, ORDINAL_POSITION",
    ):
        if (schema, table, constraint) in cascading:
            columns[schema, table, constraint, TableName(parent_schema, parent)].append(column)
    by_table: dict[TableName, list[_ForeignKey]] = defaultdict(list)
    for (schema, table, _, parent_name), referenced in columns.items():
        by_table[TableName(schema, table)].append(_ForeignKey(parent_name, tuple(referenced)))
    return by_table


def _chain(name: TableName, keys: Mapping[TableName, Sequence[_ForeignKey]]) -> dict[TableName, set[str]]:
    """Return all parents up the chain from ``name``, with their referenced columns. A table may be its own parent."""
    columns_by_table: dict[TableName, set[str]] = {}
    ahead = [name]
    visited = set()
    while ahead:
        child = ahead.pop()
        if child in visited:
            continue
        visited.add(child)
        for key in keys[child]:
            columns_by_table.setdefault(key.parent, set()).update(key.referenced)
            ahead.append(key.parent)
    return dict(sorted(columns_by_table.items()))


def _referenced(parent: Table, columns: set[str]) -> Table:
    # The catalog shows the names in the letter case of the foreign key's declaration.
    lowered_names = {name.lower() for name in columns}
    key = tuple(column.name for column in parent.columns if column.name.lower() in lowered_names)
    if len(key) != len(lowered_names):
        raise AssertionError(f"{parent.name} has no columns {sorted(columns)}")
    return replace(parent, key=key, key_index="", rows=0, bytes=0, options=_ANY_VALUE)


def _problems(connection: Connection, table: Table, name: TableName, parent: Table | None) -> Iterable[Problem]:
    """Yield the reasons why the changes that reach ``table`` from a parent are unknown.

    :param parent: the parent's definition. None: the parent does not exist, or the user may not read all of it.
    """
    if parent is None:
        yield Problem(
            str(name),
            f"a change of {name} can change rows of {table.name} through a foreign key, and the server does not log "
            f"this. {name} does not exist, or this user may not read the whole table. So the run cannot know all "
            f"tables whose changes reach {table.name}",
            f"GRANT SELECT ON {table_sql(name)} TO {account(connection)}, drop the foreign key, or leave out "
            f"{table.name}",
            str(table.name),
        )
        return
    for column in parent.columns:
        if (reason := unsupported(column, policy=_ANY_VALUE.unrepresentable)) is not None:
            yield Problem(
                f"{name}.{column.name}",
                f"{reason}. Changes of {name} change rows of {table.name} through foreign keys, and the server does "
                f"not log this. So the run must read the changes of {name} in the log",
                f"change the column's type, or leave out {table.name}",
                str(table.name),
            )
