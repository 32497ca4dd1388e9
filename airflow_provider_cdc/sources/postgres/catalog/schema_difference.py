"""Detects changes to recorded tables. Changes that cannot affect a copy are ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.tables.table import CarriedField, Column, Era, Evolution, Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.postgres.catalog import catalog_snapshot, view_definitions
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import catalog_at
from airflow_provider_cdc.sources.postgres.catalog.schema import (
    HINT,
    LOGGED,
    RENAMED,
    REWRITTEN,
    TREES,
    leaves,
    present_tables,
)
from airflow_provider_cdc.sources.postgres.catalog.types import arrow_schema, base_type
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote

AT_UPPER = "at_upper"
"""A key of `Table.details`. Its value is true if the copy is exact at the position where the reads end."""


def difference(recorded: Table, now: Table, *, versions: bool = True) -> str:
    """Describe how a table has changed since it was recorded. Empty: no change could affect a copy.

    With ``versions``, every change to a catalog row of the partition tree or of the columns counts. This mode is for
    the moment at which the position is fixed, because no other check covers that moment. During the reads, this mode
    would stop runs unnecessarily. So the reads do not compare the versions of the following objects. Changes of these
    objects cannot cause a wrong row, even if they were undone:

    - Columns (their names, types, NOT NULL): if a column was dropped and added again, its number has changed.
      `check_in_place` checks the names and types of the columns with every read. The log describes the columns together
      with the changes. The other properties (statistics, storage, defaults, privileges) change no row.
    - A NOT NULL constraint that was added after the table was recorded: the column is read and published as nullable,
      as recorded.
    - Labels that were added to an enum: at the position, no row has a new label. So all rows with a new label are in
      the log, and are rewound. The other labels keep their versions. There are two exceptions. In columns that identify
      rows (the key columns; without a key, all columns that are read), labels must not be added. If a label is renamed
      before a row is read, the row that the read returns differs from the row in the log. Labels must also not be added
      if the copy is exact at the position where the reads end (`AT_UPPER`), because a label that exists at that
      position may be renamed before it is read.
    - The replica identity: the log has the replica identity of each relation, and each change shows whether it has the
      whole old row. But if the log reports changes under the root's name (``as_root``), it has only the root's replica
      identity. In that case, versions are compared.
    - Partitions that were created or attached after the table was recorded: at the run's position, they had none of the
      table's rows. Such partitions are not in the log, and are not read. If a row moves into such a partition, the log
      has a DELETE in the row's old partition. But if the log reports changes under the root's name (``as_root``), the
      rows of an attached partition would look as if the table had always had them. So in that case, no partition may be
      added.
    - Keys other than the recorded key: they identify no rows.

    A key is identified by its constraint. The index of the constraint may be replaced (REINDEX CONCURRENTLY), because
    the server does not allow the constraint to be dropped at the same time. A unique index without a constraint is
    identified by its OID. REINDEX CONCURRENTLY creates an index with another OID, and the catalog has no trace of the
    old index. So the catalog looks as if the index had been dropped and created again. Without the index, rows with
    equal keys might have existed. So the run stops. A new version of the index's catalog row also stops the run,
    because an interrupted DROP INDEX CONCURRENTLY leaves the index invalid, and REINDEX INDEX makes it valid again.
    """
    if recorded.details["oid"] != now.details["oid"]:
        return RENAMED
    before = [_shape(column, versions) for column in recorded.columns]
    after = [_shape(column, versions) for column in now.columns]
    if not versions and len(before) == len(after):
        # The rows of a view are never rewound, because the log has no changes of a view.
        rewound = not recorded.details.get(AT_UPPER) and recorded.details["kind"] in LOGGED
        identifying = recorded.key if rewound else ()
        fixed = {*(identifying or (column.name for column in recorded.as_read.columns))}
        pairs = zip(recorded.columns, now.columns, strict=True)
        after = [_shape(_as_before(*pair, pair[0].name not in fixed), versions) for pair in pairs]
    if before != after:
        names = {shape[0] for shape in set(before) ^ set(after)} or {"their order"}
        return f"its columns have changed ({', '.join(sorted(map(str, names)))})"
    if recorded.key and now.details["keys"].get(recorded.details["key_version"]) != list(recorded.key):
        return _another_key(recorded, now)
    if versions and recorded.key != now.key:
        return "its key has changed"
    if recorded.details["identity"] != now.details["identity"]:
        return "its replica identity has changed"
    if now.details.get("reads") != recorded.details.get("reads"):
        return "it, or a relation that it reads, was altered, rewritten or truncated, or its partitions changed"
    if now.details["children"] != recorded.details["children"]:
        return "other tables inherit from it now"
    if what := catalog_snapshot.moved(recorded.details, now.details):
        return what
    whole = versions or recorded.details.get("as_root", True)
    tree, tree_now = set(recorded.details["tree"]), set(now.details["tree"])
    if not tree <= tree_now or (whole and tree != tree_now):
        return "partitions were attached or detached"
    there = {leaf.oid: leaf for leaf in leaves(now)}
    for old in leaves(recorded):
        new = there.get(old.oid)
        if new is None:
            return "partitions were attached or detached"
        # A refreshed materialized view is still read as of the exported snapshot (`views.safe_views`).
        if old.filenode != new.filenode and recorded.details["kind"] != view_definitions.MATERIALIZED:
            return f"{old.sql} {REWRITTEN}"
        if old.identity != new.identity:
            return f"the replica identity of {old.sql} has changed"
        if (old.sql, old.order) != (new.sql, new.order) or (whole and old.state != new.state):
            return f"{old.sql} was altered"
    return ""


def _another_key(recorded: Table, now: Table) -> str:
    if list(recorded.key) not in now.details["keys"].values():
        return "its key has changed"
    table, index = quote(recorded.name.schema, recorded.name.name), quote(recorded.key_index)
    return (
        f"its key has changed: {index} was altered or created again (REINDEX CONCURRENTLY of an index without a "
        "constraint does this), so two rows may have shared a key in between "
        f"(ALTER TABLE {table} ADD UNIQUE USING INDEX {index} makes it a constraint, which survives a REINDEX)"
    )


def check_unchanged(connection: Connection, tables: Iterable[Table], *, versions: bool = False) -> None:
    """Check that tables have not been changed since they were recorded. `difference` describes which changes count.

    :raises SchemaChanged: a table has changed.
    """
    recorded = list(tables)
    for table, now in zip(recorded, present_tables(connection, [table.name for table in recorded]), strict=True):
        if what := difference(table, now, versions=versions):
            raise SchemaChanged(
                what,
                where=str(table.name),
                hint=HINT,
            )


def _shape(column: Column, versions: bool) -> tuple[Any, ...]:
    left_out = set() if versions else {"version"}
    details = {name: value for name, value in column.details.items() if name not in left_out}
    return column.name, column.type, column.nullable, tuple(sorted(details.items()))


def _as_before(recorded: Column, now: Column, labels_may_grow: bool) -> Column:
    """Return the present column without the additions that do not affect existing rows."""
    labels = str(recorded.details.get("labels", ""))
    details = dict(now.details)
    if labels and labels_may_grow and set(labels.split()) <= set(str(details.get("labels", "")).split()):
        details["labels"] = labels
    return replace(now, nullable=recorded.nullable or now.nullable, details=details)


# Decides whether a copy can be rolled forward over schema changes, and how its rows become rows of the present table.
#
# The catalog has no history. But a table never uses the number of a column for another column. So the columns of the
# base copy and the present columns are matched by their numbers, however often they were renamed, and a column that was
# dropped and added again is another column.
#
# Only changes that did not rewrite the table are accepted (the caller compares the files). So a row that no transaction
# has changed since the copy is stored as it was, and the catalog has the value of each column that the row lacks: the
# missing value, which the statement that added the column computed. Later defaults do not change it.


DROPPED = "dropped_at"
"""A key of `Column.details` in an `Era`, for a column that was dropped later, at an unknown position."""

_TEXTS = (25, 1043)
"""text and varchar: the server converts one to the other without a change."""
_WITH_PRECISION = (1083, 1114, 1184)
"""time, timestamp, and timestamp with time zone."""
_NUMERIC = 1700
_NO_LIMIT = 2**31


class NotCarried(Exception):
    """The reason why a table cannot be rolled forward over its schema changes."""


def number_of(column: Column) -> int:
    """Return the number of a column. The table never uses it for another column."""
    return int(column.details["number"])


def evolution(base: Table, now: Table, missing: Mapping[int, str], begins: str) -> Evolution:
    """Return how the rows of a base copy become rows of the present table. The table has the same file.

    :param missing: the missing values of columns, as texts, by the number of the column.
    :param begins: the position of the base, in words.
    :raises NotCarried: the rows cannot be computed outside the server.
    """
    if not base.selection.whole:
        raise NotCarried("only a part of the table is copied (where, columns)")
    for column in (*base.columns, *now.columns):
        if column.details.get("generated"):
            raise NotCarried(f"it has a generated column ({column.name})")
    before = {number_of(column): column for column in base.columns}
    after = {number_of(column): column for column in now.columns}
    last = max(before, default=0)
    fields, changes = [], []
    for number, column in after.items():
        was = before.get(number)
        if was is None:
            if number < last:
                raise NotCarried(f"the column {column.name} is not in the record of the copy")
            fields.append(CarriedField(column.name, constant=_constant(column, missing.get(number))))
            changes.append(f"ADD {column.name}")
            continue
        changes += _changes(base, was, column)
        fields.append(CarriedField(column.name, was.name))
    changes += [f"DROP {column.name}" for number, column in before.items() if number not in after]
    if base.key != now.key or base.key_index != now.key_index or not {*base.key} <= {one.was for one in fields}:
        raise NotCarried("its key has changed")
    if not changes:
        return Evolution((), now.columns)
    columns = tuple(
        column if number in after else replace(column, details={**column.details, DROPPED: ""})
        for number, column in before.items()
    )
    return Evolution((Era(columns, begins, begins, ", ".join(changes), tuple(fields)),), now.columns)


def _constant(column: Column, missing: str | None) -> str | None:
    """Return the value of a new column in earlier rows, as `CarriedField.constant`."""
    if missing is None:
        if not column.nullable:
            raise NotCarried(f"the new column {column.name} is NOT NULL, and the catalog has no value for earlier rows")
        return None
    return missing.encode().hex()


def _changes(base: Table, was: Column, now: Column) -> list[str]:
    """Return the changes of a column, in words."""
    changes = []
    if was.name != now.name:
        changes.append(f"RENAME {was.name} TO {now.name}")
    if was.nullable and not now.nullable:
        raise NotCarried(f"the column {now.name} became NOT NULL")
    if was.nullable != now.nullable:
        changes.append(f"ALTER {now.name} DROP NOT NULL")
    if was.type != now.type:
        _check_type(base, was, now)
        changes.append(f"ALTER {now.name} TYPE {now.type}")
    elif _described(was) != _described(now):
        raise NotCarried(f"the type {now.type} of the column {now.name} was altered")
    if changes and was.name in base.key:
        raise NotCarried(f"the column {was.name} of its key was altered")
    return changes


def _described(column: Column) -> dict[str, str | int | bool]:
    return {name: detail for name, detail in column.details.items() if name != "version"}


def _check_type(base: Table, was: Column, now: Column) -> None:
    """Check that each value of the column is the same value, with the same text, in its present type."""
    described = f"the type of the column {now.name} has changed from {was.type} to {now.type}"
    if {was.details["kind"], now.details["kind"]} != {"base"}:
        raise NotCarried(described)
    (oid, typmod), (oid_now, typmod_now) = base_type(was), base_type(now)
    if (oid in _TEXTS and oid_now in _TEXTS) or (oid == oid_now and oid in _WITH_PRECISION):
        widens = _limit(typmod) <= _limit(typmod_now)
    elif oid == oid_now == _NUMERIC:
        # The lower half of the modifier has the scale.
        widens = min(typmod, typmod_now) >= 0 and (typmod - 4) & 0xFFFF == (typmod_now - 4) & 0xFFFF
        widens = widens and typmod <= typmod_now
    else:
        widens = False
    before, after = (
        arrow_schema(replace(base, columns=(column,), key=(), eras=())).field(0).type for column in (was, now)
    )
    decimals = pa.types.is_decimal(before) and pa.types.is_decimal(after)
    if not widens or (before != after and not decimals):
        raise NotCarried(described)


def _limit(typmod: int) -> int:
    return typmod if typmod >= 0 else _NO_LIMIT


# Reads the catalog entries of tables as they were at the point at which a slot was created.
#
# DDL is not in the log. So the schemas are read before and after the slot's point, and both results must be equal. But
# neither read shows a change that was made after the first read and undone before the second. Examples: a partition was
# attached and detached, a column was added and dropped, or two tables swapped their names for a while. The snapshot
# that the slot exports shows the catalog at the slot's point. The queries here call no catalog functions of the server,
# because these functions show the present catalog in every snapshot.


_RELATIONS = """
SELECT n.nspname, c.relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS w(schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)
"""

_COLUMNS = """
SELECT attrelid, array_agg(concat_ws('/', attnum, xmin)) FROM pg_attribute
WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped GROUP BY attrelid
"""

_INHERITING = """
SELECT concat_ws('/', inhrelid || ' in ' || inhparent, xmin) FROM pg_inherits
WHERE inhparent = ANY(%s::oid[]) AND NOT inhdetachpending
"""


@dataclass(frozen=True)
class CatalogAtSlot:
    """A table at the slot's point: its OID, the numbers and versions of its columns, and the entry ``tree`` of
    `Table.details`."""

    oid: int
    columns: frozenset[str]
    tree: frozenset[str]


def read_at(connection: Connection, snapshot: str, names: Sequence[TableName]) -> dict[TableName, CatalogAtSlot]:
    """Return the tables that exist in an exported snapshot, by name."""
    with catalog_at(connection, snapshot) as catalog:
        schemas_and_names = [name.schema for name in names], [name.name for name in names]
        oids = {TableName(schema, name): oid for schema, name, oid in query(catalog, _RELATIONS, schemas_and_names)}
        columns = dict(query(catalog, _COLUMNS, (list(oids.values()),)))
        trees = dict(query(catalog, TREES, (list(oids.values()),)))
    return {
        name: CatalogAtSlot(oid, frozenset(columns.get(oid, ())), frozenset(trees.get(oid, ())))
        for name, oid in oids.items()
    }


def partitions_changed(connection: Connection, snapshot: str, view: Table) -> bool:
    """Return whether partitions or children differ between the record of a database view and an exported snapshot.

    The partitions and children belong to the tables that the view reads. No other check detects a partition that was
    added after the record was written, and removed before the view is read.
    """
    reads = view.details["reads"]
    with catalog_at(connection, snapshot) as catalog:
        there = {version for (version,) in query(catalog, _INHERITING, (list(view_definitions.files(reads)),))}
    return there != view_definitions.partitions(reads)


def changed_since(seen: CatalogAtSlot | None, table: Table) -> str:
    """Describe how a table in a later snapshot differs from the recorded table. Empty: there is no difference.

    Differences that affect neither rows nor the meaning of rows are ignored, as in `schema_difference`. Partitions that
    were created or attached after the table was recorded may have rows of the table in the later snapshot. `came_since`
    returns these partitions.
    """
    if seen is None or seen.oid != table.details["oid"]:
        return "another table has its name in the later snapshot"
    if {column.partition("/")[0] for column in seen.columns} != {str(one.details["number"]) for one in table.columns}:
        return "it has other columns in the later snapshot"
    tree = set(table.details["tree"])
    # If the log reports changes of partitions under the root's name, it does not show that a partition was attached.
    # The rows of the attached partition then look like rows that the table always had.
    if not tree <= seen.tree or (table.details.get("as_root", True) and seen.tree != tree):
        return "partitions were attached or detached, and the copy would be exact at a later position"
    return ""


def came_since(seen: CatalogAtSlot, table: Table) -> set[int]:
    """Return the OIDs of the partitions in a later snapshot that the table did not have when it was recorded."""
    return {int(version.partition("/")[0]) for version in seen.tree - set(table.details["tree"])}


def changed_around(seen: CatalogAtSlot | None, table: Table) -> str:
    """Describe how a table at the slot's point differs from the table before and after this point. Empty: there is no
    difference."""
    if seen is None or seen.oid != table.details["oid"]:
        return "another table had its name for a while"
    if seen.columns != {f"{column.details['number']}/{column.details['version']}" for column in table.columns}:
        return "it had other columns for a while"
    if seen.tree != set(table.details["tree"]):
        return "it had other partitions for a while"
    return ""
