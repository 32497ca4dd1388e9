"""The identity of a table: what is another after the table was made anew, whatever the log says of it.

A session with ``sql_log_bin=0`` leaves no trace in the log, as whoever loads what ``mysqldump`` writes does. But the
table that it leaves is another one. The server shows when the table was created or last altered, in whole seconds
(``TABLES.CREATE_TIME``: the time at which the statement began, which is also that of its event in the log). To users
with the privilege PROCESS it shows the numbers of InnoDB's own tables, too (``INNODB_TABLES.TABLE_ID``), one for each
partition. They stay the same through restarts, renames and DDL in place, and no number is given twice. TRUNCATE,
EXCHANGE PARTITION and DISCARD TABLESPACE change these only.

To tell these numbers, the server waits for whoever holds any of its tables exclusively: CREATE TABLE … SELECT does as
long as it takes, and so does an ALTER of a table that somebody reads. We wait for a second only. The numbers of
tablespaces (``INNODB_TABLESPACES_BRIEF.SPACE``) come without waiting. They change with those of the tables, but not by
IMPORT TABLESPACE, and tables that share a tablespace have none.

Identities are of one server: on another one the same table has others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.mysql.server.driver_errors import LOCK_WAIT_TIMEOUT
from airflow_provider_cdc.sources.mysql.server.session import Connection, account, query
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables, table_sql

_CREATED, _IDS, _SPACES = "created", "table_ids", "tablespaces"
"""In a table's details."""
_PRIVILEGE_MISSING = 1227
_WAIT_SECONDS = 1
_PARTITION = re.compile("#[pP]#")
_ESCAPED = re.compile(r"[^0-9A-Za-z_]")


@dataclass(frozen=True)
class TableIdentity:
    """``created``: in seconds since 1970. ``ids``: the number of each partition's table, by the partition's name as
    InnoDB writes it, empty for a table without partitions; None: this user may not see it, or the server would not tell
    it now. ``spaces``: those of the tablespaces, in the same way.
    """

    created: int
    ids: Mapping[str, int] | None
    spaces: Mapping[str, int] | None = None

    def other_ids(self, other: TableIdentity) -> bool:
        """Whether both are known to have other numbers."""
        return _differ(self.ids, other.ids) or _differ(self.spaces, other.spaces)

    def lost_ids(self, other: TableIdentity) -> bool:
        """Whether the other one is known to lack numbers of this one; it may have more."""
        return _lost(self.ids, other.ids) or _lost(self.spaces, other.spaces)

    def differs(self, other: TableIdentity) -> bool:
        return self.created != other.created or self.other_ids(other)


def recorded_identity(table: Table) -> TableIdentity | None:
    """The identity that was recorded of a table; None: none was, as by older versions of this provider."""
    created, ids, spaces = map(table.details.get, (_CREATED, _IDS, _SPACES))
    return None if created is None else TableIdentity(created, ids, spaces)


def with_identities(
    connection: Connection, tables: Sequence[Table], known: Mapping[TableName, TableIdentity]
) -> tuple[Table, ...]:
    """The tables and the parents whose changes reach them (`Table.cascades_from`), each with its identity in its
    details; those that are not ``known`` are asked for."""
    names = {related_table.name for table in tables for related_table in (table, *table.cascades_from)}
    identities = {**read_identities(connection, sorted(names - known.keys())), **known}

    def identified(table: Table) -> Table:
        table_numbers = identities.get(table.name)
        if table_numbers is None:
            return table
        numbers = {_IDS: table_numbers.ids, _SPACES: table_numbers.spaces}
        numbers_by_kind = {key: dict(identities) for key, identities in numbers.items() if identities is not None}
        return replace(table, details={**table.details, _CREATED: table_numbers.created, **numbers_by_kind})

    return tuple(
        replace(identified(table), cascades_from=tuple(map(identified, table.cascades_from))) for table in tables
    )


