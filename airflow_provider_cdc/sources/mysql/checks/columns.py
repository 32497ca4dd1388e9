"""The columns of the tables: types, keys, values that are computed."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import TablesContext
from airflow_provider_cdc.sources.mysql.tables.generated import generated_problems
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables
from airflow_provider_cdc.sources.mysql.tables.types import is_wide_decimal, unsupported, unsupported_key

_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)

# With these in their labels columns show '?' there instead: the server's catalog has no characters beyond U+FFFF.
_BEYOND_THE_CATALOG = frozenset({"gb18030", "utf16", "utf16le", "utf32", "utf8mb4"})


def _types(context: TablesContext) -> Iterable[Problem]:
    for table in context.tables:
        where, policy = str(table.name), table.options.unrepresentable
        for column in table.columns:
            apart = table.identifies(column.name)
            reason = unsupported(column, apart, policy)
            hint = "change the column's type, or leave the table out"
            if reason is not None and is_wide_decimal(column):
                hint = f"set unrepresentable to string{'' if apart else ' or null'}, or leave the table out"
            if reason is None and column.name in table.key:
                reason = unsupported_key(column, policy)
            if reason is None and _has_hidden_labels(column.type, str(column.details.get("charset"))):
                reason = "a member of its type has a '?', which is also what the server shows for rarer characters"
            if reason is not None:
                yield Problem(f"{where}.{column.name}", reason, hint, where)


def _has_hidden_labels(column_type: str, charset: str) -> bool:
    return column_type.startswith(("enum", "set")) and "?" in column_type and charset in _BEYOND_THE_CATALOG


def _virtual_columns(context: TablesContext) -> Iterable[Problem]:
    virtual = [
        table for table in context.tables if any(one.details.get("generated") == "virtual" for one in table.columns)
    ]
    expressions: dict[TableName, dict[str, str]] = {table.name: {} for table in virtual}
    for schema, name, column, expression in select_of_tables(
        context.connection, list(expressions), "COLUMN_NAME, GENERATION_EXPRESSION", "COLUMNS"
    ):
        expressions[TableName(schema, name)][column] = expression
    for table in virtual:
        yield from generated_problems(table, expressions[table.name])


COLUMNS: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.column-types",
        "Every column has a type that Arrow holds, and key columns one whose values tell rows apart.",
        _WHEN,
        "change the column's type, set unrepresentable, or leave the table out",
        _types,
    ),
    Check(
        "mysql.virtual-columns",
        "The values of VIRTUAL columns do not depend on the session.",
        _WHEN,
        "make the column STORED, drop it, or leave the table out",
        _virtual_columns,
    ),
)
