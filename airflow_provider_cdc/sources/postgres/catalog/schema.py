"""Reads tables from the catalog: names, columns, keys, sizes, and the relations that hold their rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from itertools import chain

import psycopg

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import Problem, SchemaChanged
from airflow_provider_cdc.sources.planning.patterns import exactly
from airflow_provider_cdc.sources.postgres.catalog import catalog_snapshot, view_definitions
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import (
    Catalog,
    CatalogChanged,
    catalog_at,
    read_catalog,
)
from airflow_provider_cdc.sources.postgres.catalog.types import read_types
from airflow_provider_cdc.sources.postgres.server.session import (
    Connection,
    error_text,
    is_transient,
    query,
    quote,
    value,
)

HAS_NO_NULL = """(a.attnotnull AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_constraint never_checked WHERE never_checked.conrelid = a.attrelid
    AND never_checked.contype = 'n' AND never_checked.conkey = ARRAY[a.attnum] AND NOT never_checked.convalidated))"""
"""An SQL condition on a row ``a`` of pg_attribute. It is true if the column is NOT NULL and the server has checked all
rows of the table.

Since PostgreSQL 18, a NOT NULL constraint may be NOT VALID. Such a constraint sets ``attnotnull``, although older rows
may contain a NULL. So code that relies on NOT NULL uses this condition, and never ``attnotnull`` alone.
"""

RENAMED = "another table now has the name of this table"
REWRITTEN = "was rewritten or truncated (VACUUM FULL, CLUSTER, TRUNCATE, some forms of ALTER TABLE)"
HINT = "do not change the definition of copied tables during a run; trigger a new run"

TREE = """RECURSIVE tree(root, relation, parent, version) AS (
    SELECT r.oid, r.oid, NULL::oid, NULL FROM unnest(%s::oid[]) w JOIN pg_class r ON r.oid = w AND r.relkind = 'p'
    UNION ALL
    SELECT t.root, i.inhrelid, i.inhparent, i.xmin::text FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
    WHERE NOT i.inhdetachpending)"""
"""The start of a query (after WITH) that lists the relations of partition trees, given the OIDs of their roots. The
root itself has no parent. The server's function ``pg_partition_tree`` is not used: it returns the present tree in every
snapshot, and locks all relations of the tree until the transaction ends."""
TREES = f"""WITH {TREE}
SELECT root, array_agg(concat_ws('/', relation, parent, version) ORDER BY relation) FROM tree
WHERE parent IS NOT NULL GROUP BY root
"""
"""A query of the entries ``tree`` of `Table.details`, by root."""
LOGGED = ("r", "p")
"""The kinds of relations whose changes are in the log."""
_STORED = ("r", "m")
"""The kinds of relations that have a file."""
_NO_TYPE = "???"
"""The result of ``format_type`` for a type that does not exist."""
_ROW_BYTES = 100
"""The assumed size of a row, in bytes, in tables that were never analyzed."""


@dataclass(frozen=True)
class Leaf:
    """A relation that holds rows. It is either a plain table or a leaf of a partition tree.

    ``filenode`` identifies the relation's present file. While the relation has this file, untouched rows stay at their
    places. ``identity`` is the replica identity. ``state`` of a partition changes whenever its catalog entry changes.
    ``order`` has, for each of the leaf's columns, the index of the column in the table. If ``order`` is empty, the
    leaf's columns are in the order of the table.
    """

    oid: int
    schema: str
    name: str
    filenode: int
    identity: str
    state: str = ""
    order: tuple[int, ...] = ()

    @property
    def sql(self) -> str:
        """The quoted name of the leaf."""
        return quote(self.schema, self.name)


def leaves(table: Table) -> list[Leaf]:
    """Return the relations that hold the rows of a table, from the details that `read_tables` recorded."""
    return [
        Leaf(oid, schema, name, filenode, identity, state, tuple(order))
        for oid, schema, name, filenode, identity, state, order in table.details["leaves"]
    ]


def columns_of(table: Table, leaf: Leaf) -> list[Column]:
    """Return the columns of a table in the order of one of its leaves."""
    return [table.columns[index] for index in leaf.order] if leaf.order else list(table.columns)


def column_identities(table: Table) -> dict[str, str]:
    """Return the identity of each column, by its name: the OID of the table, and the number of the column."""
    return {column.name: f"{column.details['relation']}/{column.details['number']}" for column in table.columns}


def read_tables(catalog: Catalog, names: Sequence[TableName], publication: str = "") -> tuple[Table, ...]:
    """Return the schemas of tables, in the order of ``names``.

    :param publication: the publication through which the log will be read. Empty: the publication does not exist yet.

    Columns are in the order of the log, without dropped columns. ``Column.type`` is the type as the server prints it.
    ``Column.details`` has:

    - ``oid`` and ``typmod`` of the type;
    - ``kind``: ``base``, ``enum``, ``domain``, ``composite``, ``range``, ``multirange`` or ``array``;
    - ``base``, ``base_oid`` and ``base_typmod`` of the type beneath all domains;
    - ``definition``, a digest of everything in the type that can be altered, except its labels;
    - ``labels``, the versions of the enum labels, if the type has labels;
    - ``relation``, the OID of the table; ``number``, a number that the table never uses for another column;
    - ``version``, a value that changes with each change of the column;
    - ``names_objects``: true if a part of the type is one of ``types.NAMES_OF_OBJECTS``;
    - ``generated``: ``stored`` or ``virtual``; for a virtual column also its ``expression``, and ``computed``, a value
      that changes whenever the expression is altered.

    ``Table.details`` has:

    - ``oid``; ``kind``: ``r`` or ``p``, or ``v`` or ``m`` for a view; for ``v`` also ``reads``: `Definition.versions`;
    - ``identity``, the replica identity; ``leaves``, the input of the function `leaves`; ``tree``, the structure of the
      partition tree;
    - ``children``, the tables that inherit from the table and are not its partitions;
    - ``via_root``: whether the log reports changes of partitions under the root's name; ``as_root``: whether the log
      does so for partitions of this table;
    - ``version`` and ``placed``: see `catalog_snapshot.described`;
    - ``key``, the OID of the constraint that keeps the key unique, or of the index if there is no constraint;
      ``key_version``, a value that changes if the key is dropped and created again; ``keys``, the columns of every key
      of the table, by key version.

    If the replica identity is an index (USING INDEX), the key has the columns of this index. Otherwise it has the
    columns of the primary key. If there is no primary key, it has the columns of the first unique index that has only
    NOT NULL columns, no expressions and no condition. Deferrable keys do not count, because two rows may have the same
    key within a transaction. In that case, the first change of this key in the log would not show which row had the key
    before.

    :raises SchemaChanged: a table does not exist.
    """
    if not names:
        return ()
    relations = _relations(catalog, names)
    oids = [oid for oid, _, _ in relations.values()]
    columns, keys, held = _columns(catalog, oids), _keys(catalog, oids), _leaves(catalog, oids)
    children = dict(query(catalog, _CHILDREN, (oids,)))
    trees = dict(query(catalog, TREES, (oids,)))
    via_root = bool(query(catalog, "SELECT 1 FROM pg_publication WHERE pubname = %s AND pubviaroot", (publication,)))
    own_leaves = {oid: [leaf.oid for leaf, _ in table_leaves] for oid, (table_leaves, _, _) in held.items()}
    versions = catalog_snapshot.read_versions(catalog, [*oids, *chain.from_iterable(own_leaves.values())])
    tables = []
    for name in names:
        if name not in relations:
            raise SchemaChanged(
                "the table does not exist, or this user may not see it",
                where=str(name),
                hint="restore the table or this user's privileges on the table, or trigger a new run without the table",
            )
        oid, kind, identity = relations[name]
        # The log has no changes of a view, so a view needs no key.
        usable = _usable(columns[oid], keys.get(oid, [])) if kind in LOGGED else []
        key_index, key, key_oid, key_version = usable[0] if usable else ("", (), 0, "")
        table_leaves, rows, size = held.get(oid, ([], 0, 0))
        names_in_order = [column.name for column in columns[oid]]
        details = {
            "oid": oid,
            "kind": kind,
            "identity": identity,
            "leaves": [[*astuple(leaf)[:6], _order(names_in_order, own_names)] for leaf, own_names in table_leaves],
            "tree": trees.get(oid, []),
            "children": children.get(oid, []),
            "via_root": via_root,
            "as_root": kind == "p" and via_root,
            **catalog_snapshot.described(versions, oid, own_leaves.get(oid, [])),
            "key": key_oid,
            "key_version": key_version,
            "keys": {version: list(own_key) for _, own_key, _, version in usable},
        }
        if kind == view_definitions.VIEW:
            details["reads"] = view_definitions.read_definition(catalog, oid).versions
        tables.append(Table(name, tuple(columns[oid]), key, key_index, rows, size, details))
    return tuple(tables)


def present_tables(connection: Connection, names: Sequence[TableName]) -> tuple[Table, ...]:
    """Call `read_tables` in a snapshot of its own."""
    return read_catalog(connection, lambda catalog: read_tables(catalog, names))


def _relations(catalog: Catalog, names: Sequence[TableName]) -> dict[TableName, tuple[int, str, str]]:
    return {
        TableName(schema, name): (oid, kind, identity)
        for schema, name, oid, kind, identity in query(
            catalog,
            "SELECT n.nspname, c.relname, c.oid, c.relkind, c.relreplident FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN unnest(%s::text[], %s::text[]) AS w(schema, name) ON (n.nspname, c.relname) = (w.schema, w.name) "
            "WHERE c.relkind IN ('r', 'p', 'v', 'm')",
            ([name.schema for name in names], [name.name for name in names]),
        )
    }


_COLUMNS = f"""
SELECT a.attrelid, a.attname, a.attnum, a.xmin::text, format_type(a.atttypid, a.atttypmod), a.atttypid, a.atttypmod,
    a.attgenerated, (SELECT ARRAY[d.oid::text, pg_get_expr(d.adbin, d.adrelid)] FROM pg_attrdef d
        WHERE a.attgenerated = 'v' AND (d.adrelid, d.adnum) = (a.attrelid, a.attnum)),
    {HAS_NO_NULL}
