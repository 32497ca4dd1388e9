"""Checks of the columns: types, keys, generated values."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.checks.context import TablesContext
from airflow_provider_cdc.sources.mysql.tables.column_problems import type_problems, virtual_problems

_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)


def _types(context: TablesContext) -> Iterable[Problem]:
    for table in context.tables:
        yield from type_problems(table)


def _virtual_columns(context: TablesContext) -> Iterable[Problem]:
    return virtual_problems(context.connection, context.tables)


COLUMNS: tuple[Check[TablesContext], ...] = (
    Check(
        "mysql.column-types",
        "Arrow can hold the type of every column, and the values of key columns distinguish rows.",
        _WHEN,
        "leave the column out (columns), change its type, set unrepresentable, or leave the table out",
        _types,
    ),
    Check(
        "mysql.virtual-columns",
        "The values of VIRTUAL columns do not depend on the session.",
        _WHEN,
        "leave the column out (columns), make it STORED, drop it, or leave the table out",
        _virtual_columns,
    ),
)
