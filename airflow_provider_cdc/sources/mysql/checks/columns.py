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
        "Arrow can represent the type of every column. Different rows have different published key values.",
        _WHEN,
        "leave the column out with the option `columns`, change the column's type, set the option `unrepresentable`, "
        "or leave the table out",
        _types,
    ),
    Check(
        "mysql.virtual-columns",
        "The values of VIRTUAL columns do not depend on the session.",
        _WHEN,
        "leave the column out with the option `columns`, make the column STORED, drop the column, or leave the table "
        "out",
        _virtual_columns,
    ),
)
