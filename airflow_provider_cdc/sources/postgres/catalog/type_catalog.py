"""Reads types from the catalog: their base types, and a digest of their definitions."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.types import NAMES_OF_OBJECTS
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

# Types with lower OIDs were created by initdb, and cannot change.
_FIRST_OWN_OID = 16384

# For each type: the base type (after all nested domains are resolved), and the type modifier of the innermost domain.
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

# Lists, for all parts of a type, every alterable property that affects the values of the type.
#
# - Labels are compared by the version of their rows (xmin). So the comparison also detects a label that was renamed and
#   then renamed back. The digest does not include labels: a new label does not change the existing labels, wherever it
#   is inserted.
# - Fields are compared by number, type and modifier. Values do not depend on the name of a field, or on whether a field
#   is NOT NULL. While a table has a column of the type, the server rejects statements that change the type of a field.
#   A dropped field stays in the catalog.
# - The row of the type in pg_type is not compared, because no statement changes how a type is printed. Stored values do
#   not depend on privileges, owners or names. They do not depend on the default or NOT NULL of a domain, either.
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

# A transaction that alters an enum or a composite type holds one of these locks until other sessions see the change.
# The transaction also holds a lock on each of its transaction ids. A transaction that has no id yet has not committed.
_ALTERING = f"""{_PARTS}
SELECT DISTINCT x.transactionid::text FROM part p JOIN pg_type t ON t.oid = p.oid JOIN pg_locks l ON l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('ExclusiveLock', 'AccessExclusiveLock')
    AND CASE l.locktype WHEN 'object' THEN l.classid = 'pg_type'::regclass AND l.objid = t.oid
        WHEN 'relation' THEN l.relation = t.typrelid ELSE false END
    JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
    AND x.mode = 'ExclusiveLock' AND x.granted
"""

# A statement that adds or drops a field leaves a row of its own version. A transaction that is older than the slot's
# catalog_xmin ended before the position of the slot.
_YOUNG_FIELDS = f"""{_PARTS}
SELECT DISTINCT p.root FROM part p JOIN pg_type t ON t.oid = p.oid AND t.typrelid <> 0 AND t.oid >= %s::oid
JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = %s
    AND s.confirmed_flush_lsn <= %s::pg_lsn AND age(a.xmin) > age(s.catalog_xmin))
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


def read_types(catalog: Catalog, oids: Iterable[int]) -> dict[int, tuple[str, str, int, int, bool, str, str]]:
    """Return the descriptions of types, by OID.

    Each description has these elements: the kind of the type; the name, OID and modifier of the base type; whether a
    part of the type is in ``NAMES_OF_OBJECTS``; the digest of the definition; and the versions of the labels.
    """
    type_oids = list(oids)
    arguments = type_oids, list(NAMES_OF_OBJECTS), _FIRST_OWN_OID
    parts = {
        root: (names, digest or "", labels or "")
        for root, names, digest, labels in query(catalog, _DEFINITIONS, arguments)
    }
    return {
        root: (_TYPE_KINDS[kind], base, base_oid, typmod, *parts[root])
        for root, base, base_oid, typmod, kind in query(catalog, _BASES, (type_oids,))
    }


def altering(connection: Connection, tables: Iterable[Table]) -> set[str]:
    """Return the ids of the unfinished transactions that alter the type of a column, or a part of such a type."""
    oids = {column.details["oid"] for table in tables for column in table.columns if column.details.get("definition")}
    return {xid for (xid,) in query(connection, _ALTERING, (list(oids),))} if oids else set()


def with_young_fields(catalog: Catalog, oids: Iterable[int], slot: str, position: Lsn) -> set[int]:
    """Return the types of which a part is a composite type whose fields may have been changed after a position.

    :param slot: a slot that has the log since ``position``.
    """
    arguments = list(oids), _FIRST_OWN_OID, slot, str(position)
    return {root for (root,) in query(catalog, _YOUNG_FIELDS, arguments)}


def label_oids(columns: Iterable[Column]) -> list[int]:
    """Return the OIDs of the labels of all enums in the types of columns, as recorded when the columns were read."""
    versions = " ".join(str(column.details.get("labels", "")) for column in columns)
    return sorted({int(version.partition("/")[0]) for version in versions.split()})
