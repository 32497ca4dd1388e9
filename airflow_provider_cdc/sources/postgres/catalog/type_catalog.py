"""What the catalog says of types: what lies beneath them, and a digest of how they are defined."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.postgres.catalog.types import NAMES_OF_OBJECTS
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

# A type that cannot change under a name: what initdb made.
_FIRST_OWN_OID = 16384

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

_PARTS = """
WITH RECURSIVE part(root, oid) AS (
    SELECT w, w FROM unnest(%s::oid[]) w
    UNION
    SELECT p.root, x.oid FROM part p JOIN pg_type t ON t.oid = p.oid, LATERAL (
        SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL SELECT t.typelem WHERE t.typelem <> 0
        UNION ALL SELECT a.atttypid FROM pg_attribute a
            WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) AS x(oid))
"""

# Everything that a type is made of, and of that everything that someone could have altered and that its values show.
#
# - Labels are compared by the version of their rows (xmin), so that it is noticed also when one was renamed and named
#   back. They are apart: those that were there stay what they are if others are added, wherever in their order.
# - Fields are compared by what they are: values show neither their names, nor whether one is NOT NULL. While a column
#   is of the type, the server lets nobody give a field another type, and one that was dropped, or added and dropped,
#   stays in the catalog.
# - A type's own row is not: no statement changes how a type prints, and a GRANT on it, a new owner or name, and a
#   domain's default or NOT NULL change no value that is stored.
_DEFINITIONS = f"""{_PARTS}
SELECT p.root, bool_or(t.oid = ANY(%s::oid[])),
    md5(string_agg(concat_ws('|', t.oid, t.typtype, t.typtypmod, t.typoutput::oid,
    (SELECT string_agg(concat_ws('=', a.attnum, a.atttypid, a.atttypmod, a.attisdropped), ','
        ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0)
    ), ';' ORDER BY t.oid) FILTER (WHERE t.oid >= %s::oid)),
    string_agg((SELECT string_agg(concat_ws('/', e.oid, e.xmin), ' ' ORDER BY e.oid)
        FROM pg_enum e WHERE e.enumtypid = t.oid), ' ' ORDER BY t.oid)
FROM part p JOIN pg_type t ON t.oid = p.oid GROUP BY p.root
"""

# Whoever alters a type of labels or of fields holds one of these locks until others can see what it did. It also holds
# one on each of its transaction's ids; if it has none yet, its commit is still to come.
_ALTERING = f"""{_PARTS}
SELECT DISTINCT x.transactionid::text FROM part p JOIN pg_type t ON t.oid = p.oid JOIN pg_locks l ON l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('ExclusiveLock', 'AccessExclusiveLock')
    AND CASE l.locktype WHEN 'object' THEN l.classid = 'pg_type'::regclass AND l.objid = t.oid
        WHEN 'relation' THEN l.relation = t.typrelid ELSE false END
    JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
    AND x.mode = 'ExclusiveLock' AND x.granted
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


def read_types(connection: Connection, oids: Iterable[int]) -> dict[int, tuple[str, str, int, int, bool, str, str]]:
    """Kind, name, OID and modifier of the type beneath, whether a part of it is one of ``NAMES_OF_OBJECTS``, the digest
    of the definition, and the versions of its labels, by the type's OID."""
    type_oids = list(oids)
    arguments = type_oids, list(NAMES_OF_OBJECTS), _FIRST_OWN_OID
    parts = {
        root: (names, digest or "", labels or "")
        for root, names, digest, labels in query(connection, _DEFINITIONS, arguments)
    }
    return {
        root: (_TYPE_KINDS[kind], base, base_oid, typmod, *parts[root])
        for root, base, base_oid, typmod, kind in query(connection, _BASES, (type_oids,))
    }


def altering(connection: Connection, tables: Iterable[Table]) -> set[str]:
    """The transactions that alter a type that a column is of, or a part of one, and that nobody sees the end of yet."""
    oids = {column.details["oid"] for table in tables for column in table.columns if column.details.get("definition")}
    return {xid for (xid,) in query(connection, _ALTERING, (list(oids),))} if oids else set()
