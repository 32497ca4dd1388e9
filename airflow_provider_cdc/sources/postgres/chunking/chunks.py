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

from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import CopyMismatch
from airflow_provider_cdc.sources.postgres.catalog.schema import Leaf, leaves
from airflow_provider_cdc.sources.postgres.catalog.views.view_definitions import VIEW
from airflow_provider_cdc.sources.postgres.chunking import key_ranges, value_ranges
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

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
    if by_value := value_ranges.value_chunks(connection, table, table_leaves, chunk_rows):
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
            return leaf, value_ranges.condition(chunk.within)
        if leaf.oid == oid:
            # Operators are qualified, because the search_path of the read may contain users' schemas (`users_code`).
            condition = f"ctid OPERATOR(pg_catalog.>=) '({start},0)'::pg_catalog.tid"
            if upper is not None and len(upper) == 2:
                condition += f" AND ctid OPERATOR(pg_catalog.<) '({int(upper[1])},0)'::pg_catalog.tid"
            beyond = upper[2:] if upper is not None else ()
            return leaf, condition + key_ranges.condition(table, lower[2:], beyond)
    raise CopyMismatch(
        f"the table has no partition with the OID {oid}",
        where=f"{table.name}, {chunk}",
        hint="clear the task `lock_and_record` and all tasks after it",
    )
