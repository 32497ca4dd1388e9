"""What it takes to know of copied tables to tell which statements change none of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames
from airflow_provider_cdc.sources.mysql.tables.declarations import parse
from airflow_provider_cdc.sources.mysql.tables.partitions import has_known_engine, has_rows_in_partitions_only
from airflow_provider_cdc.sources.mysql.tables.schema import may_lack_partitions

_DATES = frozenset(["date", "datetime", "timestamp"])


def names_of(tables: Sequence[Table], others: Iterable[TableName] = ()) -> TrackedNames:
    """The names of copied tables and of ``others``, of which nothing else is known."""
    return TrackedNames(
        [*(table.name for table in tables), *others],
        {table.name: table.key_index for table in tables},
        recomputed=[table.name for table in tables if is_recomputed(table)],
        known_engines=[table.name for table in tables if has_known_engine(table)],
        in_partitions=[table.name for table in tables if has_rows_in_partitions_only(table)],
        may_lack_partitions=[table.name for table in tables if may_lack_partitions(table)],
    )


def is_recomputed(table: Table) -> bool:
    """Whether published values may become others when the server copies the table row by row."""
    return any(
        column.details.get("generated") == "stored"
        # Otherwise a date that no calendar has is published as no value at all, whichever it is.
        or (table.options.unrepresentable == "string" and getattr(parse(column.type), "name", "") in _DATES)
        for column in table.columns
    )
