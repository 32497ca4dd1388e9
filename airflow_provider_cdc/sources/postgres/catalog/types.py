"""The table of PostgreSQL types: the Arrow type of each type, and how its values are read from COPY and the log.

A value is read in one of two formats. COPY returns the binary format, which ADBC converts to Arrow. The log has the
text that the type's output function prints (``images``). Both decoders use ``ColumnType``, so they always agree.

=====================================  ===================  =====================================================
PostgreSQL                             Arrow                remarks
=====================================  ===================  =====================================================
smallint integer bigint                int16 int32 int64
real, double precision                 float32, float64     the stored bits; every NaN becomes the same NaN
boolean                                bool
numeric(p,s), p ≤ 38, 0 ≤ s ≤ p        decimal128(p, s)     the policy applies to NaN and ±infinity
text varchar char(n) name              utf8                 char(n) with its padding
json jsonb                             utf8                 the text that SELECT prints
uuid                                   utf8
bytea                                  binary
date                                   date32               the policy applies to ±infinity
timestamp, timestamp with time zone    timestamp[us], UTC   the policy applies to ±infinity, after 294247-01-10
time                                   time64[us]           the policy applies to 24:00:00
arrays of these, with `arrays` = list  list                 the policy applies to other dimensions and lower bounds
all others                             utf8                 what the type's output function prints under
                                                            ``SESSION_SETTINGS``
=====================================  ===================  =====================================================

A domain is treated as its base type. In the table, "the policy" is `TableOptions.unrepresentable`. With the policy
``string``, the Arrow type of the column is utf8. The policy ``null`` never applies to a column that identifies rows (a
key column, or any column of a keyless table), because two different rows could become equal. For such a column,
``null`` stops the run, as ``error`` does.

For each column, this module needs the name, ``Column.nullable``, and these entries of ``Column.details``:

``oid``, ``typmod``
    the declared type: ``pg_attribute.atttypid`` and ``atttypmod``.
``kind``
    ``base``, ``enum``, ``domain``, ``composite``, ``range``, ``multirange`` or ``array``.
``base_oid``, ``base_typmod``
    the type beneath all domains; the same as ``oid`` and ``typmod`` if there is no domain. (If these entries are
    missing, a domain is read as text.)
``names_objects``
    true if a part of the type (a field of a composite, say) is one of ``NAMES_OF_OBJECTS``.
``expression``
    only for a virtual column: the SQL expression that computes its value.
``relation``
    the OID of the table, or of the root if the table is partitioned. The log must name the same relation.

Formats: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (TupleData). The tests compare
each entry with the server itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from airflow_provider_cdc.core.options.run import LIST
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote


class Family(Enum):
    """Groups of columns whose values are decoded and converted in the same way."""

    INTEGER = "integer"
    FLOAT = "float"
    BOOL = "bool"
    DECIMAL = "decimal"
    TEXT = "text"
    UUID = "uuid"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIME = "time"
    LIST = "array"
    OUTPUT = "output"
    """Text that the server prints, because there is no better Arrow type."""


@dataclass(frozen=True)
class ColumnType:
    """One column's entry in the table of types.

    ``select``
        the expression by which a SELECT reads the column.
    ``value``
        the SQL value that ``select`` reads: the column, or the expression that computes a virtual column.
    ``policy``
        the policy for values that ``arrow`` cannot represent: ``error`` or ``null``.
    ``nullable``
        whether the published column may have nulls. ``stored_nulls``: whether the column of the table may have nulls.
    ``precision``, ``scale``
        the precision and scale of decimals.
    ``element``
        the type of the elements of a list. An array with an element that ``arrow`` cannot represent cannot be
        represented itself, so the policy of the elements is ``null``.
    """

    name: str
    family: Family
    arrow: pa.DataType
    select: str
    nullable: bool
    stored_nulls: bool
    policy: str
    value: str
    precision: int = 0
    scale: int = 0
    element: ColumnType | None = None


def unmapped(column: Column) -> str | None:
    """Return the reason why ``column`` cannot be copied. None: the column can be copied."""
    beneath = {int(column.details.get(name, 0)) for name in ("oid", "base_oid")}
    if beneath & NAMES_OF_OBJECTS or column.details.get("names_objects"):
        return (
            f"a value of type {column.type} is printed as the present name of an object, which may differ from its "
            "name at the initial position"
        )
    return None


def leaving_out(table: Table, column: str) -> str:
    """Return the beginning of a hint that suggests leaving out a column. Empty: the column belongs to the key."""
    return "" if column in table.key else f"leave the column {column} out (option columns), "


def column_types(table: Table) -> tuple[ColumnType, ...]:
    """Return the entries for all columns of ``table``, in order. Columns that are not read have entries, too, even if
    their types are not supported.

    :raises ConfigurationError: a column that is read cannot be copied. To get the reason without an error, call
        ``unmapped`` first.
    """
    read = {column.name for column in table.as_read.columns}
    return tuple(_column_type(table, column, column.name in read) for column in table.columns)


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of ``table``'s rows. Rows from a SELECT and rows from the log have the same schema."""
    return pa.schema([pa.field(column.name, column.arrow, nullable=column.nullable) for column in column_types(table)])


