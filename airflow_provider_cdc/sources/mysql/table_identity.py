"""The identity of a table: what is another after the table was made anew, whatever the log says of it.

A session with ``sql_log_bin=0`` leaves no trace in the log, as whoever loads what ``mysqldump`` writes does. But the
table that it leaves is another one. The server shows when the table was created or last altered, in whole seconds
(``TABLES.CREATE_TIME``: the time at which the statement began, which is also that of its event in the log). To users
with the privilege PROCESS it shows the numbers of InnoDB's own tables, too (``INNODB_TABLES.TABLE_ID``), one for each
partition. They stay the same through restarts, renames and DDL in place, and no number is given twice. TRUNCATE,
EXCHANGE PARTITION and DISCARD TABLESPACE change these only.

Identities are of one server: on another one the same table has others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pymysql

from airflow_provider_cdc.core.table import Table, TableName
from airflow_provider_cdc.sources.mysql.schema import select_of_tables, table_sql
from airflow_provider_cdc.sources.mysql.session import Connection, account, query

_CREATED, _IDS = "created", "table_ids"
"""In a table's details."""
_PRIVILEGE_MISSING = 1227
_PARTITION = re.compile("#[pP]#")
_ESCAPED = re.compile(r"[^0-9A-Za-z_]")


@dataclass(frozen=True)
class TableIdentity:
    """``created``: in seconds since 1970. ``ids``: the number of each partition's table, by the partition's name as
    InnoDB writes it, empty for a table without partitions; None: this user may not see it."""

    created: int
    ids: Mapping[str, int] | None

    def other_ids(self, other: TableIdentity) -> bool:
        """Whether both are known to have other numbers."""
        return self.ids is not None and other.ids is not None and self.ids != other.ids

    def differs(self, other: TableIdentity) -> bool:
        return self.created != other.created or self.other_ids(other)


def recorded_identity(table: Table) -> TableIdentity | None:
    """The identity that was recorded of a table; None: none was, as by older versions of this provider."""
    created, ids = table.details.get(_CREATED), table.details.get(_IDS)
    return None if created is None else TableIdentity(created, ids)


def with_identities(
    connection: Connection, tables: Sequence[Table], known: Mapping[TableName, TableIdentity]
) -> tuple[Table, ...]:
    """The tables and the parents whose changes reach them (`Table.cascades_from`), each with its identity in its
    details; those that are not ``known`` are asked for."""
    names = {one.name for table in tables for one in (table, *table.cascades_from)}
    found = {**read_identities(connection, sorted(names - known.keys())), **known}

    def identified(table: Table) -> Table:
        own = found.get(table.name)
        if own is None:
            return table
        ids = {} if own.ids is None else {_IDS: dict(own.ids)}
        return replace(table, details={**table.details, _CREATED: own.created, **ids})

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
    ids = _ids(connection, list(created))
    return {name: TableIdentity(when, ids.get(name)) for name, when in created.items()}


def recorded_identities(tables: Sequence[Table]) -> dict[TableName, TableIdentity]:
    """What was recorded of tables, and of the parents whose changes reach them."""
    known = {one.name: one for table in tables for one in (*table.cascades_from, table)}
    return {name: own for name, one in known.items() if (own := recorded_identity(one)) is not None}


def look_replaced(
    connection: Connection, tables: Sequence[Table], explained: Mapping[TableName, TableIdentity]
) -> bool:
    """Whether some table, or a parent whose changes reach one, has another identity than it was recorded with, and than
    the one that is ``explained``: whether the log says why is to be found out (`replaced`)."""
    recorded = recorded_identities(tables)
    now = read_identities(connection, list(recorded))
    return any(
        name not in now or (own.differs(now[name]) and explained.get(name, own).differs(now[name]))
        for name, own in recorded.items()
    )


def identity_warnings(connection: Connection) -> list[str]:
    """What this user does not see of tables that are replaced without a trace in the log."""
    if _engine_tables(connection, "NAME = ''") is not None:
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


def _ids(connection: Connection, names: Sequence[TableName]) -> dict[TableName, dict[str, int]]:
    if not names:
        return {}
    found: dict[TableName, dict[str, int]] = {}
    encoded = {_in_file_names(name): name for name in names}
    marks = ", ".join(["%s"] * len(encoded))
    # In a condition names compare without regard to case.
    rows = _engine_tables(
        connection, f"SUBSTRING_INDEX(SUBSTRING_INDEX(NAME, '#p#', 1), '#P#', 1) IN ({marks})", encoded
    )
    if rows is None:
        return {}
    for name, number, _ in rows:
        table, _, partition = _split(name)
        if table in encoded:
            found.setdefault(encoded[table], {})[partition] = number
    if others := [name for name in names if name not in found]:
        found |= _ids_by_tablespace(connection, others)
    return found


def _ids_by_tablespace(connection: Connection, names: Sequence[TableName]) -> dict[TableName, dict[str, int]]:
    """The numbers of tables whose names have letters that only the server can write as in the names of its files: it
    tells the names of tablespaces as they are. Tables that share one are left out."""
    spaces = {
        int(space): str(name)
        for space, name in query(
            connection,
            "SELECT SPACE, NAME FROM information_schema.INNODB_TABLESPACES_BRIEF WHERE SPACE_TYPE = 'Single'",
        )
    }
    wanted = {f"{name.schema}/{name.name}": name for name in names}
    found: dict[TableName, dict[str, int]] = {}
    for name, number, space in _engine_tables(connection, "TRUE") or ():
        _, divided, partition = _split(name)
        whole = spaces.get(space, "")
        # A plain table may have the sign of partitions in its name.
        table = _PARTITION.split(whole, maxsplit=1)[0] if divided else whole
        if table in wanted:
            found.setdefault(wanted[table], {})[partition] = number
    return found


def _engine_tables(
    connection: Connection, condition: str, args: Mapping[str, TableName] | None = None
) -> list[tuple[str, int, int]] | None:
    """Names, numbers and tablespaces of InnoDB's tables; None: this user may not see them."""
    try:
        rows = query(
            connection,
            f"SELECT NAME, TABLE_ID, SPACE FROM information_schema.INNODB_TABLES WHERE {condition}",
            list(args or ()),
        )
    except pymysql.OperationalError as error:
        if error.args[0] != _PRIVILEGE_MISSING:
            raise
        return None
    return [(str(name), int(number), int(space)) for name, number, space in rows]


def _split(name: str) -> tuple[str, bool, str]:
    """A name of InnoDB's: the table's, whether it is a partition, and which one."""
    parts = _PARTITION.split(name, maxsplit=1)
    return parts[0], len(parts) > 1, "".join(parts[1:])


def _in_file_names(name: TableName) -> str:
    """A table's name as InnoDB writes it, if all of its letters are ASCII."""
    return "/".join(_ESCAPED.sub(lambda sign: f"@{ord(sign[0]):04x}", part) for part in (name.schema, name.name))
