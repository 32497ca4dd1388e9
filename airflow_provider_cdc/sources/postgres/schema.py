"""Tables as the server describes them: names, columns, keys, sizes, and the relations that hold their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from airflow_provider_cdc.core.table import Column, Table, TableName
from airflow_provider_cdc.errors import Problem, SchemaChanged
from airflow_provider_cdc.sources import patterns as patterns_of_tables
from airflow_provider_cdc.sources.postgres.session import Connection, literal, query, quote
from airflow_provider_cdc.sources.postgres.types import NAMES_OF_OBJECTS

_TABLE, _PARTITION = "table", "partition"
_KINDS = {
    "r": _TABLE,
    "p": _TABLE,
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}

# A type that cannot change under a name: what initdb made.
_FIRST_OWN_OID = 16384

_RENAMED = "another table has its name now"
_REWRITTEN = "was rewritten or truncated (VACUUM FULL, CLUSTER, TRUNCATE, some forms of ALTER TABLE)"
_HINT = "leave the definition of copied tables alone during a run, and trigger a new run"

_ROW_BYTES = 100
"""A guess, for tables that were never analyzed."""


@dataclass(frozen=True)
class Leaf:
    """A relation that holds rows: a plain table itself, or a partition at the end of a tree.

    ``filenode`` names its present file: a row that nobody touches keeps its place as long as that stays the same.
    ``identity`` is its replica identity. ``state`` of a partition is other after any change to its description: the log
    does not show everything that could be changed there and changed back.
    """

    oid: int
    schema: str
    name: str
    filenode: int
    identity: str
    state: str = ""

    @property
    def sql(self) -> str:
        """Its name, quoted."""
        return quote(self.schema, self.name)


def leaves(table: Table) -> list[Leaf]:
    """The relations that hold the rows of a table that `read_tables` read."""
    return [Leaf(*leaf) for leaf in table.details["leaves"]]


def resolve(connection: Connection, patterns: Sequence[str]) -> tuple[list[TableName], list[Problem]]:
    """The tables that ``patterns`` name, sorted, each once, and a problem for each pattern that names none.

    A partition is a part of its root, so only the root is a table. Schemas of the server's own match no pattern.
    """
    kinds = {
        TableName(schema, name): _PARTITION if partition else _KINDS[kind]
        for schema, name, kind, partition in query(
            connection,
            "SELECT n.nspname, c.relname, c.relkind, c.relispartition FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind = ANY(%s) AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'",
            (list(_KINDS),),
        )
    }
    return patterns_of_tables.resolve(patterns, kinds, [_TABLE], partial(_matches_nothing, connection, kinds))


def read_tables(connection: Connection, names: Sequence[TableName]) -> tuple[Table, ...]:
    """The tables' schemas, in the order of ``names``.

    Columns come in the order in which the log holds them, without dropped ones. ``Column.type`` is what the server
    prints as its type. ``Column.details`` has ``oid`` and ``typmod`` of the type; ``kind``: ``base``, ``enum``,
    ``domain``, ``composite``, ``range``, ``multirange`` or ``array``; ``base``, ``base_oid`` and ``base_typmod`` of the
    type beneath all domains; ``definition``, a digest of everything that someone could alter of it; ``relation``, the
    OID of the table; ``number``, which no other column ever had; ``version``, which is another after each change of the
    column; and where they apply, ``names_objects``: true, if a part of the type is one of ``types.NAMES_OF_OBJECTS``,
    and ``generated``: ``stored`` or ``virtual``.

    ``Table.details`` has ``oid``; ``kind``: ``r`` or ``p``; ``identity``, its replica identity; ``leaves``, what
    `leaves` reads; ``tree``, a digest of how partitions hang together; and ``key``, the OID of the constraint, or else
    of the index, that keeps the key unique.

    The key is the primary key, else the first unique index of whole NOT NULL columns. A deferrable one is none: within
    a transaction two rows may share a key, so the first change of a key would not tell which row had it before.

    :raises SchemaChanged: a table does not exist, or no longer.
    """
    if not names:
        return ()
    found = _relations(connection, names)
    oids = [oid for oid, _, _ in found.values()]
    columns, keys, held = _columns(connection, oids), _keys(connection, oids), _leaves(connection, oids)
    tables = []
    for name in names:
        if name not in found:
            raise SchemaChanged(
                "the table does not exist, or this user may not see it",
                where=str(name),
                hint="restore it or its privileges, or trigger a new run without it",
            )
        oid, kind, identity = found[name]
        key_index, key, key_oid = _key(columns[oid], keys.get(oid, []))
        own, rows, size, tree = held.get(oid, ([], 0, 0, ""))
        details = {
            "oid": oid,
            "kind": kind,
            "identity": identity,
            "leaves": [list(astuple(leaf)) for leaf in own],
            "tree": tree,
            "key": key_oid,
        }
        tables.append(Table(name, tuple(columns[oid]), key, key_index, rows, size, details))
    return tuple(tables)


def difference(recorded: Table, now: Table) -> str:
    """What changed of a table since it was recorded, in words; empty if nothing did that a copy could show."""
    if recorded.details["oid"] != now.details["oid"]:
        return _RENAMED
    before, after = ([_shape(column) for column in table.columns] for table in (recorded, now))
    if before != after:
        names = {shape[0] for shape in set(before) ^ set(after)} or {"their order"}
        return f"its columns are others now ({', '.join(sorted(map(str, names)))})"
    if (recorded.key, recorded.details["key"]) != (now.key, now.details["key"]):
        return "its key is another now"
    if recorded.details["identity"] != now.details["identity"]:
        return "its replica identity is another now"
    if recorded.details["tree"] != now.details["tree"]:
        return "partitions were attached or detached"
    for old, new in zip(leaves(recorded), leaves(now), strict=True):
        if old.filenode != new.filenode:
            return f"{old.sql} {_REWRITTEN}"
        if old.identity != new.identity:
            return f"the replica identity of {old.sql} is another now"
        if old != new:
            return f"{old.sql} was altered"
    return ""


def check_in_place(ask: Callable[[str], Sequence[Sequence[Any]]], table: Table, leaf: Leaf) -> None:
    """Make sure, while it is locked, that what the leaf's name stands for is the recorded relation, in its first file.

    :param ask: returns the rows of a query whose columns are all text.
    :raises SchemaChanged: it is not.
    """
    relation = f"to_regclass({literal(leaf.sql)})"
    ((oid, filenode),) = ask(f"SELECT {relation}::oid::text, pg_relation_filenode({relation})::text")
    if (oid, filenode) != (str(leaf.oid), str(leaf.filenode)):
        what = _REWRITTEN if oid == str(leaf.oid) else _RENAMED
        raise SchemaChanged(what, where=f"{table.name}, {leaf.sql}", hint=_HINT)


def check_unchanged(connection: Connection, tables: Iterable[Table]) -> None:
    """Make sure that tables are what they were when they were recorded, and were so all the time since.

    That is why versions of the catalog's rows are compared, too: what was changed and changed back is not the same.

    :raises SchemaChanged: one is not.
    """
    recorded = list(tables)
    for table, now in zip(recorded, read_tables(connection, [table.name for table in recorded]), strict=True):
        if what := difference(table, now):
            raise SchemaChanged(
                what,
                where=str(table.name),
                hint=_HINT,
            )


def _shape(column: Column) -> tuple[Any, ...]:
    details = {name: value for name, value in column.details.items() if name != "unrepresentable"}
    return column.name, column.type, column.nullable, tuple(sorted(details.items()))


def _matches_nothing(
    connection: Connection, kinds: dict[TableName, str], pattern: str, wanted: TableName, others: list[TableName]
) -> Problem:
    if others and kinds[others[0]] == _PARTITION:
        (root,) = query(
            connection,
            "SELECT pg_partition_root(%s::regclass)::text",
            (quote(others[0].schema, others[0].name),),
        )[0]
        return Problem(pattern, f"is a partition of {root}", "name the partitioned table: its partitions come with it")
    if others:
        kind = kinds[others[0]]
        return Problem(pattern, f"is a {kind}, not a table", "name the tables that it reads")
    if wanted.schema.startswith("pg_") or wanted.schema == "information_schema":
        return Problem(pattern, "lies in a schema of the server's own", "leave it out: its changes are not logged")
    if "*" in pattern:
        return Problem(
            pattern, "matches no table of this database", "correct the pattern, or the connection's database"
        )
    return Problem(pattern, "there is no such table in this database", "correct the name, or the connection's database")


def _relations(connection: Connection, names: Sequence[TableName]) -> dict[TableName, tuple[int, str, str]]:
    return {
        TableName(schema, name): (oid, kind, identity)
        for schema, name, oid, kind, identity in query(
            connection,
            "SELECT n.nspname, c.relname, c.oid, c.relkind, c.relreplident FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN unnest(%s::text[], %s::text[]) AS w(schema, name) ON (n.nspname, c.relname) = (w.schema, w.name) "
            "WHERE c.relkind IN ('r', 'p')",
            ([name.schema for name in names], [name.name for name in names]),
        )
    }


# PostgreSQL 18 marks a column as NOT NULL although its constraint was never checked.
_COLUMNS = """
SELECT a.attrelid, a.attname, a.attnum, a.xmin::text, format_type(a.atttypid, a.atttypmod), a.atttypid, a.atttypmod,
    a.attgenerated,
    a.attnotnull AND NOT EXISTS (
        SELECT FROM pg_constraint c WHERE c.conrelid = a.attrelid AND c.contype = 'n' AND c.conkey = ARRAY[a.attnum]
        AND NOT c.convalidated)