def comparable_texts(table: Table) -> dict[str, str]:
    """`Source.comparable_texts`."""
    texts = {}
    for column in table.columns:
        oid, _ = base_type(column)
        if oid in _PLAIN_TEXTS:
            texts[column.name] = "plain"
        elif _native(oid, -1)[0] is Family.UUID:
            texts[column.name] = "uuid"
        elif column.details.get("kind") == "enum":
            texts[column.name] = "label"
    return texts


def select_list(table: Table, *, decimals: bool = False) -> str:
    """Return the select list for all columns. Each expression is named after its column.

    :param decimals: whether decimals are read as numeric values. Otherwise the server converts them to text, because
        the same conversion by ADBC would be slower.
    """
    expressions = [
        column.value if decimals and column.family is Family.DECIMAL else column.select
        for column in column_types(table)
    ]
    return ", ".join(
        f"{expression} AS {quote(column.name)}" for expression, column in zip(expressions, table.columns, strict=True)
    )


def base_type(column: Column) -> tuple[int, int]:
    """Return the OID and the type modifier of the type beneath all domains."""
    details = column.details
    return (
        int(details.get("base_oid", details["oid"])),
        int(details.get("base_typmod", details["typmod"])),
    )


def _column_type(table: Table, column: Column, is_read: bool) -> ColumnType:
    if is_read and (reason := unmapped(column)) is not None:
        hint = f"{leaving_out(table, column.name)}or leave the table out"
        raise ConfigurationError(reason, where=f"{table.name}.{column.name}", hint=hint)
    oid, typmod = base_type(column)
    policy = table.options.unrepresentable
    family, arrow = _native(oid, typmod)
    element = None
    if table.options.arrays == LIST and not table.identifies(column.name):
        element = _element(column.name, oid, typmod)
    if element is not None:
        family, arrow = Family.LIST, pa.list_(pa.field("element", element.arrow, nullable=True))
    if family in _UNREPRESENTABLE and policy == "string":
        family, element = Family.OUTPUT, None
    if family is Family.OUTPUT:
        arrow = pa.utf8()
    if family not in _UNREPRESENTABLE or table.identifies(column.name):
        policy = "error"
    nullable = column.nullable or policy == "null"
    select = value = _value(table, column)
    if family in (Family.OUTPUT, Family.DECIMAL, Family.LIST):
        select = _printed(value, oid, str(column.details.get("kind", "")))
    digits = _digits(family, arrow)
    return ColumnType(column.name, family, arrow, select, nullable, column.nullable, policy, value, *digits, element)


def _element(name: str, oid: int, typmod: int) -> ColumnType | None:
    """Return the type of the elements of an array. None: this is not an array, or the elements have no Arrow type."""
    if oid not in _ELEMENTS:
        return None
    family, arrow = _native(_ELEMENTS[oid], typmod)
    if family is Family.OUTPUT:
        return None
    return ColumnType(name, family, arrow, "", True, True, "null", "", *_digits(family, arrow))


def _digits(family: Family, arrow: pa.DataType) -> tuple[int, int]:
    return (arrow.precision, arrow.scale) if family is Family.DECIMAL else (0, 0)


def _value(table: Table, column: Column) -> str:
    """Return the expression that is read for a column.

    A partition may have another expression for a virtual column than its root. If the server reads the root, it uses
    the root's expression. The server always uses the present expression, even if the snapshot is older. So for
    partitioned tables, the read uses the recorded expression.
    """
    expression = column.details.get("expression")
    if expression is None or table.details.get("kind") != "p":
        return quote(column.name)
    return f"({expression})::{column.type}"


def _native(oid: int, typmod: int) -> tuple[Family, pa.DataType]:
    if oid == _NUMERIC and typmod >= 0:
        # In the type modifier of numeric, the scale is a signed number of 11 bits.
        precision = ((typmod - 4) >> 16) & 0xFFFF
        scale = (((typmod - 4) & 0x7FF) ^ 1024) - 1024
        if precision <= 38 and 0 <= scale <= precision:
            return Family.DECIMAL, pa.decimal128(precision, scale)
    return _NATIVE.get(oid, (Family.OUTPUT, pa.utf8()))


