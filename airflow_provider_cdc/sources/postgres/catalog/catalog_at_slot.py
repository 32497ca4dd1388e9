"""Tables as the catalog has them at the slot's very point.

DDL is not in the log. So schemas are read before the point and after it, and have to agree; but what was done before
the point and undone after it shows in neither: a partition that was attached and detached, a column that came and went,
two tables that swapped their names for a while. The slot's exported snapshot shows what held at the point. Functions
of the server look at the catalog as it is now, whatever the snapshot, so these queries call none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.postgres.catalog import view_definitions
from airflow_provider_cdc.sources.postgres.server.session import Connection, literal, query

_RELATIONS = """
SELECT n.nspname, c.relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS w(schema, name) ON (n.nspname, c.relname) = (w.schema, w.name)
"""

_COLUMNS = """
SELECT attrelid, array_agg(concat_ws('/', attnum, xmin)) FROM pg_attribute
WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped GROUP BY attrelid
"""

_TREES = """
WITH RECURSIVE tree(root, relation, parent, version) AS (
    SELECT r.oid, i.inhrelid, i.inhparent, i.xmin::text FROM pg_class r JOIN pg_inherits i ON i.inhparent = r.oid
    WHERE r.oid = ANY(%s::oid[]) AND r.relkind = 'p' AND NOT i.inhdetachpending
    UNION ALL
    SELECT t.root, i.inhrelid, i.inhparent, i.xmin::text FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
    WHERE NOT i.inhdetachpending
)
SELECT root, array_agg(concat_ws('/', relation, parent, version)) FROM tree GROUP BY root
"""

_INHERITING = """
SELECT concat_ws('/', inhrelid || ' in ' || inhparent, xmin) FROM pg_inherits
WHERE inhparent = ANY(%s::oid[]) AND NOT inhdetachpending
"""


@dataclass(frozen=True)
class Seen:
    """A table at the point: its OID, the numbers and versions of its columns, and `Table.details` ``tree``."""

    oid: int
    columns: frozenset[str]
    tree: frozenset[str]


def read_at(connection: Connection, snapshot: str, names: Sequence[TableName]) -> dict[TableName, Seen]:
    """What an exported snapshot shows of tables; those that are not there are left out."""
    with connection.transaction():
        query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        query(connection, f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
        schemas_and_names = [name.schema for name in names], [name.name for name in names]
        oids = {TableName(schema, name): oid for schema, name, oid in query(connection, _RELATIONS, schemas_and_names)}
        columns = dict(query(connection, _COLUMNS, (list(oids.values()),)))
        trees = dict(query(connection, _TREES, (list(oids.values()),)))
    return {
        name: Seen(oid, frozenset(columns.get(oid, ())), frozenset(trees.get(oid, ()))) for name, oid in oids.items()
    }


def partitions_changed(connection: Connection, snapshot: str, view: Table) -> bool:
    """Whether what a database view reads has other partitions, or heirs, in an exported snapshot than were recorded.

    One that came since, and is gone again before the view is read, shows nowhere else.
    """
    reads = view.details["reads"]
    with connection.transaction():
        query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        query(connection, f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
        there = {version for (version,) in query(connection, _INHERITING, (list(view_definitions.files(reads)),))}
    return there != view_definitions.partitions(reads)


def changed_since(seen: Seen | None, table: Table) -> str:
    """What is otherwise in a later view than it was when the table was recorded, in words; empty if nothing is.

    What changes no row and no meaning is left out, as `schema_difference` does. A partition that was made or attached
    since may have rows of the table in that view: `came_since` names those.
    """
    if seen is None or seen.oid != table.details["oid"]:
        return "another table has its name there"
    if {column.partition("/")[0] for column in seen.columns} != {str(one.details["number"]) for one in table.columns}:
        return "it has other columns there"
    tree = set(table.details["tree"])
    # Of a root the log tells what came with a partition as if it had been there before.
    if not tree <= seen.tree or (table.details.get("as_root", True) and seen.tree != tree):
        return "partitions were attached or detached, and the copy is to be exact at a later position"
    return ""


def came_since(seen: Seen, table: Table) -> set[int]:
    """The OIDs of the partitions that a later view shows, and that were not there when the table was recorded."""
    return {int(version.partition("/")[0]) for version in seen.tree - set(table.details["tree"])}


def changed_around(seen: Seen | None, table: Table) -> str:
    """What was otherwise at the point than before and after it, in words; empty if nothing was."""
    if seen is None or seen.oid != table.details["oid"]:
        return "another table had its name for a while"
    if seen.columns != {f"{column.details['number']}/{column.details['version']}" for column in table.columns}:
        return "it had other columns for a while"
    if seen.tree != set(table.details["tree"]):
        return "it had other partitions for a while"
    return ""
