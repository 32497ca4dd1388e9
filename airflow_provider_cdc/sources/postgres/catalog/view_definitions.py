"""Parses the stored definition of a view: the relations that it reads, and the functions that it calls.

The server stores a view as a tree of nodes, in text form. This module extracts the relations that the tree names, the
functions and operators that the tree calls, the types of its values, and the types of its nodes. A name or a constant
in the text cannot be mistaken for a part of the tree, because blanks and brackets in names are escaped, and constants
are written as lists of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.server.session import query

VIEW, MATERIALIZED = "v", "m"
"""The values of ``kind`` in `Table.details` for views and materialized views."""
FIRST_OWN_OID = 16384
"""The first OID of user-defined objects. Objects with lower OIDs were created by initdb."""

_TREES = "SELECT ev_action::text, xmin::text FROM pg_rewrite WHERE ev_class = %s AND ev_type = '1'"
_RELATIONS = """
SELECT c.oid, c.oid::regclass::text, c.relkind::text, c.relpersistence::text, COALESCE(pg_relation_filenode(c.oid), 0),
    n.nspname ~ '^pg_' OR n.nspname = 'information_schema', c.relkind = 'r' AND EXISTS (
        SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid
"""
_PARTITIONS = """
WITH RECURSIVE tree(relation, version) AS (
    SELECT i.inhrelid, concat_ws('/', i.inhparent, i.xmin) FROM pg_inherits i
    WHERE i.inhparent = %s AND NOT i.inhdetachpending
    UNION ALL
    SELECT i.inhrelid, concat_ws('/', i.inhparent, i.xmin) FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
    WHERE NOT i.inhdetachpending)
SELECT relation, version FROM tree
"""

# For each user-defined type and all of its parts: the versions of its labels, of its fields, and of its casts to JSON.
# JSON functions look up these casts, although the view does not name them. JSON contains the names of fields, and the
# text of a row contains all fields. So labels, fields and casts must not change at all, not even if the change is
# undone later.
_TYPES = """
WITH RECURSIVE part(oid) AS (
    SELECT unnest(%s::oid[])
    UNION SELECT x.oid FROM part p JOIN pg_type t ON t.oid = p.oid, LATERAL (
        SELECT t.typelem WHERE t.typelem <> 0 UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL SELECT a.atttypid FROM pg_attribute a
        WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) x(oid))
SELECT t.oid,
    (SELECT string_agg(concat_ws('/', e.oid, e.xmin), ' ' ORDER BY e.oid) FROM pg_enum e WHERE e.enumtypid = t.oid),
    (SELECT string_agg(concat_ws('/', a.attnum, a.xmin), ' ' ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0),
    (SELECT string_agg(concat_ws('/', c.oid, c.xmin), ' ' ORDER BY c.oid) FROM pg_cast c
        WHERE c.castsource = t.oid AND c.casttarget = 'pg_catalog.json'::regtype)
FROM part p JOIN pg_type t ON t.oid = p.oid WHERE t.oid >= %s
"""
# The expressions that the server substitutes for virtual columns. The tree of the view only names the columns.
_COMPUTED = """
SELECT d.adbin::text, concat_ws('/', d.oid, d.xmin) FROM pg_attrdef d
JOIN pg_attribute a ON (a.attrelid, a.attnum) = (d.adrelid, d.adnum)
WHERE d.adrelid = %s AND a.attgenerated = 'v' ORDER BY d.oid
"""

_NODE = re.compile(r"(?<!\\)\{([A-Z_]+)")
_RELATION = re.compile(r" :relid (\d+)")
_FUNCTION = re.compile(r" :(?:funcid|aggfnoid|winfnoid|hashfuncid|negfuncid|startInRangeFunc|endInRangeFunc) (\d+)")
_OPERATOR = re.compile(r" :(?:opno|eqop|sortop) (\d+)")
_OPERATORS = re.compile(r" :(?:opnos|cycle_mark_neop) (?:\(o ([\d ]+)\)|(\d+))")
_TYPE = re.compile(r" :(?:\w*type|\w*typeid|\w*collOid) (\d+)")
_CONVERSION = re.compile(r"(?<!\\)\{COERCEVIAIO ")
_SYSTEM_COLUMN = re.compile(r" :varattno -\d+")


@dataclass(frozen=True)
class Relation:
    """A relation that a view reads, directly or through another view. ``is_parent``: other tables inherit from the
    relation."""

    oid: int
    name: str
    kind: str
    persistence: str
    filenode: int
    of_server: bool
    is_parent: bool


@dataclass
class Definition:
    """All parts of a view's definition, including the definitions of the views that this view reads.

    ``versions`` changes whenever one of these changes: a definition, the file of a table, a partition or a virtual
    column of a table, or a user-defined type.
    """

    relations: dict[int, Relation] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    functions: set[int] = field(default_factory=set)
    operators: set[int] = field(default_factory=set)
    types: set[int] = field(default_factory=set)
    converted_to: set[int] = field(default_factory=set)
    has_system_columns: bool = False
    versions: list[str] = field(default_factory=list)

    def take(self, tree: str) -> set[int]:
        """Add the contents of a tree, and return the OIDs of the relations that it names."""
        self.nodes |= set(_NODE.findall(tree))
        self.functions |= _oids(_FUNCTION, tree)
        self.operators |= _oids(_OPERATOR, tree)
        for several, single in _OPERATORS.findall(tree):
            self.operators |= {int(oid) for oid in f"{several} {single}".split()}
        self.types |= _oids(_TYPE, tree)
        # In the tree, the result type of a conversion comes after the converted expression. The nodes of this
        # expression may have result types, too.
        for conversion in _CONVERSION.finditer(tree):
            self.converted_to |= _results(tree, conversion.end())
        self.has_system_columns = self.has_system_columns or bool(_SYSTEM_COLUMN.search(tree))
        return _oids(_RELATION, tree)


def _oids(what: re.Pattern[str], tree: str) -> set[int]:
    return {int(oid) for oid in what.findall(tree)} - {0}


def _results(tree: str, at: int) -> set[int]:
    """Return the result type of the conversion node whose contents begin at ``at``."""
    depth = 1
    for step in re.finditer(r"(?<!\\)[{}]| :resulttype (\d+)", tree[at:]):
        if step[0] == "{":
            depth += 1
        elif step[0] == "}":
            depth -= 1
            if not depth:
                break
        elif depth == 1:
            return {int(step[1])}
    return set()


def read_definition(catalog: Catalog, view: int) -> Definition:
    """Return the definition of the view with the OID ``view``."""
    found = Definition()
    waiting, seen = {view}, set[int]()
    versions: set[str] = set()
    while waiting:
        seen |= waiting
        relations = [Relation(*row) for row in query(catalog, _RELATIONS, (list(waiting),))]
        waiting = set()
        for relation in relations:
            found.relations[relation.oid] = relation
            filenode = 0 if relation.kind == MATERIALIZED else relation.filenode
            versions.add(f"{relation.oid}/{relation.kind}/{filenode}")
            if relation.kind == VIEW:
                for tree, version in query(catalog, _TREES, (relation.oid,)):
                    waiting |= found.take(tree)
                    versions.add(f"{relation.oid} defined {version}")
            for tree, version in query(catalog, _COMPUTED, (relation.oid,)):
                waiting |= found.take(tree)
                versions.add(f"{relation.oid} computed by {version}")
            if relation.kind == "p":
                for partition, version in query(catalog, _PARTITIONS, (relation.oid,)):
                    waiting.add(partition)
                    versions.add(f"{partition} in {version}")
        waiting -= seen
    for oid, labels, fields, casts in query(catalog, _TYPES, (list(found.types), FIRST_OWN_OID)):
        versions.add(f"type {oid}: labels {labels}, fields {fields}, casts {casts}")
    found.versions = sorted(versions)
    return found


def partitions(versions: Iterable[str]) -> set[str]:
    """Return the entries of `Definition.versions` for partitions. An entry has the partition's parent and a version."""
    return {version for version in versions if version.partition(" ")[2].startswith("in ")}


def files(versions: Iterable[str]) -> Mapping[int, int]:
    """Return the file of each relation in `Definition.versions`, by OID. 0: the relation has no file, or its file does
    not matter."""
    plain = (one.split("/") for one in versions if one.count("/") == 2 and " " not in one)
    return {int(oid): int(filenode) for oid, _, filenode in plain}
