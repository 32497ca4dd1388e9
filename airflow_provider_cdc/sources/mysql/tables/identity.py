"""The identity of a table: properties that change when the table is created again, even if this is not logged.

A session with ``sql_log_bin=0`` leaves no trace in the log, for example when it loads the output of ``mysqldump``. But
a table that this session creates has another identity. The server shows when the table was created or last altered, in
whole seconds (``TABLES.CREATE_TIME``). This is the start time of the statement, which is also the time of the
statement's event in the log. To users with the privilege PROCESS, the server also shows the numbers of InnoDB's own
tables (``INNODB_TABLES.TABLE_ID``), one for each partition. These numbers survive restarts, renames and in-place DDL,
and no number is used twice. TRUNCATE, EXCHANGE PARTITION and DISCARD TABLESPACE change only these numbers.

To show these numbers, the server waits for every session that holds an exclusive lock on any table. CREATE TABLE …
SELECT holds such a lock until it ends, and so does an ALTER TABLE that waits for a reader of its table. This module
waits for one second at most. The server shows the numbers of tablespaces (``INNODB_TABLESPACES_BRIEF.SPACE``) without
waiting. Tablespace numbers change together with the numbers of the tables, except with IMPORT TABLESPACE. For tables
that share a tablespace, no tablespace number is recorded.

An instant ADD or DROP COLUMN keeps these numbers, but the server counts such statements since the last rebuild of the
table (``INNODB_TABLES.TOTAL_ROW_VERSIONS``).

Identities are valid on one server only. On another server, the same table has another identity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pymysql

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.mysql.server.dialect import ROW_VERSIONS
from airflow_provider_cdc.sources.mysql.server.driver import LOCK_WAIT_TIMEOUT
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from airflow_provider_cdc.sources.mysql.server.session import Connection, account, query, server_version, table_sql
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables

_CREATED, _IDS, _SPACES, _VERSIONS = "created", "table_ids", "tablespaces", "row_versions"
"""Keys in a table's details."""
_PRIVILEGE_MISSING = 1227
_WAIT_SECONDS = 1
_Numbers: TypeAlias = tuple[int, int | None]
_PARTITION = re.compile("#[pP]#")
_ESCAPED = re.compile(r"[^0-9A-Za-z_]")


@dataclass(frozen=True)
class TableIdentity:
    """The identity of a table.

    :param created: the time of creation or of the last ALTER, in seconds since 1970.
    :param ids: the InnoDB table number of each partition, by the partition's name as InnoDB writes it (empty for a
        table without partitions). None: this user may not see the numbers, or the server did not show them in time.
    :param spaces: the tablespace numbers, in the same form.
    :param versions: how often columns were added or dropped instantly, in the same form.
    """

    created: int
    ids: Mapping[str, int] | None
    spaces: Mapping[str, int] | None = None
    versions: Mapping[str, int] | None = None

    def other_ids(self, other: TableIdentity) -> bool:
        """Whether the known numbers of both identities differ."""
        return _differ(self.ids, other.ids) or _differ(self.spaces, other.spaces)

    def lost_ids(self, other: TableIdentity) -> bool:
        """Whether ``other`` is known to lack some numbers of this identity. Additional numbers in ``other`` do not
        matter."""
        return _lost(self.ids, other.ids) or _lost(self.spaces, other.spaces)

    def differs(self, other: TableIdentity) -> bool:
        return self.created != other.created or self.other_ids(other) or _differ(self.versions, other.versions)

    def more_versions(self, other: TableIdentity) -> int:
        """Return how often columns were added or dropped instantly between this identity and ``other``."""
        mine, others = self.versions or {}, other.versions or {}
        ids, other_ids = self.ids or {}, other.ids or {}
        same = [part for part in mine.keys() & others.keys() if ids.get(part) == other_ids.get(part)]
        return max((others[part] - mine[part] for part in same), default=0)


@dataclass(frozen=True)
class Explained:
    """An identity that the log explains, and the end of the log when the table had it. Later changes of the identity
    must be explained by the log after this ``place``."""

    identity: TableIdentity
    place: LogPlace


def recorded_identity(table: Table) -> TableIdentity | None:
    """Return the recorded identity of a table. None: no identity was recorded. Older versions of this provider did not
    record identities."""
    created, ids, spaces, versions = map(table.details.get, (_CREATED, _IDS, _SPACES, _VERSIONS))
    return None if created is None else TableIdentity(created, ids, spaces, versions)


