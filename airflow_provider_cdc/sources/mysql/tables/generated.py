"""Check whether every session sees the same values of VIRTUAL columns.

The server computes a virtual column at each read, with the settings of the reading session. The log contains the value
that the writer's session computed. The result of a SELECT contains the value that this package's session computed. If
the two values differ, a row that the rewind restores is inconsistent with the rows around it. The most common cause is
the time zone (``DATE(ts)`` of a TIMESTAMP). Other causes are ``sql_mode`` (it decides which texts are dates, how long a
CHAR is, and what a backslash means), ``lc_time_names``, ``div_precision_increment``, and the collation of the
connection.

So an expression is allowed only if all of its parts are known to mean the same in every session
(``virtual.session_independence``). Unknown parts are rejected. A STORED column is computed once and stored, so the log
and a SELECT show the same value. A column that a run does not read (``columns``) may have any expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.server.session import Connection
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables
from airflow_provider_cdc.sources.mysql.tables.types import (
    is_wide_decimal,
    leaving_out,
    unmeasured,
    unsupported,
    unsupported_key,
)
from airflow_provider_cdc.sources.mysql.tables.virtual.functions import NUMBERS_AND_DATES
from airflow_provider_cdc.sources.mysql.tables.virtual.grammar import Node, NotUnderstood, parse
from airflow_provider_cdc.sources.mysql.tables.virtual.session_independence import Judge


def has_bounded_results(expression: str) -> bool:
    """Whether all parts of an expression return numbers, dates, or texts that are at most as long as a stored value.

    For such an expression, the server never returns NULL because a result is longer than ``max_allowed_packet``.

    :param expression: the expression as the information schema shows it.
    """
    try:
        return _is_bounded(parse(expression))
    except NotUnderstood:
        return False


def _is_bounded(node: Node) -> bool:
    if node.kind == "call" and node.name == "cast":
        bounded = not node.note.startswith(("char", "nchar", "binary", "json"))
    else:
        bounded = node.kind != "call" or node.name in NUMBERS_AND_DATES or node.name.startswith("interval ")
    return bounded and all(map(_is_bounded, node.arguments))


def generated_problems(table: Table, expressions: Mapping[str, str]) -> Iterable[Problem]:
    """Yield the virtual columns of ``table`` that cannot be copied.

    :param expressions: the expression of each generated column, as the information schema shows it.
    """
    published = set(table.published_columns)

    def odd(used: Column) -> bool:
        # With the policy `error`, a row stops the run if one of its published dates does not exist in the calendar.
        return table.options.unrepresentable != "error" or used.name not in published

    judge = Judge({one.name: one for one in table.columns}, expressions, odd)
    for column in table.as_read.columns:
        if column.details.get("generated") != "virtual":
            continue
        reason = judge.dependent(column)
        if reason is not None:
            yield Problem(
                f"{table.name}.{column.name}",
                f"the column is VIRTUAL, and its value may differ between sessions: {reason}",
                "leave the column out with `Table.columns`, make the column STORED, drop the column, or leave "
                "the table out",
                str(table.name),
            )


# Find columns that cannot be copied because of their types, keys or generated values.


def type_problems(table: Table) -> Iterable[Problem]:
    """Yield the columns of ``table`` with types that cannot be copied.

    If a column is not read, the reader must still be able to skip the values of this column in row images.
    """
    where, policy = str(table.name), table.options.unrepresentable
    read = {column.name for column in table.as_read.columns}
    for column in table.columns:
        if column.name not in read:
            if (reason := unmeasured(column)) is not None:
                yield Problem(f"{where}.{column.name}", reason, "change its type, or leave the table out", where)
            continue
        apart = table.identifies(column.name)
        reason = unsupported(column, apart, policy)
        otherwise = leaving_out(table, column.name)
        hint = f"{otherwise}change the column's type, or leave the table out"
        if reason is not None and is_wide_decimal(column):
            hint = (
                f"set `On.unrepresentable` to `string`{'' if apart else ' or `null`'}, {otherwise}or leave "
                "the table out"
            )
        if reason is None and column.name in table.key:
            reason = unsupported_key(column, policy)
        if reason is not None:
            yield Problem(f"{where}.{column.name}", reason, hint, where)


def virtual_problems(connection: Connection, tables: Sequence[Table]) -> Iterable[Problem]:
    """Yield the VIRTUAL columns whose values may differ between sessions."""
    virtual = [table for table in tables if any(one.details.get("generated") == "virtual" for one in table.columns)]
    expressions: dict[TableName, dict[str, str]] = {table.name: {} for table in virtual}
    for schema, name, column, expression in select_of_tables(
        connection, list(expressions), "COLUMN_NAME, GENERATION_EXPRESSION", "COLUMNS"
    ):
        expressions[TableName(schema, name)][column] = expression
    for table in virtual:
        yield from generated_problems(table, expressions[table.name])