FROM pg_attribute a WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""


def _columns(connection: Connection, oids: Sequence[int]) -> dict[int, list[Column]]:
    rows = query(connection, _COLUMNS, (list(oids),))
    types = _types(connection, {row[5] for row in rows})
    found: dict[int, list[Column]] = defaultdict(list)
    for relation, name, number, version, type_name, oid, typmod, generated, not_null in rows:
        kind, base, base_oid, base_typmod, names_objects, definition = types[oid]
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
        if names_objects:
            details["names_objects"] = True
        if generated:
            details["generated"] = {"s": "stored", "v": "virtual"}[generated]
        found[relation].append(Column(name, type_name, not not_null, details))
    return found


# The type beneath all domains; its modifier is that of the innermost domain.
_BASES = """
WITH RECURSIVE chain(root, oid, typmod) AS (
    SELECT w, w, -1 FROM unnest(%s::oid[]) w
    UNION ALL
    SELECT c.root, t.typbasetype, t.typtypmod FROM chain c JOIN pg_type t ON t.oid = c.oid WHERE t.typtype = 'd')
SELECT c.root, b.typname, b.oid, c.typmod,
    CASE WHEN r.typoutput = 'pg_catalog.array_out'::regproc THEN 'array' ELSE r.typtype::text END
FROM chain c JOIN pg_type b ON b.oid = c.oid AND b.typtype <> 'd' JOIN pg_type r ON r.oid = c.root
"""

