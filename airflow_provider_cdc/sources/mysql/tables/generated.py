"""VIRTUAL columns: whether every session sees the same value.

The server computes a virtual column at each read, with the settings of the session that reads. The log holds what the
writer's session computed, the result of a SELECT what this package's session computed. Where the two may differ, a row
that the rewind puts back would not have the value that the rows around it have. Time zones are the common cause
(``DATE(ts)`` of a TIMESTAMP), but also ``sql_mode`` (what text is a date, how long a CHAR is, what a backslash is),
``lc_time_names``, ``div_precision_increment``, and the collation of the connection.

So an expression is allowed only if all that it is made of is known to mean the same in every session
(``virtual.session_independence``); what is not known does not pass. A STORED column is one value, computed once: the
log and a SELECT show the same. A column that a run does not read (``columns``) may have any expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.tables.virtual.functions import NUMBERS_AND_DATES
from airflow_provider_cdc.sources.mysql.tables.virtual.grammar import Node, NotUnderstood, parse
from airflow_provider_cdc.sources.mysql.tables.virtual.session_independence import Judge


def has_bounded_results(expression: str) -> bool:
    """Whether all that an expression is made of gives numbers, dates, and texts no longer than the stored ones: results
    that ``max_allowed_packet`` cannot leave out.

    :param expression: as the information schema has it.
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
    """The virtual columns of ``table`` that cannot be copied.

    :param expressions: of each generated column, as the information schema has it.
    """
    published = set(table.published_columns)

    def odd(used: Column) -> bool:
        # With the policy `error` a row stops the run if a published date of it is none of the calendar's.
        return table.options.unrepresentable != "error" or used.name not in published

    judge = Judge({one.name: one for one in table.columns}, expressions, odd)
    for column in table.as_read.columns:
        if column.details.get("generated") != "virtual":
            continue
        reason = judge.dependent(column)
        if reason is not None:
            yield Problem(
                f"{table.name}.{column.name}",
                f"its value is VIRTUAL and may differ between sessions: {reason}",
                "leave the column out (columns), make it STORED, drop it, or leave the table out",
                str(table.name),
            )
