"""What changed of tables since they were recorded, in all that a copy could show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.postgres.catalog import publication_scope, view_definitions
from airflow_provider_cdc.sources.postgres.catalog.schema import (
    HINT,
    LOGGED,
    RENAMED,
    REWRITTEN,
    leaves,
    read_tables,
)
from airflow_provider_cdc.sources.postgres.server.session import Connection, quote

AT_UPPER = "at_upper"
"""In a table's details: true, if it is to be exact where its reads end."""


def difference(recorded: Table, now: Table, *, versions: bool = True) -> str:
    """What changed of a table since it was recorded, in words; empty if nothing did that a copy could show.

    With ``versions``, no catalog row of the partition tree or of the columns may have changed at all: that is for the
    moment in which the position is fixed, about which nothing else is known. During the reads it would stop runs for no
    reason. What is not compared by version then cannot make a wrong row, even if it was changed and changed back:

    - columns (renamed, of another type, NOT NULL): a column that was dropped and made anew has another number. What
      each column was called and was of, `in_place` looks at with every read, and the log says with the changes.
      What is left (statistics, storage, defaults, privileges) changes no row.
    - NOT NULL, once it is set: whatever was there before is read and published as a column that may have none.
    - labels that were added to an enum: no row of the position has one, so all that have are in the log, and go back to
      what they were. The others keep their versions. Not in the key: a label that is renamed before the row is read
      makes another key of it than the log has. Nor if the copy is exact where the reads end (`AT_UPPER`): a label that
      is there by then may be renamed before it is read.
    - the replica identity: the log says it of each relation, and with each change whether the old row is whole. But a
      change that is told as the root's says it of the root (``as_root``): there the versions go on to count.
    - partitions that were made or attached since: they held none of the table's rows at the position. The log does not
      tell of them, nor are they read; of a row that moved into one it has the DELETE where it was. Where it does tell
      (``as_root``) of rows that came with a partition, it would seem that they had been there before: so none may.
    - other keys than the recorded one: they tell nothing apart.

    A key is known by its constraint, whose index may be replaced (REINDEX CONCURRENTLY), for the server lets nobody
    drop it meanwhile. A unique index without a constraint is known by its OID, and REINDEX CONCURRENTLY gives it
    another one. Afterwards the catalog holds nothing of the old index: it looks just as if that had been dropped, rows
    that share a key had come and gone, and an index had been made again. So that stops the run. So does a new version
    of its row: DROP INDEX CONCURRENTLY that is cut short leaves it dead, and REINDEX INDEX brings it back to life.
    """
    if recorded.details["oid"] != now.details["oid"]:
        return RENAMED
    before = [_shape(column, versions) for column in recorded.columns]
    after = [_shape(column, versions) for column in now.columns]
    if not versions and len(before) == len(after):
        # Of a view the log tells nothing that would take a row out again.
        rewound = not recorded.details.get(AT_UPPER) and recorded.details["kind"] in LOGGED
        fixed = {*recorded.key} if rewound else {column.name for column in recorded.columns}
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
        return "it, or something that it reads, was altered, rewritten, truncated, or got or lost partitions"
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
        # A materialized view that was refreshed is read as of the shared view (`view_reads`).
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
        f"its key has changed: {index} was altered or made anew (REINDEX CONCURRENTLY of an index without a constraint "
        "does so), "
        "and nothing shows that no two rows shared a key in between "
        f"(ALTER TABLE {table} ADD UNIQUE USING INDEX {index} makes it a constraint, which survives a REINDEX)"
    )


def check_unchanged(connection: Connection, tables: Iterable[Table]) -> None:
    """Make sure that tables are what they were when they were recorded, and were so all the time since, in all that a
    copy could show (`difference` says why).

    :raises SchemaChanged: one is not.
    """
    recorded = list(tables)
    for table, now in zip(recorded, read_tables(connection, [table.name for table in recorded]), strict=True):
        if what := difference(table, now, versions=False):
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
    """The column as it is now, without what was added to it meanwhile and changes no row that was there before."""
    labels = str(recorded.details.get("labels", ""))
    details = dict(now.details)
    if labels and labels_may_grow and set(labels.split()) <= set(str(details.get("labels", "")).split()):
        details["labels"] = labels
    return replace(now, nullable=recorded.nullable or now.nullable, details=details)