# Everything that a type is made of, and of that everything that someone could have altered.
_DEFINITIONS = """
WITH RECURSIVE part(root, oid) AS (
    SELECT w, w FROM unnest(%s::oid[]) w
    UNION
    SELECT p.root, x.oid FROM part p JOIN pg_type t ON t.oid = p.oid, LATERAL (
        SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL SELECT t.typelem WHERE t.typelem <> 0
        UNION ALL SELECT a.atttypid FROM pg_attribute a
            WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) AS x(oid))
SELECT p.root, bool_or(t.oid = ANY(%s::oid[])),
    md5(string_agg(concat_ws('|', t.oid, t.xmin, t.typname, t.typtype, t.typtypmod, t.typoutput::oid,
    (SELECT string_agg(concat_ws('=', e.oid, e.xmin, e.enumsortorder, e.enumlabel), ',' ORDER BY e.enumsortorder)
        FROM pg_enum e WHERE e.enumtypid = t.oid),
    (SELECT string_agg(concat_ws('=', a.attnum, a.xmin, a.attname, a.atttypid, a.atttypmod, a.attisdropped), ','
        ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0)
    ), ';' ORDER BY t.oid) FILTER (WHERE t.oid >= %s::oid))
FROM part p JOIN pg_type t ON t.oid = p.oid GROUP BY p.root
"""

