"""Builds the part of a condition that PostgreSQL evaluates (`planning.selections`). This part contains only comparisons
of whole numbers, decimals, dates and times."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from airflow_provider_cdc.core.filters.evaluator import value_of
from airflow_provider_cdc.core.filters.parser import Literal
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.planning.selections import Pushable, pushed, span
from airflow_provider_cdc.sources.postgres.catalog.types import ColumnType, Family, column_types
from airflow_provider_cdc.sources.postgres.server.session import quote

_FAMILIES = {Family.INTEGER: False, Family.DECIMAL: True, Family.DATE: True, Family.TIMESTAMP: True}
"""For each family of columns, whether the columns may have values that the Arrow type cannot represent."""


def pushed_condition(table: Table, *, qualified: bool = False) -> str:
    """Return the condition that the server evaluates. Empty: the server must send all rows.

    The condition uses the operators in ``pg_catalog``. Sessions look up names there by default.

    :param qualified: qualify the operators with ``pg_catalog``, for sessions that also look up names in other schemas.
    """
    types_by_name = {column.name: column for column in column_types(table)}
    return pushed(table.selection.where, lambda name: _pushable(types_by_name[name], qualified))


def pushed_span(table: Table) -> tuple[Any, Any]:
    """Return bounds for the key's first column in the rows that fulfil the pushed-down condition.

    The lower or the upper bound is None if it is not known. The bounds may be used only for estimates.
    """
    if table.keyless or table.selection.where is None:
        return None, None
    (column,) = (column for column in column_types(table) if column.name == table.key[0])
    if _pushable(column) is None:
        return None, None
    return span(table.selection.where, column.name, lambda literal: value_of(literal, column.arrow).as_py())


def _pushable(column: ColumnType, qualified: bool = False) -> Pushable | None:
    if column.family not in _FAMILIES or column.value != quote(column.name):
        return None

    def spelt(literal: Literal) -> str:
        return spelt_value(value_of(literal, column.arrow).as_py())

    schema = "pg_catalog" if qualified else ""
    return Pushable(quote(column.name), spelt, _FAMILIES[column.family], column.stored_nulls, schema)


def spelt_value(value: Any) -> str:
    """Return a value of a pushed-down column in SQL."""
    if isinstance(value, Decimal):
        return f"numeric '{value:f}'"
    if isinstance(value, int):
        return f"int8 '{value}'"
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return f"timestamptz '{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}+00'"
        return f"timestamp '{value.isoformat(' ', 'microseconds')}'"
    assert isinstance(value, date)
    return f"date '{value.isoformat()}'"
