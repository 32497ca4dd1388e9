"""Finds rows by keys from the log. The log has the text of each value.

Each text becomes a literal of the key's type. The server compares it with the equality operator of the key's index.
Values with different bytes may be equal for this operator, such as 1.0 and 1.00, or a and A under a collation that
ignores case. So a lookup may also return rows with another key. To select the requested rows, the caller must compare
the bytes of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import DecodeError, SchemaChanged
from airflow_provider_cdc.sources.postgres.catalog.types import base_type
from airflow_provider_cdc.sources.postgres.decode.tuple_data import TEXT_VALUE
from airflow_provider_cdc.sources.postgres.server.session import literal, quote

# Force a plan that takes the keys first, and looks up each key in the index. Otherwise, the server could choose a plan
# that reads the whole table, for example because its statistics are outdated. Index-only scans are disabled, so that
# rows are always read from the table.
ONE_BY_ONE = """
SELECT pg_catalog.set_config('enable_seqscan', 'off', true), pg_catalog.set_config('enable_hashjoin', 'off', true),
    pg_catalog.set_config('enable_mergejoin', 'off', true), pg_catalog.set_config('enable_indexonlyscan', 'off', true)
"""

# For each column of an index: the column's name, its equality operator, and its collation. In a B-tree index (access
# method 403), the equality operator has strategy number 3. A key WITHOUT OVERLAPS has a GiST index. In a GiST index,
# strategy 3 may be the overlap operator, and each operator class has its own strategy number for equality.
_EQUALITIES = """
SELECT a.attname::text, n.nspname::text, o.oprname::text, b.nspname::text, l.collname::text
FROM pg_catalog.pg_index i CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) k(place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.place]
JOIN pg_catalog.pg_opclass c ON c.oid = i.indclass[k.place]
JOIN pg_catalog.pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype
    AND m.amoprighttype = c.opcintype AND m.amoppurpose = 's'
JOIN pg_catalog.pg_operator o ON o.oid = m.amopopr
    AND CASE m.amopmethod WHEN 403 THEN m.amopstrategy = 3 ELSE o.oprname = '=' END
JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
LEFT JOIN pg_catalog.pg_collation l ON l.oid = i.indcollation[k.place]
LEFT JOIN pg_catalog.pg_namespace b ON b.oid = l.collnamespace
WHERE i.indexrelid = COALESCE(
    (SELECT conindid FROM pg_catalog.pg_constraint WHERE oid = {key}), {key})
"""


# Before a read through the root, checks that its name still refers to the same table, and that this user may read all
# rows of the table. Privileges on the root are independent of privileges on the partitions.
_THROUGH_ROOT = """
SELECT (COALESCE(pg_catalog.to_regclass({root})::oid, 0) OPERATOR(pg_catalog.=) {oid}
    AND pg_catalog.has_table_privilege({oid}::oid, 'SELECT') AND NOT pg_catalog.row_security_active({oid}::oid))::text
"""

# OFFSET prevents the planner from reversing the join. So this plan, too, takes the keys first and then looks up each
# key.
_LEAVES = """
SELECT t.leaf::text, w.n::text FROM (VALUES {rows}) AS w(n, {names})
CROSS JOIN LATERAL (SELECT t.tableoid::oid AS leaf FROM {root} AS t WHERE {condition} OFFSET 0) AS t
"""


class KeyLookup:
    """Builds SQL that finds the rows of one table that have given keys.

    :param ask: runs a query whose columns are all text, and returns its rows.
    """

    def __init__(self, ask: Callable[[str], Sequence[Sequence[Any]]], table: Table) -> None:
        self._ask = ask
        self._table = table
        self._name = str(table.name)
        found: dict[str, str] = {}
        collations: dict[str, str] = {}
        for name, schema, sign, *collation in ask(_EQUALITIES.format(key=int(table.details["key"]))):
            found[name] = f"OPERATOR({quote(schema)}.{sign})"
            collations[name] = f" COLLATE {quote(*collation)}" if all(collation) else ""
        bases = [base_type(table.column(name)) for name in table.key]
        kinds = ", ".join(f"pg_catalog.format_type({oid}, {typmod})" for oid, typmod in bases)
        plain = ", ".join(f"pg_catalog.format_type({oid}, -1)" for oid, _ in bases)
        (self._types,) = ask(f"SELECT {kinds}")
        (plain_types,) = ask(f"SELECT {plain}")
        if missing := [name for name in table.key if name not in found]:
            raise SchemaChanged(
                f"the key of the table has changed: no index contains the key column {', '.join(missing)}",
                where=self._name,
                hint="the table changed since the run began: trigger a new run",
            )
        # The collation is given on both sides of the comparison, because the server first removes duplicate keys. To
        # find duplicates, the server compares the keys by the collation that is given for the keys.
        self._collations = [collations[name] for name in table.key]
        # The cast is needed because the server does not compare a domain over an enum with the enum. A cast without a
        # modifier computes nothing, so the server can still use the index.
        self._condition = " AND ".join(
            f"w.k{place} {found[name]} t.{quote(name)}::{plain_types[place]}{collations[name]}"
            for place, name in enumerate(table.key)
        )
        self._names = ", ".join(f"k{place}" for place in range(len(table.key)))

    def source(self, relation: str, keys: pa.BinaryArray) -> str:
        """Return the part after FROM of a SELECT. The SELECT returns every row of ``relation`` that has one of the
        keys, and returns no row twice.

        :param keys: images of the key columns.
        """
        rows = ", ".join(self._row(key) for key in keys.to_pylist())
        return (
            f"ONLY {relation} AS t WHERE EXISTS "
            f"(SELECT FROM (VALUES {rows}) AS w({self._names}) WHERE {self._condition})"
        )

    def by_leaf(self, keys: pa.BinaryArray) -> dict[int, pa.BinaryArray] | None:
        """Return the keys that occur in the table, by the OID of the partition that has the row with the key. None:
        this user may not read the table through its root.

        The values of a key determine its partition, so the server searches one partition for each key.
        """
        root = quote(self._table.name.schema, self._table.name.name)
        oid = int(self._table.columns[0].details["relation"])
        if self._ask(_THROUGH_ROOT.format(root=literal(root), oid=oid)) != [("true",)]:
            return None
        rows = ", ".join(f"({number}, {self._row(key)[1:]}" for number, key in enumerate(keys.to_pylist()))
        rows_by_leaf: dict[int, list[int]] = {}
        for leaf, number in self._ask(
            _LEAVES.format(rows=rows, names=self._names, root=root, condition=self._condition)
        ):
            rows_by_leaf.setdefault(int(leaf), []).append(int(number))
        return {leaf: keys.take(pa.array(sorted({*numbers}))) for leaf, numbers in rows_by_leaf.items()}

    def _row(self, image: bytes) -> str:
        values = _texts(image)
        if len(values) != len(self._types):
            raise DecodeError(
                "a key in the log has another number of columns than the table's key",
                where=self._name,
                hint="report this",
            )
        parts = zip(values, self._types, self._collations, strict=True)
        typed = (f"{literal(text)}::{kind}{collation}" for text, kind, collation in parts)
        return f"({', '.join(typed)})"


def _texts(image: bytes) -> list[str]:
    """Return the texts of an image without NULLs (`decode.images`)."""
    texts, at = [], 2
    while at < len(image):
        if image[at] != TEXT_VALUE:
            raise DecodeError("a value of a key is missing", hint="report this")
        end = at + 5 + int.from_bytes(image[at + 1 : at + 5], "big")
        texts.append(image[at + 5 : end].decode())
        at = end
    return texts