def with_identities(
    connection: Connection, tables: Sequence[Table], known: Mapping[TableName, TableIdentity]
) -> tuple[Table, ...]:
    """Return the tables. Their details contain the identities of the tables and of their parents
    (`Table.cascades_from`).

    Identities that are not in ``known`` are read from the server.
    """
    names = {related_table.name for table in tables for related_table in (table, *table.cascades_from)}
    identities = {**read_identities(connection, sorted(names - known.keys())), **known}

    def with_identity(table: Table) -> Table:
        identity = identities.get(table.name)
        return table if identity is None else identified(table, identity)

    return tuple(
        replace(with_identity(table), cascades_from=tuple(map(with_identity, table.cascades_from))) for table in tables
    )


def identified(table: Table, identity: TableIdentity) -> Table:
    """Return the table with a recorded identity."""
    numbers = {_IDS: identity.ids, _SPACES: identity.spaces, _VERSIONS: identity.versions}
    details = {key: value for key, value in table.details.items() if key not in numbers}
    details |= {
        key: dict(numbers_of_parts) for key, numbers_of_parts in numbers.items() if numbers_of_parts is not None
    }
    return replace(table, details={**details, _CREATED: identity.created})


def read_identities(connection: Connection, names: Sequence[TableName]) -> dict[TableName, TableIdentity]:
    """Return the current identities of tables. Omits tables that do not exist and tables that this user may not see.

    While a table is being altered, its identity may combine old and new values. Use `held` to prevent this.
    """
    created = {
        TableName(schema, name): int(when)
        for schema, name, when in select_of_tables(connection, names, "UNIX_TIMESTAMP(CREATE_TIME)", "TABLES")
        if when is not None
    }
    numbers, spaces = _numbers(connection, list(created)), _spaces(connection, list(created))
    identities = {}
    for name, when in created.items():
        parts = numbers.get(name)
        ids = None if parts is None else {part: number for part, (number, _) in parts.items()}
        versions = {part: version for part, (_, version) in (parts or {}).items() if version is not None}
        identities[name] = TableIdentity(when, ids, spaces.get(name), versions or None)
    return identities


def recorded_identities(tables: Sequence[Table]) -> dict[TableName, TableIdentity]:
    """Return the recorded identities of tables, and of the parents whose changes reach them."""
    tables_by_name = {
        related_table.name: related_table for table in tables for related_table in (*table.cascades_from, table)
    }
    return {
        name: recorded
        for name, related_table in tables_by_name.items()
        if (recorded := recorded_identity(related_table)) is not None
    }


def has_other_identity(connection: Connection, tables: Sequence[Table], explained: dict[TableName, Explained]) -> bool:
    """Whether a table, or a parent whose changes reach it, has another identity than the one that was ``explained``
    last, or than the recorded one if none was explained.

    In this case, the module `replaced` checks whether the log explains the change.
    """
    recorded = recorded_identities(tables)
    now = read_identities(connection, list(recorded))
    recorded |= {name: one.identity for name, one in explained.copy().items() if name in recorded}
    return any(name not in now or recorded_one.differs(now[name]) for name, recorded_one in recorded.items())


def identity_warnings(connection: Connection) -> list[str]:
    """Return a warning if this user lacks the privilege to detect some replaced tables."""
    # All of InnoDB's views require the same privilege. Read the view of tablespaces, because this does not wait for
    # locks.
    if _tablespaces(connection, []) is not None:
        return []
    unseen = (
        "this user may not read information_schema.INNODB_TABLES: the run cannot detect TRUNCATE, EXCHANGE PARTITION "
        "and IMPORT TABLESPACE on a copied table with sql_log_bin=0, nor a table that is replaced with sql_log_bin=0 "
        f"before a logged ALTER, or in the same second (GRANT PROCESS ON *.* TO {account(connection)})"
    )
    return [unseen]


@contextmanager
def held(connection: Connection, names: Sequence[TableName]) -> Iterator[None]:
    """Prevent other sessions from altering the tables. If sessions are altering the tables, first wait for these
    sessions."""
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


def _numbers(connection: Connection, names: Sequence[TableName]) -> dict[TableName, dict[str, _Numbers]]:
    """Return the InnoDB number and the row versions of each table, by partition."""
    encoded = {_in_file_names(name): name for name in names}
    rows = _engine_tables(connection, [name.partition("/")[0] for name in encoded])
    numbers: dict[TableName, dict[str, _Numbers]] = {}
    for name, number, versions, _ in rows or ():
        table, _, partition = _split(name)
        if table in encoded:
            numbers.setdefault(encoded[table], {})[partition] = number, versions
    if rows is not None and (names_without_numbers := [name for name in names if name not in numbers]):
        numbers |= _numbers_by_tablespace(connection, names_without_numbers)
    return numbers