def read_identities(connection: Connection, names: Sequence[TableName]) -> dict[TableName, TableIdentity]:
    """The present identities of tables; those that are not there, or that this user may not see, are left out.

    The numbers are read as they are on the way: of a table that is being altered they may be of both (`held`).
    """
    created = {
        TableName(schema, name): int(when)
        for schema, name, when in select_of_tables(connection, names, "UNIX_TIMESTAMP(CREATE_TIME)", "TABLES")
        if when is not None
    }
    ids, spaces = _ids(connection, list(created)), _spaces(connection, list(created))
    return {name: TableIdentity(when, ids.get(name), spaces.get(name)) for name, when in created.items()}


def recorded_identities(tables: Sequence[Table]) -> dict[TableName, TableIdentity]:
    """What was recorded of tables, and of the parents whose changes reach them."""
    tables_by_name = {
        related_table.name: related_table for table in tables for related_table in (*table.cascades_from, table)
    }
    return {
        name: recorded
        for name, related_table in tables_by_name.items()
        if (recorded := recorded_identity(related_table)) is not None
    }


def look_replaced(
    connection: Connection, tables: Sequence[Table], explained: Mapping[TableName, TableIdentity]
) -> bool:
    """Whether some table, or a parent whose changes reach one, has another identity than it was recorded with, and than
    the one that is ``explained``: whether the log says why is to be found out (`replaced`)."""
    recorded = recorded_identities(tables)
    now = read_identities(connection, list(recorded))
    return any(
        name not in now or (recorded_one.differs(now[name]) and explained.get(name, recorded_one).differs(now[name]))
        for name, recorded_one in recorded.items()
    )


def identity_warnings(connection: Connection) -> list[str]:
    """What this user does not see of tables that are replaced without a trace in the log."""
    # Whoever may read one of these views may read all of them; to read this one waits for nobody.
    if _tablespaces(connection, []) is not None:
        return []
    unseen = (
        "this user may not read information_schema.INNODB_TABLES: TRUNCATE, EXCHANGE PARTITION and IMPORT TABLESPACE "
        "of a copied table with sql_log_bin=0 will not be noticed, nor a table that is replaced so before a logged "
        f"ALTER, or in the second of one (GRANT PROCESS ON *.* TO {account(connection)})"
    )
    return [unseen]


@contextmanager
def held(connection: Connection, names: Sequence[TableName]) -> Iterator[None]:
    """Keep others from altering tables: who does so is waited for first."""
    query(connection, "START TRANSACTION READ ONLY")
    try:
        for name in names:
            query(connection, f"SELECT 1 FROM {table_sql(name)} LIMIT 0")
        yield
    finally:
        query(connection, "COMMIT AND NO CHAIN")


def _differ(one: Mapping[str, int] | None, other: Mapping[str, int] | None) -> bool:
    return one is not None and other is not None and one != other


def _lost(one: Mapping[str, int] | None, other: Mapping[str, int] | None) -> bool:
    return one is not None and other is not None and not one.items() <= other.items()


def _ids(connection: Connection, names: Sequence[TableName]) -> dict[TableName, dict[str, int]]:
    encoded = {_in_file_names(name): name for name in names}
    rows = _engine_tables(connection, [name.partition("/")[0] for name in encoded])
    numbers: dict[TableName, dict[str, int]] = {}
    for name, number, _ in rows or ():
        table, _, partition = _split(name)
        if table in encoded:
            numbers.setdefault(encoded[table], {})[partition] = number
    if rows is not None and (names_without_numbers := [name for name in names if name not in numbers]):
        numbers |= _ids_by_tablespace(connection, names_without_numbers)
    return numbers


