"""Find columns that cannot be copied because of their types, keys or generated values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.server.session import Connection
from airflow_provider_cdc.sources.mysql.tables.generated import generated_problems
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables
from airflow_provider_cdc.sources.mysql.tables.supported_types import (
    is_wide_decimal,
    leaving_out,
    unmeasured,
    unsupported,
)
from airflow_provider_cdc.sources.mysql.tables.types import unsupported_key


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
                f"set the option `unrepresentable` to `string`{'' if apart else ' or `null`'}, {otherwise}or leave "
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
