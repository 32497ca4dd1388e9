"""Chunks of a leaf of which a condition leaves little to be copied: ranges of the key, which an index leads to.

Whether one does, and to how many rows, is what the server's planner says. It decides only how the leaf is cut: should
the server go another way when it reads, it sends the same rows. Of columns that nobody has analyzed (a leaf was just
loaded, or the server upgraded) it knows nothing, and takes 1 in 200 for any range of values: one chunk could be all of
the leaf. So that is cut into blocks.

Cut are whole numbers, dates and times, of which this package and the server mean the same order. The bounds increase,
and the range before the first and the one after the last have no end. Where the condition bounds the key, it is not
true of a null: so each row that may be copied lies in one range.
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
"""From a value of the key's first column (included) up to another one (excluded), None: without an end; and about how
many rows are in it."""

_THROUGH_INDEX = {"Index Scan", "Bitmap Heap Scan", "Bitmap Index Scan", "BitmapAnd", "BitmapOr"}


def ranges(connection: Connection, table: Table, leaf: Leaf, chunk_rows: int) -> list[Range]:
    """Ranges of about ``chunk_rows`` rows each, of those that the server is asked for; empty: it would look at the
    blocks in any case, or they cannot be cut."""
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
    """What a chunk's condition goes on with, for keys from ``least`` up to before ``beyond``; each empty or a value."""
    conditions = [
        f" AND {_key(table)} OPERATOR(pg_catalog.{sign}) {_spelt(*bound)}"
        for sign, bound in ((">=", least), ("<", beyond))
        if bound
    ]
    return "".join(conditions)


def _key(table: Table) -> str:
    return quote(table.key[0])


def _spelt(bound: KeyValue) -> str:
    if isinstance(bound, int):
        return spelt_value(bound)
    text = str(bound)
    return spelt_value(datetime.fromisoformat(text) if " " in text else date.fromisoformat(text))


def _analyzed(connection: Connection, table: Table, leaf: Leaf, pushed: str) -> bool:
    """Whether the server has statistics of all columns that it is asked to look at."""
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
    """Whether indexes of the leaf are left alone when it is read (`users_code.NO_INDEX`)."""
    return bool(query(connection, INDEXES_BY_USERS.format(leaf.oid)) != [("0",)])


def _through_index(connection: Connection, leaf: Leaf, pushed: str) -> int | None:
    """About how many rows of a leaf the server would send, if it would find them through an index."""
    sql = f"SELECT FROM ONLY {leaf.sql} WHERE ctid >= '(0,0)'::tid AND ({pushed})"
    try:
        (((plan,),),) = query(connection, f"EXPLAIN (FORMAT JSON) {sql}")
    except psycopg.Error as error:
        if not is_unplannable(error):
            raise
        # It is read under another path, and then nothing is asked of the server but blocks.
        return None
    return max(1, int(plan["Plan"]["Plan Rows"])) if {*_nodes(plan["Plan"])} <= _THROUGH_INDEX else None


def _nodes(plan: Mapping[str, Any]) -> Iterator[str]:
    yield plan["Node Type"]
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _ends(connection: Connection, table: Table, leaf: Leaf) -> tuple[Any, Any]:
    """The least and the greatest key that is there, as far as the condition bounds it; None: it does not, there is
    none, or it is of a type that is not cut."""
    least, greatest = pushed_span(table)
    known_end = greatest if least is None else least
    if not isinstance(known_end, int | date):
        return None, None
    # Qualified: ORDER BY would take a plain name for the text that is selected.
    key = f"t.{_key(table)}"
    ends = [f"{key} {sign} {spelt_value(end)}" for sign, end in ((">=", least), ("<=", greatest)) if end is not None]
    look = f"SELECT {key}::text FROM ONLY {leaf.sql} AS t WHERE {' AND '.join(ends)} ORDER BY {key}"
    ((low, high),) = query(connection, f"SELECT ({look} ASC LIMIT 1), ({look} DESC LIMIT 1)")
    read = int if isinstance(known_end, int) else type(known_end).fromisoformat
    try:
        return read(low), read(high)
    except (TypeError, ValueError):
        # None is there, or one that Python has no value for.
        return None, None


def _cuts(low: Any, high: Any, pieces: int) -> list[int | str]:
    """Values above ``low`` and up to ``high``, ascending, at most one less than pieces."""
    if low is None or high is None:
        return []
    # Of numbers, dates and times alike.
    points = dict.fromkeys(low + (high - low) * piece // pieces for piece in range(1, pieces))
    return [
        point if isinstance(point, int) else point.isoformat(*_form(point)) for point in points if low < point <= high
    ]


def _form(value: date) -> tuple[str, ...]:
    return (" ", "microseconds") if isinstance(value, datetime) else ()
