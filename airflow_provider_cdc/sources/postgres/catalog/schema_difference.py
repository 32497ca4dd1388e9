"""Detects changes to recorded tables. Changes that cannot affect a copy are ignored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.postgres.catalog import publication_scope
from airflow_provider_cdc.sources.postgres.catalog.schema import (
    HINT,
    LOGGED,
    RENAMED,
    REWRITTEN,
    leaves,
    present_tables,
)
from airflow_provider_cdc.sources.postgres.catalog.views import view_definitions
from airflow_provider_cdc.sources.postgres.server.session import Connection, quote

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
    if what := publication_scope.moved(recorded.details, now.details):
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
        # A refreshed materialized view is still read as of the exported snapshot (`view_reads`).
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
