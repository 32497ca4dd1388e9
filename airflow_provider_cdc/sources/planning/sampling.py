"""A bounded look at rows, before a run, for values that no Arrow type holds.

With the policy ``error`` one such value stops a run, at the end of a read that may have taken hours. Most tables that
have any have them among their oldest or newest rows, so each source looks at some of those (its module ``sample``). It
proves nothing about the other rows, which are looked at when they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import Problem

_log = logging.getLogger(__name__)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Column = TypeVar("_Column", bound=_Named)


def problems_of(
    plans: Sequence[TablePlan],
    tables: Sequence[Table],
    at_risk: Callable[[Table], Sequence[_Column]],
    looks: Callable[[Table, Sequence[_Column]], Iterator[Sequence[int]]],
    always: Callable[[Table, _Column], bool] = lambda table, column: False,
) -> list[Problem]:
    """A problem for each column that has such values among the rows that were looked at.

    :param tables: those of ``plans``, as they are now.
    :param at_risk: the columns of a table that may have such values, and would stop the run.
    :param looks: looks at some rows of a table: each time, how many rows, and how many odd values in each column.
    :param always: whether such values of the column stop the run whatever the policy is.
    """
    problems: list[Problem] = []
    for plan, now in zip(plans, tables, strict=True):
        table = replace(now, options=plan.options)
        columns = at_risk(table)
        if not columns:
            continue
        rows_seen, totals = 0, [0] * len(columns)
        for rows, *counts in looks(table, columns):
            rows_seen += rows
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
        problems += [
            _problem(table, column.name, count, rows_seen, always(table, column))
            for column, count in zip(columns, totals, strict=True)
            if count
        ]
    return problems


def gave_up(table: Table, why: str = "it took too long") -> None:
    """Note that a look did not come to its end; what it found before counts."""
    _log.info("%s: looking at some of its rows beforehand was given up: %s", table.name, why)


def _problem(table: Table, column: str, count: int, rows: int, always: bool) -> Problem:
    policy = "" if always else f"set unrepresentable to string{'' if table.identifies(column) else ', or to null'}; "
    return Problem(
        f"{table.name}.{column}",
        f"no Arrow type holds its value in {count:,} of the {counted(rows, 'row')} looked at",
        f"{policy}correct these rows; leave the table out; or set on_table_error to skip",
        str(table.name),
    )
