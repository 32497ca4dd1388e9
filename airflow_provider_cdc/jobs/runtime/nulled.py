"""Counts, by table and column, of values that became null because no Arrow type holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_cdc.core.run.results import Nulled
from airflow_provider_cdc.jobs.runtime.progress import say


def add_nulled(counts: Iterable[tuple[str, Mapping[str, int]]]) -> Nulled:
    """Add up the counts of each table and column. An entry of ``counts`` has the name of a table, and the counts of its
    columns."""
    total: Nulled = {}
    for table, columns in counts:
        for column, count in columns.items():
            table_total = total.setdefault(table, {})
            table_total[column] = table_total.get(column, 0) + count
    return total


def say_nulled(what: str, nulled: Nulled) -> None:
    """Print ``what`` and the counts. Without counts, print nothing."""
    for table, columns in nulled.items():
        counts = ", ".join(f"{column} {count:,}" for column, count in columns.items())
        say(f"{what}, because no Arrow type holds these values of {table}: {counts}")