_TYPE_KINDS = {
    "array": "array",
    "b": "base",
    "c": "composite",
    "d": "domain",
    "e": "enum",
    "m": "multirange",
    "p": "base",
    "r": "range",
}


def _types(connection: Connection, oids: Iterable[int]) -> dict[int, tuple[str, str, int, int, bool, str]]:
    """Kind, name, OID and modifier of the type beneath, whether a part of it is one of ``NAMES_OF_OBJECTS``, and the
    digest of the definition, by the type's OID."""
    wanted = list(oids)
    arguments = wanted, list(NAMES_OF_OBJECTS), _FIRST_OWN_OID
    parts = {root: (names, digest or "") for root, names, digest in query(connection, _DEFINITIONS, arguments)}
    return {
        root: (_TYPE_KINDS[kind], base, base_oid, typmod, *parts[root])
        for root, base, base_oid, typmod, kind in query(connection, _BASES, (wanted,))
    }


_KEYS = """
SELECT i.indrelid, c.relname, COALESCE(
    (SELECT k.oid FROM pg_constraint k WHERE k.conindid = c.oid AND k.contype IN ('p', 'u')), c.oid), ARRAY(
    SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = ANY(%s::oid[]) AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indisready AND i.indislive
    AND i.indpred IS NULL AND i.indexprs IS NULL
ORDER BY i.indrelid, NOT i.indisprimary, c.relname
"""


_Key = tuple[str, tuple[str, ...], int]


def _keys(connection: Connection, oids: Sequence[int]) -> dict[int, list[_Key]]:
    found: dict[int, list[_Key]] = defaultdict(list)
    for relation, index, oid, key in query(connection, _KEYS, (list(oids),)):
        found[relation].append((index, tuple(key), oid))
    return found


def _key(columns: Sequence[Column], candidates: Sequence[_Key]) -> _Key:
    usable = {column.name for column in columns if not column.nullable}
    for candidate in candidates:
        if usable.issuperset(candidate[1]):
            return candidate
    return "", (), 0


# A relation's own description (its replica identity, above all) is versioned by the row of the catalog that holds it.
_LEAVES = """
SELECT t.root, c.oid, n.nspname, c.relname, pg_relation_filenode(c.oid), c.relreplident,
    CASE WHEN c.relispartition THEN c.xmin::text ELSE '' END,
    c.reltuples::float8, c.relpages, pg_relation_size(c.oid), current_setting('block_size')::int
FROM (
    SELECT w AS root, w AS relid FROM unnest(%s::oid[]) w JOIN pg_class r ON r.oid = w AND r.relkind = 'r'
    UNION ALL
    SELECT w, p.relid FROM unnest(%s::oid[]) w JOIN pg_class r ON r.oid = w AND r.relkind = 'p',
        LATERAL pg_partition_tree(w) p WHERE p.isleaf AND p.level > 0
) t JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY t.root, c.oid
"""

_TREES = """
SELECT w, md5(string_agg(concat_ws('/', i.inhrelid, i.inhparent, i.xmin), ',' ORDER BY i.inhrelid))
FROM unnest(%s::oid[]) w JOIN pg_class r ON r.oid = w AND r.relkind = 'p', LATERAL pg_partition_tree(w) p
JOIN pg_inherits i ON i.inhrelid = p.relid AND p.level > 0 GROUP BY w
"""


def _leaves(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[list[Leaf], int, int, str]]:
    """The leaves, estimated rows, bytes and the digest of the tree, by the table's OID."""
    trees = dict(query(connection, _TREES, (list(oids),)))
    found: dict[int, tuple[list[Leaf], int, int, str]] = {}
    for root, oid, schema, name, filenode, identity, state, tuples, pages, size, block in query(
        connection, _LEAVES, (list(oids), list(oids))
    ):
        own, rows, total, tree = found.get(root, ([], 0, 0, trees.get(root, "")))
        estimate = round(tuples / pages * (size / block)) if tuples > 0 and pages > 0 else size // _ROW_BYTES
        own.append(Leaf(oid, schema, name, filenode or 0, identity, state))
        found[root] = own, rows + estimate, total + size, tree
    return found
