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

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import pairwise
from typing import Any

import psycopg

from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.postgres.catalog.schema import Leaf
from airflow_provider_cdc.sources.postgres.catalog.users_code import INDEXES_BY_USERS, is_unplannable
from airflow_provider_cdc.sources.postgres.chunking.pushed_conditions import pushed_condition, pushed_span, spelt_value
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote

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
    look = f"SELECT {key}::text FROM ONLY {leaf.sql} AS t WHERE {' AND '.join(ends)} ORDER BY {key}"
    ((low, high),) = query(connection, f"SELECT ({look} ASC LIMIT 1), ({look} DESC LIMIT 1)")
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
