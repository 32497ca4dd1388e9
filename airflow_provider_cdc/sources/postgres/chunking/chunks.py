"""Divides a table into chunks: ranges of blocks, read in the order in which they are stored on disk.

Chunks of blocks need no key. While a relation keeps its file, an untouched row keeps its place in the file. So the row
is read exactly once, even if the chunks are read at different times. A row moves only if it is updated. So the log has
the key of the moved row, and the rewind restores the row, whether the row was read once, twice or not at all. Every
read checks that the relation still has the same file (``chunk_reader``).

A bound is ``(OID of the leaf, block)``. The leaves of a partitioned table follow each other. The last chunk of each
leaf has no upper bound, so it includes rows that are appended during the run.

If a condition selects few rows of a leaf, and an index finds them, the leaf is divided by key, or not at all
(``key_ranges``). In that case, a bound also has a value of the key's first column, and its block is the first block of
the leaf. An untouched row is in exactly one range of keys, too, even if the chunks are read at different times.

A keyless table is divided by the values of a column if possible (``value_ranges``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import psycopg
import pyarrow as pa

from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.core.tables.value_range import Edge, ValueRange
from airflow_provider_cdc.errors import CopyMismatch, Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.planning.survey import gave_up, problems_of
from airflow_provider_cdc.sources.postgres.catalog.schema import Leaf, leaves, present_tables
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import AT_UPPER
from airflow_provider_cdc.sources.postgres.catalog.types import ColumnType, Family, column_types
from airflow_provider_cdc.sources.postgres.catalog.users_code import INDEXES_BY_USERS, is_unplannable
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.chunking import key_ranges
from airflow_provider_cdc.sources.postgres.chunking.key_ranges import spelt_edge
from airflow_provider_cdc.sources.postgres.server.server import naming_blockers
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote, session, value

# Divides a keyless table into ranges of an indexed column's values, so that each range can be read at a position of
# its own (docs/design/resume.md).
#
# A range of blocks cannot: a row that is updated moves to another block, and the log does not tell from which block to
# which. The range of a row follows from its values, and the log has these.
#
# A column is used only if the table's blocks are nearly sorted by it. Then an index finds each range in a few blocks.
# Otherwise each range would take a scan of the whole table. All of this affects only the time that the reads take: the
# ranges have each row once, whatever the statistics are.


SORTED = 0.9
"""The least correlation between the values of a column and their places in the table."""
MOST_CHUNKS = 10_000
"""The largest number of chunks of a table. Each leaf has a chunk in each range."""
SMALL_LEAF = 0.0001
"""A leaf with a smaller share of the table's blocks needs no index, because a scan of it takes little time."""

_INDEXED = """
SELECT i.indrelid, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = ANY(%s::oid[]) AND m.amname IN ('btree', 'brin') AND i.indisvalid AND i.indisready
    AND i.indpred IS NULL
"""
_SORTED = """
SELECT s.attname, abs(s.correlation) FROM pg_stats s
WHERE (s.schemaname, s.tablename) = (%s, %s) AND NOT s.inherited AND s.attname = ANY(%s) AND s.correlation IS NOT NULL
    AND s.histogram_bounds IS NOT NULL
"""
_TYPES = {Family.INTEGER: "int8", Family.DATE: "date", Family.TIMESTAMP: "timestamp"}
_FORMS = {Family.INTEGER: "", Family.DATE: "YYYY-MM-DD", Family.TIMESTAMP: "YYYY-MM-DD HH24:MI:SS.US"}