FROM pg_attribute a WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""


def _columns(catalog: Catalog, oids: Sequence[int]) -> dict[int, list[Column]]:
    rows = query(catalog, _COLUMNS, (list(oids),))
    types = read_types(catalog, {row[5] for row in rows})
    columns: dict[int, list[Column]] = defaultdict(list)
    for relation, name, number, version, type_name, oid, typmod, generated, computed, not_null in rows:
        if type_name == _NO_TYPE or (generated == "v" and computed[1] is None):
            raise CatalogChanged(f"the column {name}, or its type, was dropped")
        kind, base, base_oid, base_typmod, names_objects, definition, labels = types[oid]
        details: dict[str, str | int | bool] = {
            "oid": oid,
            "typmod": typmod,
            "kind": kind,
            "base": base,
            "base_oid": base_oid,
            "base_typmod": base_typmod if kind == "domain" else typmod,
            "definition": definition,
            "relation": relation,
            "number": number,
            "version": version,
        }
        if labels:
            details["labels"] = labels
        if names_objects:
            details["names_objects"] = True
        if generated:
            details["generated"] = {"s": "stored", "v": "virtual"}[generated]
        if computed:
            details["computed"], details["expression"] = computed
        columns[relation].append(Column(name, type_name, not not_null, details))
    return columns


