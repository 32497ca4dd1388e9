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

from collections.abc import Iterable, Mapping

from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import Problem
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
                "leave the column out with the option `columns`, make the column STORED, drop the column, or leave "
                "the table out",
                str(table.name),
            )
