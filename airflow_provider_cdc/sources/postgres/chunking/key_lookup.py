"""Finding rows by their keys, as the log tells these: by the text of each value.

The text goes through the type's own input function, as a literal of that type, and is compared by the equality of the
key's own index. That equality may be wider than bytes (1.0 and 1.00, a collation that ignores case): a row may be found
by another row's key. So whoever asks tells by the bytes of the rows which of them were meant.
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

# Keys first, and for each of them a look into the index, however large the table: what the server believes of a table
# may be old, and its other ways read all of it. From the index to the row, even if the index has all that is asked for.
ONE_BY_ONE = """
SELECT pg_catalog.set_config('enable_seqscan', 'off', true), pg_catalog.set_config('enable_hashjoin', 'off', true),
    pg_catalog.set_config('enable_mergejoin', 'off', true), pg_catalog.set_config('enable_indexonlyscan', 'off', true)
"""

# Of each column of an index: its name, the operator by which the index tells values equal, and its collation. That is
# strategy 3 of a B-tree (403). In the other index that keeps a key unique, the GiST one of a key WITHOUT OVERLAPS,
# 3 may be an overlap, and which number equality has is the operator class's own affair.
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


# The name may stand for another table by now, and its root's rights are not those of the partitions.
_THROUGH_ROOT = """
SELECT (COALESCE(pg_catalog.to_regclass({root})::oid, 0) OPERATOR(pg_catalog.=) {oid}
    AND pg_catalog.has_table_privilege({oid}::oid, 'SELECT') AND NOT pg_catalog.row_security_active({oid}::oid))::text
"""

# OFFSET keeps the planner from turning it round: keys come first here, too.
_LEAVES = """
SELECT t.leaf::text, w.n::text FROM (VALUES {rows}) AS w(n, {names})
CROSS JOIN LATERAL (SELECT t.tableoid::oid AS leaf FROM {root} AS t WHERE {condition} OFFSET 0) AS t
"""


class KeyLookup:
    """Conditions for the rows of one table with certain keys.

    :param ask: returns the rows of a query whose columns are all text.
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
                f"its key has changed: no index says how {', '.join(missing)} is compared",
                where=self._name,
                hint="the table changed since the run began: trigger a new run",
            )
        # On both sides: the server first makes one of keys that are equal, by the collation that these have.
        self._collations = [collations[name] for name in table.key]
        # To the server a domain over an enum is no enum of the other side's type. Without a modifier the cast computes
        # nothing, so the index serves.
        self._condition = " AND ".join(
            f"w.k{place} {found[name]} t.{quote(name)}::{plain_types[place]}{collations[name]}"
            for place, name in enumerate(table.key)
        )
        self._names = ", ".join(f"k{place}" for place in range(len(table.key)))

    def source(self, relation: str, keys: pa.BinaryArray) -> str:
        """What a SELECT says after FROM for the rows of ``relation`` with these keys, given as images of their columns;
        each row once."""
        rows = ", ".join(self._row(key) for key in keys.to_pylist())
        return (
            f"ONLY {relation} AS t WHERE EXISTS "
            f"(SELECT FROM (VALUES {rows}) AS w({self._names}) WHERE {self._condition})"
        )

    def by_leaf(self, keys: pa.BinaryArray) -> dict[int, pa.BinaryArray] | None:
        """Those of ``keys`` that the table has a row for, by the OID of the partition which that is in; None: whoever
        asks may not read the table through its root. A partition is known by the values of the key, so the server looks
        for each key in one of them only.
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
            raise DecodeError("a key has another number of columns", where=self._name, hint="report this")
        parts = zip(values, self._types, self._collations, strict=True)
        typed = (f"{literal(text)}::{kind}{collation}" for text, kind, collation in parts)
        return f"({', '.join(typed)})"


def _texts(image: bytes) -> list[str]:
    """The texts of an image without NULLs (`decode.images`)."""
    texts, at = [], 2
    while at < len(image):
        if image[at] != TEXT_VALUE:
            raise DecodeError("a value of a key is missing", hint="report this")
        end = at + 5 + int.from_bytes(image[at + 1 : at + 5], "big")
        texts.append(image[at + 5 : end].decode())
        at = end
    return texts
