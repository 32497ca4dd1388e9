"""Reads the catalog entries of tables as they were at the point at which a slot was created.

DDL is not in the log. So the schemas are read before and after the slot's point, and both results must be equal. But
neither read shows a change that was made after the first read and undone before the second. Examples: a partition was
attached and detached, a column was added and dropped, or two tables swapped their names for a while. The snapshot that
the slot exports shows the catalog at the slot's point. The queries here call no catalog functions of the server,
because these functions show the present catalog in every snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import catalog_at
from airflow_provider_cdc.sources.postgres.catalog.schema import TREES
from airflow_provider_cdc.sources.postgres.catalog.views import view_definitions
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

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
class Seen:
    """A table at the slot's point: its OID, the numbers and versions of its columns, and the entry ``tree`` of
    `Table.details`."""

    oid: int
    columns: frozenset[str]
    tree: frozenset[str]


def read_at(connection: Connection, snapshot: str, names: Sequence[TableName]) -> dict[TableName, Seen]:
    """Return the tables that exist in an exported snapshot, by name."""
    with catalog_at(connection, snapshot) as catalog:
        schemas_and_names = [name.schema for name in names], [name.name for name in names]
        oids = {TableName(schema, name): oid for schema, name, oid in query(catalog, _RELATIONS, schemas_and_names)}
        columns = dict(query(catalog, _COLUMNS, (list(oids.values()),)))
        trees = dict(query(catalog, TREES, (list(oids.values()),)))
    return {
        name: Seen(oid, frozenset(columns.get(oid, ())), frozenset(trees.get(oid, ()))) for name, oid in oids.items()
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


def changed_since(seen: Seen | None, table: Table) -> str:
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


def came_since(seen: Seen, table: Table) -> set[int]:
    """Return the OIDs of the partitions in a later snapshot that the table did not have when it was recorded."""
    return {int(version.partition("/")[0]) for version in seen.tree - set(table.details["tree"])}


def changed_around(seen: Seen | None, table: Table) -> str:
    """Describe how a table at the slot's point differs from the table before and after this point. Empty: there is no
    difference."""
    if seen is None or seen.oid != table.details["oid"]:
        return "another table had its name for a while"
    if seen.columns != {f"{column.details['number']}/{column.details['version']}" for column in table.columns}:
        return "it had other columns for a while"
    if seen.tree != set(table.details["tree"]):
        return "it had other partitions for a while"
    return ""