def _printed(quoted: str, oid: int, kind: str) -> str:
    """Return an expression for the text that the output function prints. A cast to text cannot be used instead, because
    some types have a cast with another result, and users can create more casts."""
    function = _OUTPUT_FUNCTIONS.get(oid) or _OUTPUT_OF_KIND.get(kind)
    if function is not None:
        return f"pg_catalog.textin(pg_catalog.{function}({quoted}))"
    # format() returns '' for NULL. The test cannot be IS NULL, because IS NULL is also true for a row of NULLs, and
    # such a row is printed as (,).
    return f"CASE WHEN {quoted} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {quoted}) END"


_NUMERIC = 1700

# OIDs below 16384 are the same on every server. Source: catalog/pg_type.dat.
_NATIVE: Mapping[int, tuple[Family, pa.DataType]] = {
    16: (Family.BOOL, pa.bool_()),
    17: (Family.BYTES, pa.binary()),
    19: (Family.TEXT, pa.utf8()),  # name
    20: (Family.INTEGER, pa.int64()),
    21: (Family.INTEGER, pa.int16()),
    23: (Family.INTEGER, pa.int32()),
    25: (Family.TEXT, pa.utf8()),  # text
    114: (Family.TEXT, pa.utf8()),  # json
    700: (Family.FLOAT, pa.float32()),
    701: (Family.FLOAT, pa.float64()),
    1042: (Family.TEXT, pa.utf8()),  # char(n)
    1043: (Family.TEXT, pa.utf8()),  # varchar
    1082: (Family.DATE, pa.date32()),
    1083: (Family.TIME, pa.time64("us")),
    1114: (Family.TIMESTAMP, pa.timestamp("us")),
    1184: (Family.TIMESTAMP, pa.timestamp("us", "UTC")),
    2950: (Family.UUID, pa.utf8()),
    3802: (Family.TEXT, pa.utf8()),  # jsonb
}
_PLAIN_TEXTS = frozenset({19, 25, 1042, 1043})
"""name, text, char(n), varchar. The type json is excluded, because its text is a printed representation."""
_ELEMENTS: Mapping[int, int] = {
    199: 114,
    1000: 16,
    1001: 17,
    1003: 19,
    1005: 21,
    1007: 23,
    1009: 25,
    1014: 1042,
    1015: 1043,
    1016: 20,
    1021: 700,
    1022: 701,
    1115: 1114,
    1182: 1082,
    1183: 1083,
    1185: 1184,
    1231: _NUMERIC,
    2951: 2950,
    3807: 3802,
}
"""The OID of the type of the elements, by the OID of the type of arrays."""
_UNREPRESENTABLE = (Family.DECIMAL, Family.DATE, Family.TIMESTAMP, Family.TIME, Family.LIST)

# Calling these functions takes half the time of format(), which is used for all other types.
_OUTPUT_FUNCTIONS: Mapping[int, str] = {
    18: "charout",
    26: "oidout",
    142: "xml_out",
    600: "point_out",
    601: "lseg_out",
    602: "path_out",
    603: "box_out",
    604: "poly_out",
    628: "line_out",
    650: "cidr_out",
    718: "circle_out",
    774: "macaddr8_out",
    790: "cash_out",
    829: "macaddr_out",
    869: "inet_out",
    1082: "date_out",
    1083: "time_out",
    1114: "timestamp_out",
    1184: "timestamptz_out",
    1186: "interval_out",
    1266: "timetz_out",
    1560: "bit_out",
    1562: "varbit_out",
    1700: "numeric_out",
    3220: "pg_lsn_out",
    3614: "tsvectorout",
    3615: "tsqueryout",
}
_OUTPUT_OF_KIND: Mapping[str, str] = {
    "array": "array_out",
    "composite": "record_out",
    "enum": "enum_out",
    "multirange": "multirange_out",
    "range": "range_out",
}

# regproc, regprocedure, regoper, regoperator, regclass, regtype, regconfig, regdictionary, regnamespace, regrole,
# regcollation, aclitem, and regdatabase (PostgreSQL 19), and the arrays of each.
NAMES_OF_OBJECTS = frozenset(
    {24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191, 1033, 6490}
    | {1008, 2207, 2208, 2209, 2210, 2211, 3735, 3770, 4090, 4097, 4192, 1034, 6491}
)
"""OIDs of types whose values are printed as the present name of an object."""


# Reads types from the catalog: their base types, and a digest of their definitions.


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