_KEYS = """
SELECT i.indrelid, c.relname, COALESCE(n.oid, c.oid), COALESCE(n.oid::text, concat(c.oid, '/', i.xmin)), ARRAY(
    SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
LEFT JOIN pg_constraint n ON n.conindid = c.oid AND n.contype IN ('p', 'u')
WHERE i.indrelid = ANY(%s::oid[]) AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indisready AND i.indislive
    AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indrelid, NOT i.indisreplident, NOT i.indisprimary, c.relname
"""


_Key = tuple[str, tuple[str, ...], int, str]


def _keys(catalog: Catalog, oids: Sequence[int]) -> dict[int, list[_Key]]:
    keys: dict[int, list[_Key]] = defaultdict(list)
    for relation, index, oid, version, key in query(catalog, _KEYS, (list(oids),)):
        keys[relation].append((index, tuple(key), oid, version))
    return keys


def _usable(columns: Sequence[Column], candidates: Sequence[_Key]) -> list[_Key]:
    filled = {column.name for column in columns if not column.nullable}
    return [candidate for candidate in candidates if filled.issuperset(candidate[1])]


_LEAVES = f"""WITH {TREE}
SELECT t.root, c.oid, c.relkind, n.nspname, c.relname, pg_relation_filenode(c.oid), c.relreplident,
    CASE WHEN c.relispartition THEN c.xmin::text ELSE '' END,
    ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum),
    c.reltuples::float8, c.relpages, COALESCE(pg_relation_size(c.oid), 0), current_setting('block_size')::int
FROM (
    SELECT w AS root, w AS relid FROM unnest(%s::oid[]) w JOIN pg_class r ON r.oid = w AND r.relkind IN ('r', 'v', 'm')
    UNION ALL SELECT root, relation FROM tree
) t JOIN pg_class c ON c.oid = t.relid AND c.relkind <> 'p' JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY t.root, c.oid
"""

_CHILDREN = """
SELECT i.inhparent, array_agg(i.inhrelid::regclass::text ORDER BY i.inhrelid)
FROM pg_inherits i JOIN pg_class r ON r.oid = i.inhparent AND r.relkind = 'r'
WHERE i.inhparent = ANY(%s::oid[]) GROUP BY i.inhparent
"""


