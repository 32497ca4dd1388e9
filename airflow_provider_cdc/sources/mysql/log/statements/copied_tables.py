"""Facts about the copied tables, used to recognize statements that change no row of these tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames
from airflow_provider_cdc.sources.mysql.tables.declarations import parse
from airflow_provider_cdc.sources.mysql.tables.partitions import has_known_engine, has_rows_in_partitions_only
from airflow_provider_cdc.sources.mysql.tables.schema import may_lack_partitions

_DATES = frozenset(["date", "datetime", "timestamp"])


def names_of(tables: Sequence[Table], others: Iterable[TableName] = ()) -> TrackedNames:
    """Return the names of the copied tables and of ``others``. For ``others``, no facts are known except the names."""
    return TrackedNames(
        [*(table.name for table in tables), *others],
        {table.name: table.key_index for table in tables},
        recomputed=[table.name for table in tables if is_recomputed(table)],
        known_engines=[table.name for table in tables if has_known_engine(table)],
        in_partitions=[table.name for table in tables if has_rows_in_partitions_only(table)],
        may_lack_partitions=[table.name for table in tables if may_lack_partitions(table)],
    )


def is_recomputed(table: Table) -> bool:
    """Return whether published values may change when the server copies the table row by row."""
    return any(
        column.details.get("generated") == "stored"
        # Only the policy ``string`` publishes dates that are not in the calendar. With any other policy, it does not
        # matter whether the server replaces dates that are not in the calendar.
        or (table.options.unrepresentable == "string" and getattr(parse(column.type), "name", "") in _DATES)
        for column in table.columns
    )
