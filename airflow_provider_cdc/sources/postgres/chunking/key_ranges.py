"""Divides a leaf into ranges of its key, if a condition selects few of its rows and an index finds them.

The server's planner estimates whether an index is used, and how many rows the index finds. The estimate affects only
how the leaf is divided. If the server uses another plan for the reads, the reads return the same rows. The planner has
no statistics for columns that were never analyzed, for example because a leaf was just loaded or the server was
upgraded. In that case, the planner assumes that any range of values has 1 of 200 rows. So one chunk could have all rows
of the leaf. To avoid this, a leaf without statistics is divided into blocks.

Only keys that are whole numbers, dates or times are divided, because this package and the server sort them in the same
way. The bounds increase, and the first and the last range are open-ended. A condition that bounds the key is not true
for a NULL. So each row that may be copied is in one range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import psycopg
import pyarrow as pa

from airflow_provider_cdc.core.filters.evaluator import value_of
from airflow_provider_cdc.core.filters.parser import Literal
from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import DecodeError, SchemaChanged
from airflow_provider_cdc.sources.planning.selections import Pushable, pushed, span
from airflow_provider_cdc.sources.postgres.catalog.schema import Leaf
from airflow_provider_cdc.sources.postgres.catalog.types import ColumnType, Family, base_type, column_types
from airflow_provider_cdc.sources.postgres.catalog.users_code import INDEXES_BY_USERS, is_unplannable
from airflow_provider_cdc.sources.postgres.server.pgoutput import TEXT_VALUE
from airflow_provider_cdc.sources.postgres.server.session import Connection, literal, query, quote

# Builds the part of a condition that PostgreSQL evaluates (`planning.selections`). This part contains only comparisons
# of whole numbers, decimals, dates and times.


_FAMILIES = {Family.INTEGER: False, Family.DECIMAL: True, Family.DATE: True, Family.TIMESTAMP: True}
"""For each family of columns, whether the columns may have values that the Arrow type cannot represent."""


def pushed_condition(table: Table, *, qualified: bool = False) -> str:
    """Return the condition that the server evaluates. Empty: the server must send all rows.

    The condition uses the operators in ``pg_catalog``. Sessions look up names there by default.

    :param qualified: qualify the operators with ``pg_catalog``, for sessions that also look up names in other schemas.
    """
    types_by_name = {column.name: column for column in column_types(table)}
    return pushed(table.selection.where, lambda name: _pushable(types_by_name[name], qualified))


def pushed_span(table: Table) -> tuple[Any, Any]:
    """Return bounds for the key's first column in the rows that fulfil the pushed-down condition.

    The lower or the upper bound is None if it is not known. The bounds may be used only for estimates.
    """
    if table.keyless or table.selection.where is None:
        return None, None
    (column,) = (column for column in column_types(table) if column.name == table.key[0])
    if _pushable(column) is None:
        return None, None
    return span(table.selection.where, column.name, lambda literal: value_of(literal, column.arrow).as_py())


def _pushable(column: ColumnType, qualified: bool = False) -> Pushable | None:
    if column.family not in _FAMILIES or column.value != quote(column.name):
        return None

    def spelt(literal: Literal) -> str:
        return spelt_value(value_of(literal, column.arrow).as_py())

    schema = "pg_catalog" if qualified else ""
    return Pushable(quote(column.name), spelt, _FAMILIES[column.family], column.stored_nulls, schema)


def spelt_value(value: Any) -> str:
    """Return a value of a pushed-down column in SQL."""
    if isinstance(value, Decimal):
        return f"numeric '{value:f}'"
    if isinstance(value, int):
        return f"int8 '{value}'"
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return f"timestamptz '{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}+00'"
        return f"timestamp '{value.isoformat(' ', 'microseconds')}'"
    assert isinstance(value, date)
    return f"date '{value.isoformat()}'"


Range = tuple[int | str | None, int | str | None, int]
"""The lower bound (inclusive) and the upper bound (exclusive) for the key's first column, and the estimated number of
rows. A bound is None if the range has no limit on that side."""

_THROUGH_INDEX = {"Index Scan", "Bitmap Heap Scan", "Bitmap Index Scan", "BitmapAnd", "BitmapOr"}


def ranges(connection: Connection, table: Table, leaf: Leaf, chunk_rows: int) -> list[Range]:
    """Return ranges of about ``chunk_rows`` rows each. Only rows that fulfil the pushed-down condition are counted.

    Empty: the server would read all blocks in any case, or the key cannot be divided.
    """
    pushed = "" if table.selection.where is None else pushed_condition(table)
    is_analyzed = pushed and _analyzed(connection, table, leaf, pushed) and not _is_doubtful(connection, leaf)
    rows = _through_index(connection, leaf, pushed) if is_analyzed else None
    if rows is None:
        return []
    pieces = -(-rows // chunk_rows)
    bounds = _cuts(*_ends(connection, table, leaf), pieces) if pieces > 1 else []
    if pieces > 1 and not bounds:
        return []
    edges: list[int | str | None] = [None, *bounds, None]
    return [(low, high, -(-rows // (len(bounds) + 1))) for low, high in pairwise(edges)]


def condition(table: Table, least: Sequence[KeyValue], beyond: Sequence[KeyValue]) -> str:
    """Return the last part of a chunk's condition. It selects keys from ``least`` (inclusive) to ``beyond``
    (exclusive). Each bound is a sequence with one value. The sequence is empty if there is no bound."""
    conditions = [
        f" AND {_key(table)} OPERATOR(pg_catalog.{sign}) {spelt_edge(*bound)}"
        for sign, bound in ((">=", least), ("<", beyond))
        if bound
    ]
    return "".join(conditions)


def _key(table: Table) -> str:
    return quote(table.key[0])


def spelt_edge(bound: KeyValue) -> str:
    """Return a bound in SQL: a whole number, or a date or a time as ISO text."""
    if isinstance(bound, int):
        return spelt_value(bound)
    text = str(bound)
    return spelt_value(datetime.fromisoformat(text) if " " in text else date.fromisoformat(text))


def _analyzed(connection: Connection, table: Table, leaf: Leaf, pushed: str) -> bool:
    """Return whether the server has statistics for all columns in the pushed-down condition."""
    looked_at = table.selection.where.columns if table.selection.where is not None else ()
    names = [name for name in looked_at if quote(name) in pushed]
    ((is_analyzed,),) = query(
        connection,
        "SELECT count(*) FROM pg_stats "
        "WHERE (schemaname, tablename) = (%s, %s) AND attname = ANY(%s) AND NOT inherited",
        (leaf.schema, leaf.name, names),
    )
    return int(is_analyzed) == len(names)


def _is_doubtful(connection: Connection, leaf: Leaf) -> bool:
    """Return whether reads of the leaf use none of its indexes (`users_code.NO_INDEX`)."""
    return bool(query(connection, INDEXES_BY_USERS.format(leaf.oid)) != [("0",)])


def _through_index(connection: Connection, leaf: Leaf, pushed: str) -> int | None:
    """Return the estimated number of rows of a leaf that the server would send. None: the server would use no index."""
    sql = f"SELECT FROM ONLY {leaf.sql} WHERE ctid >= '(0,0)'::tid AND ({pushed})"
    try:
        (((plan,),),) = query(connection, f"EXPLAIN (FORMAT JSON) {sql}")
    except psycopg.Error as error:
        if not is_unplannable(error):
            raise
        # This leaf must be read under another search_path (`users_code`). Divide such a leaf only into ranges of
        # blocks, and ignore the pushed-down condition.
        return None
    return max(1, int(plan["Plan"]["Plan Rows"])) if {*_nodes(plan["Plan"])} <= _THROUGH_INDEX else None


def _nodes(plan: Mapping[str, Any]) -> Iterator[str]:
    yield plan["Node Type"]
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _ends(connection: Connection, table: Table, leaf: Leaf) -> tuple[Any, Any]:
    """Return the least and the greatest existing value of the key's first column within the bounds of the condition.

    Both are None if the condition does not bound the key, if no row is within the bounds, or if keys of this type are
    not divided.
    """
    least, greatest = pushed_span(table)
    known_end = greatest if least is None else least
    if not isinstance(known_end, int | date):
        return None, None
    # Qualify the column, because ORDER BY would resolve an unqualified name to the selected text.
    key = f"t.{_key(table)}"
    ends = [f"{key} {sign} {spelt_value(end)}" for sign, end in ((">=", least), ("<=", greatest)) if end is not None]
    statement = f"SELECT {key}::text FROM ONLY {leaf.sql} AS t WHERE {' AND '.join(ends)} ORDER BY {key}"
    ((low, high),) = query(connection, f"SELECT ({statement} ASC LIMIT 1), ({statement} DESC LIMIT 1)")
    read = int if isinstance(known_end, int) else type(known_end).fromisoformat
    try:
        return read(low), read(high)
    except (TypeError, ValueError):
        # Either no row is within the bounds, or Python cannot represent the value.
        return None, None


def _cuts(low: Any, high: Any, pieces: int) -> list[int | str]:
    """Return at most ``pieces`` - 1 values that are greater than ``low`` and at most ``high``, in ascending order."""
    if low is None or high is None:
        return []
    # This arithmetic works for numbers, dates and times.
    points = dict.fromkeys(low + (high - low) * piece // pieces for piece in range(1, pieces))
    return [
        point if isinstance(point, int) else point.isoformat(*_form(point)) for point in points if low < point <= high
    ]


def _form(value: date) -> tuple[str, ...]:
    return (" ", "microseconds") if isinstance(value, datetime) else ()


# Finds rows by keys from the log. The log has the text of each value.
#
# Each text becomes a literal of the key's type. The server compares it with the equality operator of the key's index.
# Values with different bytes may be equal for this operator, such as 1.0 and 1.00, or a and A under a collation that
# ignores case. So a lookup may also return rows with another key. To select the requested rows, the caller must compare
# the bytes of the keys.


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
