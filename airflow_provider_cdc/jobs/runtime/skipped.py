"""Handles tables and values that a step leaves out, because it finds during the run that they cannot be copied."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_provider_cdc.core.run.results import Nulled
from airflow_provider_cdc.errors import CdcError, TableUnreadable, ValueNotRepresentable
from airflow_provider_cdc.jobs.runtime.progress import log

TABLE_ERRORS = (ValueNotRepresentable, TableUnreadable)
"""The errors because of which a table may be skipped."""


def reason(error: CdcError) -> str:
    """Return the reason why a table is skipped, in one line."""
    return f"{error.where}: {error.message}" if error.where else error.message


def table_of(error: ValueNotRepresentable, names: Iterable[str]) -> str | None:
    """Return the table that an error names; None: the error matches none of ``names``, or several of them."""
    fitting = [name for name in names if error.where == name or error.where.startswith(f"{name}.")]
    return fitting[0] if len(fitting) == 1 else None


def check_some_left(copied: Collection[str], skipped: Mapping[str, str]) -> None:
    """Check that at least one table is left to publish.

    :raises ValueNotRepresentable: all tables would be skipped.
    """
    if not copied:
        raise ValueNotRepresentable(
            f"none of the tables can be copied: {'; '.join(skipped.values())}",
            where=", ".join(sorted(skipped)),
            hint="repair the tables, correct the rows, or set `On.unrepresentable` to `string`",
        )


def log_skipped(skipped: Mapping[str, str]) -> None:
    """Print a warning for each table that is left out."""
    for name, why in sorted(skipped.items()):
        log(f"WARNING: {name} is SKIPPED and will not be published: {why}")


def add_nulled(counts: Iterable[tuple[str, Mapping[str, int]]]) -> Nulled:
    """Add up the counts of each table and column. An entry of ``counts`` has the name of a table, and the counts of its
    columns."""
    total: Nulled = {}
    for table, columns in counts:
        for column, count in columns.items():
            table_total = total.setdefault(table, {})
            table_total[column] = table_total.get(column, 0) + count
    return total


def log_nulled(what: str, nulled: Nulled) -> None:
    """Print ``what`` and the counts. Without counts, print nothing."""
    for table, columns in nulled.items():
        counts = ", ".join(f"{column} {count:,}" for column, count in columns.items())
        log(f"{what}, because no Arrow type holds these values of {table}: {counts}")
