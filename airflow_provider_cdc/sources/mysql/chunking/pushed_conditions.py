"""The part of a condition that MySQL can evaluate (`sources.planning.pushdown`). Only comparisons of integers,
decimals, dates and times are evaluated by MySQL."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.filters.literals import value_of
from airflow_provider_cdc.core.filters.syntax import Literal
from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.mysql.server.session import quote
from airflow_provider_cdc.sources.mysql.tables.schema import unsigned_difference
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, column_types
from airflow_provider_cdc.sources.planning.pushdown import Pushable, pushed, span

_MOMENTS = (Family.DATE, Family.DATETIME, Family.TIMESTAMP)
_FIRST, _LAST = datetime(1970, 1, 2), datetime(2038, 1, 18)
"""TIMESTAMP literals are pushed down only between these limits, which are inside the limits of the type. This package
does not rely on the server's conversion of literals near the limits of the type."""


def pushed_condition(table: Table) -> str:
    """Return the condition that the server evaluates. Empty: the server sends all rows. Sessions use the time zone
    UTC."""
    if unsigned_difference(table):
        return ""
    types_by_name = {column.name: column for column in column_types(table)}
    return pushed(table.selection.where, lambda name: _pushable(types_by_name[name]))


def pushed_span(table: Table) -> tuple[KeyValue | None, KeyValue | None]:
    """Return the least and the greatest value of the key's first column that the pushed condition allows, in the form
    of chunk bounds. None: the condition has no limit on this side, or the limit is unknown. Use the result only for
    estimates."""
    if table.keyless or table.selection.where is None:
        return None, None
    (column,) = (column for column in column_types(table) if column.name == table.key[0])
    if _pushable(column) is None:
        return None, None

    def value(literal: Literal) -> Any:
        return None if _spelt(column, literal) is None else value_of(literal, column.arrow).as_py()

    least, greatest = span(table.selection.where, column.name, value)
    return _bound(least), _bound(greatest)


def _bound(value: Any) -> KeyValue | None:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return value.isoformat() if isinstance(value, date) else value


def _pushable(column: ColumnType) -> Pushable | None:
    if column.family in _MOMENTS and not pa.types.is_string(column.arrow):
        odd = True
    elif column.family is Family.DECIMAL or pa.types.is_integer(column.arrow):
        odd = False
    else:
        return None
    # The server interprets a YEAR of two digits as another year, and treats a BIT as a string in some contexts.
    if column.family in (Family.YEAR, Family.BITS):
        return None
    return Pushable(quote(column.name), partial(_spelt, column), odd, column.nullable)


def _spelt(column: ColumnType, literal: Literal) -> str | None:
    value = value_of(literal, column.arrow).as_py()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime):
        plain = value.replace(tzinfo=None)
        if column.family is Family.TIMESTAMP and not _FIRST <= plain <= _LAST:
            return None
        if plain.microsecond % 10 ** (6 - column.scale):
            # Do not rely on the rounding of the server.
            return None
        return f"TIMESTAMP'{plain.isoformat(' ', 'microseconds')}'"
    assert isinstance(value, date)
    return f"DATE'{value.isoformat()}'"
