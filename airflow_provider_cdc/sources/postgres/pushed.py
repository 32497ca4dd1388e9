"""The part of a condition that PostgreSQL evaluates (`sources.pushdown`): whole numbers, decimals and times."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa

from airflow_provider_cdc.core.condition import Literal
from airflow_provider_cdc.core.condition_values import value_of
from airflow_provider_cdc.core.table import Table
from airflow_provider_cdc.sources.postgres.types import ColumnType, Family, column_types, quote
from airflow_provider_cdc.sources.pushdown import Pushable, pushed

_FAMILIES = {Family.INTEGER: False, Family.DECIMAL: True, Family.DATE: True, Family.TIMESTAMP: True}
"""Whether columns of these families may hold values that no Arrow type holds."""


def pushed_condition(table: Table) -> str:
    """What the server is asked for; empty: all rows. Operators are those of ``pg_catalog``, as sessions look there."""
    known = {column.name: column for column in column_types(table)}
    return pushed(table.selection.where, lambda name: _pushable(known[name]))


def _pushable(column: ColumnType) -> Pushable | None:
    if column.family not in _FAMILIES:
        return None

    def spelt(literal: Literal) -> str:
        return _spelt(column.arrow, literal)

    return Pushable(quote(column.name), spelt, _FAMILIES[column.family], column.stored_nulls)


def _spelt(kind: pa.DataType, literal: Literal) -> str:
    value = value_of(literal, kind).as_py()
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
