"""A bounded look at rows, before a run, for values that no Arrow type holds.

With the policy ``error`` one such value stops a run, at the end of a read that may have taken hours. Most tables that
have any have them among their oldest or newest rows. So the first and the last blocks are looked at: it proves nothing
of the others, which are looked at when they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import psycopg

from airflow_provider_cdc.core.plan import TablePlan
from airflow_provider_cdc.core.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.odd_values import seen_problem
from airflow_provider_cdc.sources.postgres.schema import Leaf, leaves, read_tables
from airflow_provider_cdc.sources.postgres.session import Connection, query, quote, session, value
from airflow_provider_cdc.sources.postgres.types import ColumnType, Family, column_types

BLOCKS = 16
"""At most so many at either end of a relation."""
LEAVES = 16
"""At most so many partitions of a table, spread over all of them."""
_TIMEOUT = "SET LOCAL statement_timeout = '2s'"

_IS_ODD: Mapping[Family, str] = {
    Family.DATE: "NOT isfinite({0})",
    Family.DECIMAL: "{0} = 'NaN'::numeric",
    Family.TIME: "{0} = '24:00:00'::time",
    # Arrow counts microseconds from 1970 in 64 bits, the server from 2000.
    Family.TIMESTAMP: "(NOT isfinite({0}) OR {0} > '294247-01-10 04:00:54.775807'::{1})",
}

_log = logging.getLogger(__name__)


def sample(settings: ConnectionSettings, plans: Sequence[TablePlan]) -> list[Problem]:
    """A problem for each column of the planned tables that would stop the run, for all that this look shows."""
    with session(settings) as connection:
        tables = read_tables(connection, [plan.table for plan in plans])
        return [
            problem
            for plan, table in zip(plans, tables, strict=True)
            for problem in _problems(connection, replace(table, options=plan.options))
        ]


def _problems(connection: Connection, table: Table) -> Iterable[Problem]:
    columns = [column for column in column_types(table) if column.family in _IS_ODD and column.policy == "error"]
    if not columns:
        return
    every = leaves(table)
    chosen = every[:: -(-len(every) // LEAVES)] if every else []
    seen, totals = 0, [0] * len(columns)
    try:
        for leaf in chosen:
            with connection.transaction():
                connection.execute(_TIMEOUT)
                blocks = value(
                    connection, "pg_relation_size(%s::oid) / current_setting('block_size')::int8", (leaf.oid,)
                )
                ((rows, *counts),) = query(connection, _statement(leaf, columns, blocks or 0))
            seen += rows
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
    except psycopg.errors.QueryCanceled:
        _log.info("%s: the look at some of its rows took too long and was given up", table.name)
    for column, count in zip(columns, totals, strict=True):
        if count:
            yield seen_problem(table, column.name, count, seen)


def _statement(leaf: Leaf, columns: Sequence[ColumnType], blocks: int) -> str:
    counts = [f"count(*) FILTER (WHERE {_is_odd(column)})" for column in columns]
    select = f"SELECT {', '.join(quote(column.name) for column in columns)} FROM ONLY {leaf.sql} WHERE ctid"
    # Two ranges, and not one condition: only a range is found without a look at all the rest.
    ends = f"{select} < '({BLOCKS},0)'::tid UNION ALL {select} >= '({max(blocks - BLOCKS, BLOCKS)},0)'::tid"
    return f"SELECT count(*), {', '.join(counts)} FROM ({ends}) AS looked_at"


def _is_odd(column: ColumnType) -> str:
    zoned = "timestamptz" if getattr(column.arrow, "tz", None) else "timestamp"
    return _IS_ODD[column.family].format(quote(column.name), zoned)
