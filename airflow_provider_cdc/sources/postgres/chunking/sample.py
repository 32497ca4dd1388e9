"""Samples the first and the last blocks of tables, and of some of their partitions (`planning.survey`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import psycopg

from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.planning.survey import gave_up, problems_of
from airflow_provider_cdc.sources.postgres.catalog.schema import Leaf, leaves, present_tables
from airflow_provider_cdc.sources.postgres.catalog.types import ColumnType, Family, column_types
from airflow_provider_cdc.sources.postgres.catalog.users_code import is_unplannable
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import VIEW
from airflow_provider_cdc.sources.postgres.server.server import naming_blockers
from airflow_provider_cdc.sources.postgres.server.session import query, quote, session, value

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

        def looks(table: Table, columns: Sequence[ColumnType]) -> Iterator[Sequence[int]]:
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
        return problems_of(plans, tables, _at_risk, looks)


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