def _leaves(catalog: Catalog, oids: Sequence[int]) -> dict[int, tuple[list[tuple[Leaf, list[str]]], int, int]]:
    """Return, by table OID, the leaves (each with the names of its columns), the estimated number of rows, and the size
    in bytes."""
    leaves_by_root: dict[int, tuple[list[tuple[Leaf, list[str]]], int, int]] = {}
    for root, oid, kind, schema, name, filenode, identity, state, columns, tuples, pages, size, block in query(
        catalog, _LEAVES, (list(oids), list(oids))
    ):
        root_leaves, rows, total = leaves_by_root.get(root, ([], 0, 0))
        if filenode is None and kind in _STORED:
            raise CatalogChanged(f"the table {schema}.{name} was dropped")
        estimate = round(tuples / pages * (size / block)) if tuples > 0 and pages > 0 else size // _ROW_BYTES
        root_leaves.append((Leaf(oid, schema, name, filenode or 0, identity, state), columns))
        leaves_by_root[root] = root_leaves, rows + estimate, total + size
    return leaves_by_root


def _order(columns: Sequence[str], own: Sequence[str]) -> list[int]:
    """Return `Leaf.order`. ``own`` has the names of the leaf's columns, in the leaf's order."""
    if list(columns) == list(own):
        return []
    places = {name: index for index, name in enumerate(columns)}
    return [places[name] for name in own]


# Checks that new partitions of a table are empty in an exported snapshot.
#
# A partition is new if it was added after the table was recorded. The log does not report the rows of a new partition,
# and no task reads the partition. If the partition is empty in the snapshot, all of its rows were added after the
# snapshot's position. So the copy at the snapshot's position misses no row.


_RELATIONS = """
SELECT c.oid, c.relkind::text, c.relfilenode, n.nspname, c.relname FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid
"""
# A relation that was truncated after the snapshot looks empty in the snapshot. So check that the relation still has the
# same file. The catalog functions in this query return the present file, even in an older snapshot.
_SAME_FILE = """
SELECT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation = %(oid)s)
    AND pg_relation_filenode(%(oid)s::oid) = %(filenode)s
"""


def why_not_empty(connection: Connection, snapshot: str, partitions: Collection[int]) -> str:
    """Return the reason why a partition may have rows in an exported snapshot. Empty: no partition has rows.

    :param partitions: the OIDs of relations that exist in the snapshot.
    """
    with catalog_at(connection, snapshot) as catalog:
        for oid, kind, filenode, schema, name in query(catalog, _RELATIONS, (list(partitions),)):
            if kind == "p":
                continue
            relation = quote(schema, name)
            if kind != "r":
                return f"the new partition {relation} is not a plain table"
            try:
                with catalog.transaction():
                    ((has_rows,),) = query(catalog, f"SELECT EXISTS (SELECT FROM ONLY {relation})")
                    # The transaction still holds the lock on the relation, so the name still refers to this relation.
                    ((same,),) = query(catalog, _SAME_FILE, {"oid": oid, "filenode": filenode})
            except psycopg.Error as error:
                if is_transient(error.sqlstate or ""):
                    raise
                return f"cannot read whether the new partition {relation} has rows in the snapshot: {error_text(error)}"
            if has_rows:
                return f"the new partition {relation} has rows in the snapshot that are not in the log"
            if not same:
                return f"the new partition {relation} was renamed, truncated or rewritten since"
    return ""


# Finds tables whose rows are partly or entirely stored in other tables. A copy would miss rows that a SELECT returns.
#
# Partitions are copied together with their root. Child tables (``INHERITS``) are not copied with their parent, because
# a key of the parent may occur again in a child, and a child may have additional columns. TimescaleDB creates such
# child tables. Citus stores rows on other servers.


_SHOWN = 3

_HYPERTABLES = (
    "SELECT c.oid FROM _timescaledb_catalog.hypertable h JOIN pg_namespace n ON n.nspname = h.schema_name "
    "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = h.table_name WHERE c.oid = ANY(%s::oid[])"
)
_DISTRIBUTED = "SELECT logicalrelid::oid FROM pg_catalog.pg_dist_partition WHERE logicalrelid::oid = ANY(%s::oid[])"