def _ids_by_tablespace(connection: Connection, names: Sequence[TableName]) -> dict[TableName, dict[str, int]]:
    """The numbers of tables whose names have letters that only the server can write as in the names of its files: it
    tells the names of tablespaces as they are. Tables that share one are left out."""
    spaces = {space: name for name, space in _tablespaces(connection, [name.schema for name in names]) or ()}
    names_by_path = {f"{name.schema}/{name.name}": name for name in names}
    numbers: dict[TableName, dict[str, int]] = {}
    for name, number, space in _engine_tables(connection, None) or ():
        _, divided, partition = _split(name)
        whole = spaces.get(space, "")
        # A plain table may have the sign of partitions in its name.
        table = _PARTITION.split(whole, maxsplit=1)[0] if divided else whole
        if table in names_by_path:
            numbers.setdefault(names_by_path[table], {})[partition] = number
    return numbers


def _spaces(connection: Connection, names: Sequence[TableName]) -> dict[TableName, dict[str, int]]:
    """The numbers of the tablespaces of tables; those that share one are left out."""
    names_by_path = {f"{name.schema}/{name.name}": name for name in names}
    spaces: dict[TableName, dict[str, int]] = {}
    for name, space in _tablespaces(connection, [name.schema for name in names]) or ():
        table, _, partition = (name, False, "") if name in names_by_path else _split(name)
        if table in names_by_path:
            spaces.setdefault(names_by_path[table], {})[partition] = space
    return spaces


def _tablespaces(connection: Connection, schemas: Sequence[str]) -> list[tuple[str, int]] | None:
    """Names and numbers of the tablespaces of single tables; None: this user may not see them."""
    rows = _engine_view(
        connection,
        f"SELECT NAME, SPACE FROM information_schema.INNODB_TABLESPACES_BRIEF "
        f"WHERE SPACE_TYPE = 'Single' AND {_in_schemas(schemas)}",
        schemas,
    )
    return None if rows is None else [(str(name), int(space)) for name, space in rows]


def _engine_tables(connection: Connection, schemas: Sequence[str] | None) -> list[tuple[str, int, int]] | None:
    """Names, numbers and tablespaces of InnoDB's tables, of all or of those in schemas with these names of folders.

    None: this user may not see them, or some table of the server is held exclusively.
    """
    condition = "TRUE" if schemas is None else _in_schemas(schemas)
    try:
        rows = _engine_view(
            connection,
            f"SELECT /*+ SET_VAR(lock_wait_timeout = {_WAIT_SECONDS}) */ NAME, TABLE_ID, SPACE "
            f"FROM information_schema.INNODB_TABLES WHERE {condition}",
            schemas or (),
        )
    except pymysql.OperationalError as error:
        if error.args[0] != LOCK_WAIT_TIMEOUT:
            raise
        return None
    return None if rows is None else [(str(name), int(number), int(space)) for name, number, space in rows]


def _in_schemas(schemas: Sequence[str]) -> str:
    # Not by the names of the tables: the statement would grow with their number.
    marks = ", ".join(["%s"] * len(dict.fromkeys(schemas)))
    return f"SUBSTRING_INDEX(NAME, '/', 1) IN ({marks})" if marks else "FALSE"


def _engine_view(connection: Connection, statement: str, schemas: Sequence[str]) -> list[tuple[Any, ...]] | None:
    """None: this user may not see it."""
    try:
        return query(connection, statement, list(dict.fromkeys(schemas)))
    except pymysql.OperationalError as error:
        if error.args[0] != _PRIVILEGE_MISSING:
            raise
        return None


def _split(name: str) -> tuple[str, bool, str]:
    """A name of InnoDB's: the table's, whether it is a partition, and which one."""
    parts = _PARTITION.split(name, maxsplit=1)
    return parts[0], len(parts) > 1, "".join(parts[1:])


def _in_file_names(name: TableName) -> str:
    """A table's name as InnoDB writes it, if all of its letters are ASCII."""
    return "/".join(_ESCAPED.sub(lambda sign: f"@{ord(sign[0]):04x}", part) for part in (name.schema, name.name))