def _numbers_by_tablespace(connection: Connection, names: Sequence[TableName]) -> dict[TableName, dict[str, _Numbers]]:
    """Return the InnoDB numbers of tables whose names have non-ASCII letters. The tables are found through their
    tablespaces.

    Only the server knows how it encodes such letters in file names, but it shows the names of tablespaces unencoded.
    Tables that share a tablespace are omitted.
    """
    spaces = {space: name for name, space in _tablespaces(connection, [name.schema for name in names]) or ()}
    names_by_path = {f"{name.schema}/{name.name}": name for name in names}
    numbers: dict[TableName, dict[str, _Numbers]] = {}
    for name, number, versions, space in _engine_tables(connection, None) or ():
        _, divided, partition = _split(name)
        whole = spaces.get(space, "")
        # The name of a table without partitions may contain "#p#", too.
        table = _PARTITION.split(whole, maxsplit=1)[0] if divided else whole
        if table in names_by_path:
            numbers.setdefault(names_by_path[table], {})[partition] = number, versions
    return numbers


def _spaces(connection: Connection, names: Sequence[TableName]) -> dict[TableName, dict[str, int]]:
    """Return the tablespace numbers of tables; tables that share a tablespace are omitted."""
    names_by_path = {f"{name.schema}/{name.name}": name for name in names}
    spaces: dict[TableName, dict[str, int]] = {}
    for name, space in _tablespaces(connection, [name.schema for name in names]) or ():
        table, _, partition = (name, False, "") if name in names_by_path else _split(name)
        if table in names_by_path:
            spaces.setdefault(names_by_path[table], {})[partition] = space
    return spaces


def _tablespaces(connection: Connection, schemas: Sequence[str]) -> list[tuple[str, int]] | None:
    """Return the names and numbers of the tablespaces that belong to single tables. None: this user may not see the
    tablespaces."""
    rows = _engine_view(
        connection,
        f"SELECT NAME, SPACE FROM information_schema.INNODB_TABLESPACES_BRIEF "
        f"WHERE SPACE_TYPE = 'Single' AND {_in_schemas(schemas)}",
        schemas,
    )
    return None if rows is None else [(str(name), int(space)) for name, space in rows]


def _engine_tables(
    connection: Connection, schemas: Sequence[str] | None
) -> list[tuple[str, int, int | None, int]] | None:
    """Return the names, numbers, row versions and tablespaces of InnoDB's tables.

    None: this user may not see the numbers, or a session holds an exclusive lock on a table.

    :param schemas: the folder names of the schemas; None: all schemas.
    """
    condition = "TRUE" if schemas is None else _in_schemas(schemas)
    versions = ROW_VERSIONS.name if ROW_VERSIONS.known_to(server_version(connection)) else "NULL"
    try:
        rows = _engine_view(
            connection,
            f"SELECT /*+ SET_VAR(lock_wait_timeout = {_WAIT_SECONDS}) */ NAME, TABLE_ID, {versions}, SPACE "
            f"FROM information_schema.INNODB_TABLES WHERE {condition}",
            schemas or (),
        )
    except pymysql.OperationalError as error:
        if error.args[0] != LOCK_WAIT_TIMEOUT:
            raise
        return None
    return (
        None
        if rows is None
        else [
            (str(name), int(number), None if versions is None else int(versions), int(space))
            for name, number, versions, space in rows
        ]
    )


def _in_schemas(schemas: Sequence[str]) -> str:
    # Filter by schema, not by table, because otherwise the statement would grow with the number of tables.
    marks = ", ".join(["%s"] * len(dict.fromkeys(schemas)))
    return f"SUBSTRING_INDEX(NAME, '/', 1) IN ({marks})" if marks else "FALSE"


def _engine_view(connection: Connection, statement: str, schemas: Sequence[str]) -> list[tuple[Any, ...]] | None:
    """Query a view of InnoDB. None: this user may not see the view."""
    try:
        return query(connection, statement, list(dict.fromkeys(schemas)))
    except pymysql.OperationalError as error:
        if error.args[0] != _PRIVILEGE_MISSING:
            raise
        return None


def _split(name: str) -> tuple[str, bool, str]:
    """Split an InnoDB name into the table's name, whether it is a partition, and the partition's name."""
    parts = _PARTITION.split(name, maxsplit=1)
    return parts[0], len(parts) > 1, "".join(parts[1:])


def _in_file_names(name: TableName) -> str:
    """Return a table's name as InnoDB writes it in file names. The result is correct only if all letters are ASCII."""
    return "/".join(_ESCAPED.sub(lambda sign: f"@{ord(sign[0]):04x}", part) for part in (name.schema, name.name))
