"""Code for sampling a limited number of rows before a run, to find values that no Arrow type holds.

With the policy ``error``, a single such value stops a run, possibly after a read that took hours. Most tables with such
values have them among their oldest or newest rows, so each source reads some of these rows (in its module ``sample``).
The sample proves nothing about the other rows. They are checked when they are read.
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
    """Return a problem for each column whose sample has values that no Arrow type holds.

    :param tables: the current definitions of the tables of ``plans``.
    :param at_risk: a function that returns the columns of a table that may have such values and whose values would stop
        the run.
    :param looks: a function that reads samples of a table. A sample consists of the number of rows and, for each
        column, the number of odd values.
    :param always: whether such values of a column stop the run under every policy.
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
    """Log that the sample of a table was not completed. The values that were found until then still count."""
    _log.info("%s: stopped checking a sample of the table's rows before the run: %s", table.name, why)


def _problem(table: Table, column: str, count: int, rows: int, always: bool) -> Problem:
    policy = (
        ""
        if always
        else f"set the option `unrepresentable` to `string`{'' if table.identifies(column) else ' or `null`'}; "
    )
    return Problem(
        f"{table.name}.{column}",
        f"no Arrow type holds the column's value in {count:,} of the {counted(rows, 'row')} sampled",
        f"{policy}correct these rows; leave the table out; or set the option `on_table_error` to `skip`",
        str(table.name),
    )