def inheritance_problems(catalog: Catalog, tables: Sequence[Table]) -> Iterable[Problem]:
    """Yield a problem for each table that has rows stored outside the table and its partitions."""
    hypertables = _listed(catalog, "_timescaledb_catalog.hypertable", _HYPERTABLES, tables)
    distributed = _listed(catalog, "pg_catalog.pg_dist_partition", _DISTRIBUTED, tables)
    for table in tables:
        where, children = str(table.name), list(table.details["children"])
        out = f"leave the table out: add the pattern !{exactly(table.name)}"
        if table.details["oid"] in hypertables:
            yield Problem(where, "is a TimescaleDB hypertable: its rows are in other tables (its chunks)", out, where)
        elif table.details["oid"] in distributed:
            yield Problem(where, "is distributed by Citus: its rows are in other tables (its shards)", out, where)
        elif children:
            more = f" and {len(children) - _SHOWN} more" if len(children) > _SHOWN else ""
            yield Problem(
                where,
                f"other tables inherit from it ({', '.join(children[:_SHOWN])}{more}): a SELECT shows their rows, too",
                f"{out}, and copy the other tables individually; or ALTER TABLE … NO INHERIT",
                where,
            )


def check_whole(catalog: Catalog, tables: Sequence[Table]) -> None:
    """Check that all rows of the tables are in the tables themselves or in their partitions.

    :raises SchemaChanged: a table has rows in other relations.
    """
    for problem in inheritance_problems(catalog, tables):
        raise SchemaChanged(problem.what, where=problem.where, hint=problem.hint)


def _listed(catalog: Catalog, relation: str, sql: str, tables: Sequence[Table]) -> set[int]:
    if value(catalog, "to_regclass(%s) IS NULL", (relation,)):
        return set()
    return {oid for (oid,) in query(catalog, sql, ([table.details["oid"] for table in tables],))}


# Finds partitioned tables that have no room for another partition.
#
# If a partition was attached with its rows, and then detached or dropped, neither the catalog nor the log shows that.
# But the server does not allow partitions of a table to overlap. So if the partitions that existed the whole time cover
# all values, the table had no other partition during that time.
#
# Hash partitions cover all values if all remainders are present. Ranges cover all values if they extend without gaps
# from MINVALUE to MAXVALUE. Rows with a NULL in the partition key belong to the default partition, and a table has at
# most one default partition. Lists never cover all values.


NO_ROOM = "HASH partitions with all remainders, or ranges from MINVALUE to MAXVALUE that leave no gap"
"""A description, used in hints, of the partitions of a table that has no room for another partition
(`without_room`)."""

# For each partitioned table in the partition trees: its partitioning strategy, whether its partition key may be NULL,
# and the bounds of its partitions.
_BOUNDS = f"""WITH {TREE}
SELECT t.root, t.relation, p.partstrat::text, 0 = ANY(p.partattrs::int2[]) OR EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = p.partrelid AND a.attnum = ANY(p.partattrs::int2[])
        AND NOT {HAS_NO_NULL}),
    ARRAY(SELECT COALESCE(pg_get_expr(c.relpartbound, c.oid), '') FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = t.relation AND NOT i.inhdetachpending)
FROM tree t JOIN pg_partitioned_table p ON p.partrelid = t.relation
"""
_DEFAULT = "DEFAULT"
_HASH = re.compile(r"FOR VALUES WITH \(modulus (\d+), remainder (\d+)\)", re.IGNORECASE)
_RANGE = re.compile(
    r"FOR VALUES FROM \((?P<low>(?:'(?:[^']|'')*'|[^'()])*)\) TO \((?P<high>(?:'(?:[^']|'')*'|[^'()])*)\)"
)


def without_room(catalog: Catalog, tables: Sequence[Table]) -> set[str]:
    """Return the names of the partitioned tables to which no further partition with rows can be attached."""
    roots = {table.details["oid"]: str(table.name) for table in tables if table.details["kind"] == "p"}
    closed: dict[int, list[bool]] = defaultdict(list)
    for root, _, kind, has_nulls, bounds in query(catalog, _BOUNDS, (list(roots),)):
        closed[root].append(_is_closed(kind, has_nulls, bounds))
    return {roots[root] for root, every in closed.items() if all(every)}


def _is_closed(kind: str, may_be_null: bool, bounds: Sequence[str]) -> bool:
    if kind == "h":
        found = [_HASH.fullmatch(bound) for bound in bounds]
        return sum((Fraction(1, int(one[1])) for one in found if one is not None), Fraction(0)) == 1
    if kind != "r" or (may_be_null and _DEFAULT not in bounds):
        return False
    ranges = [_RANGE.fullmatch(bound) for bound in bounds if bound != _DEFAULT]
    nexts = {one["low"]: one["high"] for one in ranges if one is not None}
    least = [low for low in nexts if set(low.split(", ")) == {"MINVALUE"}]
    at = least[0] if least else ""
    while at in nexts:
        at = nexts.pop(at)
    return bool(at) and set(at.split(", ")) == {"MAXVALUE"}
