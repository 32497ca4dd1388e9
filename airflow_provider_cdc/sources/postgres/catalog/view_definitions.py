"""What the definition of a view reads and calls, as the server stores it.

The server stores a view as a tree of nodes, as text. What counts in it is which relations it names, which functions and
operators it calls, of which types its values are, and which kinds of nodes it consists of. In that text a name or a
constant cannot be taken for any of these: blanks and brackets in names are escaped, and constants are lists of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_cdc.sources.postgres.server.session import Connection, query

VIEW, MATERIALIZED = "v", "m"
"""`Table.details` ``kind`` of the two."""
FIRST_OWN_OID = 16384
"""OIDs below are of objects that initdb made."""

_TREES = "SELECT ev_action::text, xmin::text FROM pg_rewrite WHERE ev_class = %s AND ev_type = '1'"
_RELATIONS = """
SELECT c.oid, c.oid::regclass::text, c.relkind::text, c.relpersistence::text, COALESCE(pg_relation_filenode(c.oid), 0),
    n.nspname ~ '^pg_' OR n.nspname = 'information_schema', c.relkind = 'r' AND EXISTS (
        SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid
"""
_PARTITIONS = """
SELECT p.relid::oid, concat_ws('/', i.inhparent, i.xmin)
FROM pg_partition_tree(%s) p JOIN pg_inherits i ON i.inhrelid = p.relid WHERE p.level > 0
"""

# Of each type that somebody made, and of all that it is made of: the versions of its labels and of its fields, and of
# the casts to JSON that functions of JSON look for by themselves. JSON has the names of fields, and a row's text has
# each field that was added, so these must not change, nor change back.
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
# What the server puts in the place of virtual columns. The view's own tree only names these.
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
_RESULT_TYPE = re.compile(r" :resulttype (\d+)")
_SYSTEM_COLUMN = re.compile(r" :varattno -\d+")


@dataclass(frozen=True)
class Relation:
    """A relation that a view reads, directly or not. ``is_parent``: other tables inherit from it."""

    oid: int
    name: str
    kind: str
    persistence: str
    filenode: int
    of_server: bool
    is_parent: bool


@dataclass
class Definition:
    """All that a view's definition consists of, with those of the views that it reads. ``versions`` is another list
    after any change of these, of the files of the tables, of their partitions and virtual columns, or of types that
    somebody made."""

    relations: dict[int, Relation] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    functions: set[int] = field(default_factory=set)
    operators: set[int] = field(default_factory=set)
    types: set[int] = field(default_factory=set)
    converted_to: set[int] = field(default_factory=set)
    has_system_columns: bool = False
    versions: list[str] = field(default_factory=list)

    def take(self, tree: str) -> set[int]:
        """Add a tree of nodes; return the OIDs of the relations that it names."""
        self.nodes |= set(_NODE.findall(tree))
        self.functions |= _oids(_FUNCTION, tree)
        self.operators |= _oids(_OPERATOR, tree)
        for several, single in _OPERATORS.findall(tree):
            self.operators |= {int(oid) for oid in f"{several} {single}".split()}
        self.types |= _oids(_TYPE, tree)
        # The type comes after the expression that is converted, so any that follows may be the one.
        for conversion in _CONVERSION.finditer(tree):
            self.converted_to |= _results(tree, conversion.end())
        self.has_system_columns = self.has_system_columns or bool(_SYSTEM_COLUMN.search(tree))
        return _oids(_RELATION, tree)


def _oids(what: re.Pattern[str], tree: str) -> set[int]:
    return {int(oid) for oid in what.findall(tree)} - {0}


def _results(tree: str, at: int) -> set[int]:
    """The types that a conversion that begins at ``at`` results in: that of its own node."""
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


def read_definition(connection: Connection, view: int) -> Definition:
    """The definition of a view, given by its OID."""
    found = Definition()
    waiting, seen = {view}, set[int]()
    versions: set[str] = set()
    while waiting:
        seen |= waiting
        relations = [Relation(*row) for row in query(connection, _RELATIONS, (list(waiting),))]
        waiting = set()
        for relation in relations:
            found.relations[relation.oid] = relation
            filenode = 0 if relation.kind == MATERIALIZED else relation.filenode
            versions.add(f"{relation.oid}/{relation.kind}/{filenode}")
            if relation.kind == VIEW:
                for tree, version in query(connection, _TREES, (relation.oid,)):
                    waiting |= found.take(tree)
                    versions.add(f"{relation.oid} defined {version}")
            for tree, version in query(connection, _COMPUTED, (relation.oid,)):
                waiting |= found.take(tree)
                versions.add(f"{relation.oid} computed by {version}")
            if relation.kind == "p":
                for partition, version in query(connection, _PARTITIONS, (relation.oid,)):
                    waiting.add(partition)
                    versions.add(f"{partition} in {version}")
        waiting -= seen
    for oid, labels, fields, casts in query(connection, _TYPES, (list(found.types), FIRST_OWN_OID)):
        versions.add(f"type {oid}: labels {labels}, fields {fields}, casts {casts}")
    found.versions = sorted(versions)
    return found


def partitions(versions: Iterable[str]) -> set[str]:
    """The partitions of which `Definition.versions` tells, with what each is a partition of, and since when."""
    return {version for version in versions if version.partition(" ")[2].startswith("in ")}


def files(versions: Iterable[str]) -> Mapping[int, int]:
    """The file of each relation of which `Definition.versions` tells, by its OID; 0: it has none, or any."""
    plain = (one.split("/") for one in versions if one.count("/") == 2 and " " not in one)
    return {int(oid): int(filenode) for oid, _, filenode in plain}