def value_chunks(connection: Connection, table: Table, leaves: Sequence[Leaf], chunk_rows: int) -> list[Chunk]:
    """Return chunks of about ``chunk_rows`` rows each. Neighbouring chunks have the same range, one in each leaf.

    Empty: the table has a key or is small, no column of it can be used, or each try reads all of it at the position at
    which the reads end.
    """
    whole = table.details["kind"] in (VIEW, MATERIALIZED) or table.details.get(AT_UPPER)
    if not table.keyless or whole or table.rows <= chunk_rows:
        return []
    blocks = dict(query(connection, "SELECT oid, pg_relation_size(oid) FROM unnest(%s::oid[]) oid", (_oids(leaves),)))
    total = max(1, sum(size or 0 for size in blocks.values()))
    large = [leaf for leaf in leaves if (blocks.get(leaf.oid) or 0) > SMALL_LEAF * total]
    column = _column(connection, table, large)
    if column is None or any(query(connection, INDEXES_BY_USERS.format(leaf.oid)) != [("0",)] for leaf in leaves):
        return []
    wanted = min(math.ceil(table.rows / chunk_rows), MOST_CHUNKS // len(leaves))
    weights = [(blocks.get(leaf.oid) or 0) / total for leaf in large]
    edges: list[Edge] = [None, *_cuts(connection, column, large, weights, wanted), None]
    if len(edges) < 3:
        return []
    ranges = [ValueRange(column.name, least, beyond) for least, beyond in pairwise(edges)]
    rows = table.rows / len(ranges)
    chunks: list[Chunk] = []
    for within in ranges:
        for leaf in leaves:
            share = (blocks.get(leaf.oid) or 0) / total
            chunks.append(Chunk(len(chunks), (leaf.oid, 0), None, round(rows * share), within))
    return chunks


def condition(within: ValueRange) -> str:
    """Return the condition that selects the rows of a range."""
    name, terms = quote(within.column), []
    if within.least is not None:
        terms.append(f"{name} OPERATOR(pg_catalog.>=) {spelt_edge(within.least)}")
    if within.beyond is not None:
        below = f"{name} OPERATOR(pg_catalog.<) {spelt_edge(within.beyond)}"
        terms.append(below if within.least is not None else f"({below} OR {name} IS NULL)")
    return " AND ".join(terms)


def _oids(leaves: Sequence[Leaf]) -> list[int]:
    return [leaf.oid for leaf in leaves]


def _column(connection: Connection, table: Table, large: Sequence[Leaf]) -> ColumnType | None:
    """Return the column by which the large leaves are indexed and nearly sorted. None: there is no such column."""
    read = {column.name: column for column in table.as_read.columns}
    usable = {
        column.name: column
        for column in column_types(table)
        if column.name in read and "generated" not in read[column.name].details and _can_divide(table, column)
    }
    indexed: dict[str, set[int]] = {}
    for oid, name in query(connection, _INDEXED, (_oids(large),)):
        if name in usable:
            indexed.setdefault(name, set()).add(oid)
    names = [name for name, oids in indexed.items() if oids == set(_oids(large))]
    least = dict.fromkeys(names, 1.0)
    for leaf in large:
        found = dict(query(connection, _SORTED, (leaf.schema, leaf.name, names)))
        least = {name: min(correlation, found.get(name, 0.0)) for name, correlation in least.items()}
    best = max(least, key=lambda name: least[name], default=None)
    return usable[best] if best is not None and least[best] >= SORTED else None


def _can_divide(table: Table, column: ColumnType) -> bool:
    """Return whether the log and the server place each value in the same range. In a table with a condition, a value
    that no Arrow type holds does not stop the run, but it has no known range."""
    if table.selection.where is not None:
        return column.family is Family.INTEGER
    return column.family in _TYPES


def _cuts(
    connection: Connection, column: ColumnType, leaves: Sequence[Leaf], weights: Sequence[float], pieces: int
) -> list[int | str]:
    """Return at most ``pieces`` - 1 values, in ascending order, between which there are about equally many rows. The
    server's histogram of each leaf has values between which there are equally many rows of the leaf."""
    points: list[tuple[int | str, float]] = []
    for leaf, weight in zip(leaves, weights, strict=True):
        bounds = _bounds(connection, column, leaf)
        points += [(bound, weight / len(bounds)) for bound in bounds]
    points.sort()
    step = sum(weight for _, weight in points) / max(1, pieces)
    cuts: list[int | str] = []
    passed = 0.0
    for bound, weight in points:
        passed += weight
        if len(cuts) + 1 < pieces and passed >= step * (len(cuts) + 1) and (not cuts or cuts[-1] < bound):  # type: ignore[operator]
            cuts.append(bound)
    return cuts


def _bounds(connection: Connection, column: ColumnType, leaf: Leaf) -> list[int | str]:
    kind, form = _TYPES[column.family], _FORMS[column.family]
    value, finite = "v", "true"
    if form:
        # Python has no dates outside the years 1 to 9999.
        zone = "+00:00" if pa.types.is_timestamp(column.arrow) and column.arrow.tz else ""
        value, finite = f"to_char(v, '{form}') || '{zone}'", "isfinite(v) AND v >= '0001-01-01' AND v < '9999-01-01'"
    # The cast drops the time zone of a timestamp. So the ranges may be shifted by some hours, but are still ranges.
    rows = query(
        connection,
        f"SELECT {value} FROM pg_stats s, unnest(s.histogram_bounds::text::{kind}[]) v "
        f"WHERE (s.schemaname, s.tablename) = (%s, %s) AND NOT s.inherited AND s.attname = %s AND {finite}",
        (leaf.schema, leaf.name, column.name),
    )
    return [bound for (bound,) in rows]


_WHOLE_NUMBERS = ("smallint", "integer", "bigint")


def plan_chunks(connection: Connection, table: Table, chunk_rows: int) -> list[Chunk]:
    """Return chunks of about ``chunk_rows`` rows each. There is at least one chunk for each leaf. A table that has no
    leaves has one chunk."""
    table_leaves = leaves(table)
    if not table_leaves:
        return [Chunk(0)]
    if table.details["kind"] == VIEW:
        # Read a view in one chunk. Two queries of the view may return different results if its definition allows
        # several results. For example, the elements of an array may have another order, or the view may choose another
        # one of several rows.
        return [Chunk(0, (table_leaves[0].oid, 0), None, table.rows)]
    if by_value := value_chunks(connection, table, table_leaves, chunk_rows):
        return by_value
    blocks = dict(
        query(
            connection,
            "SELECT oid, pg_relation_size(oid) / current_setting('block_size')::int FROM unnest(%s::oid[]) oid",
            ([leaf.oid for leaf in table_leaves],),
        )
    )
    total = sum(size or 0 for size in blocks.values())
    density = max(table.rows, 1) / max(total, 1)
    step = max(1, math.ceil(chunk_rows / density))
    chunks: list[Chunk] = []
    for leaf in table_leaves:
        # A remainder of less than half a chunk is added to the last chunk.
        size = blocks.get(leaf.oid) or 0
        starts = list(range(0, max(1, size - step // 2), step))
        ranges = key_ranges.ranges(connection, table, leaf, chunk_rows) if len(starts) > 1 else []
        for low, high, rows in ranges:
            lower = (leaf.oid, 0) if low is None else (leaf.oid, 0, low)
            chunks.append(Chunk(len(chunks), lower, None if high is None else (leaf.oid, 0, high), rows))
        if ranges:
            continue
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            rows = round(((size if end is None else end) - start) * density)
            upper = None if end is None else (leaf.oid, end)
            chunks.append(Chunk(len(chunks), (leaf.oid, start), upper, rows))
    return chunks


def key_range(table: Table, low: int | None, high: int | None) -> list[Chunk]:
    """Implements `Source.key_range`."""
    if table.keyless or table.details["kind"] == VIEW or table.column(table.key[0]).type not in _WHOLE_NUMBERS:
        return []
    return [
        Chunk(
            number,
            (leaf.oid, 0) if low is None else (leaf.oid, 0, low),
            None if high is None else (leaf.oid, 0, high),
        )
        for number, leaf in enumerate(leaves(table))
    ]


def place(table: Table, chunk: Chunk) -> tuple[Leaf | None, str]:
    """Return the leaf of a chunk, and the SQL condition that selects the chunk's rows. The leaf is None if a
    partitioned table has no leaves.

    :raises CopyMismatch: the chunk belongs to another table.
    """
    lower, upper = chunk.bounds
    if lower is None:
        return None, "FALSE"
    oid, start = map(int, lower[:2])
    for leaf in leaves(table):
        if leaf.oid == oid and table.details["kind"] == VIEW:
            return leaf, "TRUE"
        if leaf.oid == oid and chunk.within is not None:
            return leaf, condition(chunk.within)
        if leaf.oid == oid:
            # Operators are qualified, because the search_path of the read may contain users' schemas (`users_code`).
            pages = f"ctid OPERATOR(pg_catalog.>=) '({start},0)'::pg_catalog.tid"
            if upper is not None and len(upper) == 2:
                pages += f" AND ctid OPERATOR(pg_catalog.<) '({int(upper[1])},0)'::pg_catalog.tid"
            beyond = upper[2:] if upper is not None else ()
            return leaf, pages + key_ranges.condition(table, lower[2:], beyond)
    raise CopyMismatch(
        f"the table has no partition with the OID {oid}",
        where=f"{table.name}, {chunk}",
        hint="clear the task `lock_and_record` and all tasks after it",
    )


# Samples the first and the last blocks of tables, and of some of their partitions (`planning.survey`).


BLOCKS = 16
"""The maximum number of blocks that are sampled at each end of a relation."""
LEAVES = 16
"""The maximum number of partitions of a table that are sampled, spread over all of them."""
_TIMEOUT = "SET LOCAL statement_timeout = '2s'"

_IS_ODD: Mapping[Family, str] = {
    Family.DATE: "NOT isfinite({0})",
    Family.DECIMAL: "{0} = 'NaN'::numeric",
    Family.TIME: "{0} = '24:00:00'::time",
    # Arrow counts microseconds from 1970 in 64 bits. The server counts from 2000, so it can store later times than
    # Arrow.
    Family.TIMESTAMP: "(NOT isfinite({0}) OR {0} > '294247-01-10 04:00:54.775807'::{1})",
}


def sample(settings: ConnectionSettings, plans: Sequence[TablePlan]) -> list[Problem]:
    """Return a problem for each column of the planned tables in which a sampled value would stop the run.

    :raises LockNotGranted: another session holds a lock that blocks readers of a table.
    """
    with session(settings) as connection, naming_blockers(settings, connection) as concerned:
        concerned += [plan.table for plan in plans]

        def samples(table: Table, columns: Sequence[ColumnType]) -> Iterator[Sequence[int]]:
            every = leaves(table)
            chosen = every[:: -(-len(every) // LEAVES)] if every else []
            try:
                for leaf in chosen:
                    with connection.transaction():
                        connection.execute(_TIMEOUT)
                        blocks = value(
                            connection, "pg_relation_size(%s::oid) / current_setting('block_size')::int8", (leaf.oid,)
                        )
                        (counted,) = query(connection, _statement(leaf, columns, blocks or 0))
                    yield counted
            except psycopg.errors.QueryCanceled:
                gave_up(table)
            except psycopg.Error as error:
                # The server can plan reads of the table only under another search_path (`users_code`). In that case,
                # the read during the run will find values that stop the run.
                if not is_unplannable(error):
                    raise
                gave_up(table, "it needs another search_path")

        tables = present_tables(connection, [plan.table for plan in plans])
        return problems_of(plans, tables, _at_risk, samples)


def _at_risk(table: Table) -> list[ColumnType]:
    if table.details["kind"] == VIEW:
        # A view has no blocks. To sample a view, the server would have to evaluate the whole view.
        return []
    return [
        column
        for column in column_types(table)
        if (column.family in _IS_ODD or column.element is not None) and column.policy == "error"
    ]


def _statement(leaf: Leaf, columns: Sequence[ColumnType], blocks: int) -> str:
    counts = [f"count(*) FILTER (WHERE {_is_odd(column)})" for column in columns]
    select = f"SELECT {', '.join(quote(column.name) for column in columns)} FROM ONLY {leaf.sql} WHERE ctid"
    # Use one SELECT for each of the two ranges. With one SELECT and an OR, the server would read all blocks.
    ends = f"{select} < '({BLOCKS},0)'::tid UNION ALL {select} >= '({max(blocks - BLOCKS, BLOCKS)},0)'::tid"
    return f"SELECT count(*), {', '.join(counts)} FROM ({ends}) AS looked_at"


def _is_odd(column: ColumnType, value: str = "") -> str:
    """Return the condition that a value is odd.

    :param value: the SQL of the value; empty: the column.
    """
    value = value or quote(column.name)
    if column.element is not None:
        bounds = f"array_ndims({value}) > 1 OR array_lower({value}, 1) <> 1"
        if column.element.family not in _IS_ODD:
            return f"({bounds})"
        odd_element = _is_odd(column.element, "element.value")
        return f"({bounds} OR EXISTS (SELECT FROM unnest({value}) AS element(value) WHERE {odd_element}))"
    zoned = "timestamptz" if getattr(column.arrow, "tz", None) else "timestamp"
    return _IS_ODD[column.family].format(value, zoned)
