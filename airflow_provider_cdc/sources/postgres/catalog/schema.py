"""Reads tables from the catalog: names, columns, keys, sizes, and the relations that hold their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import chain

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.postgres.catalog import publication_scope
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, CatalogChanged, read_catalog
from airflow_provider_cdc.sources.postgres.catalog.type_catalog import read_types
from airflow_provider_cdc.sources.postgres.catalog.views import view_definitions
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote

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
    - ``version`` and ``placed``: see `publication_scope`;
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
    versions = publication_scope.read_versions(catalog, [*oids, *chain.from_iterable(own_leaves.values())])
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
            **publication_scope.described(versions, oid, own_leaves.get(oid, [])),
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
