"""Checks that the shards of a run still fit into their merged tables when its position is fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_cdc.core.run.plan import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import SchemaChanged


def with_shards(source: Any, plans: Sequence[TablePlan], initial: InitialPoint) -> InitialPoint:
    """Return the initial point, in which each shard knows its merged table.

    :param source: has ``arrow_schema``, as ``sources.api.source.Source``.
    :raises SchemaChanged: a table was altered since it was planned, and no longer fits into its merged table.
    """
    shards = {plan.table: plan for plan in plans if plan.shard is not None}
    if not shards:
        return initial
    # These modules are imported only here, because they import Arrow, which is slow and not needed without shards.
    from airflow_provider_cdc.core.shards.rows import columns_of, differences

    def fitted(table: Table) -> Table:
        plan = shards.get(table.name)
        if plan is None or plan.shard is None:
            return table
        planned = replace(table, selection=plan.selection)
        columns = columns_of(planned, source.arrow_schema(planned)) if _has_columns(planned) else ()
        if found := differences(columns, table.key, plan.shard):
            raise SchemaChanged(
                f"it no longer fits into the merged table {plan.shard.merged}: {'; '.join(found)}",
                where=str(table.name),
                hint="alter the other shards in the same way, or leave this table out, and trigger a new run",
            )
        return replace(table, shard=plan.shard)

    return replace(initial, tables=tuple(map(fitted, initial.tables)))


def _has_columns(table: Table) -> bool:
    """Return whether the table has all columns of its selection."""
    return {*table.selection.columns} <= {column.name for column in table.columns}


def with_merged_names(plans: Sequence[TablePlan], refused: Mapping[str, str]) -> dict[str, str]:
    """Return ``refused`` with the merged tables of the shards that are left out, each with the reason."""
    merged = {
        str(plan.shard.merged): f"its shard {plan.table}: {refused[str(plan.table)]}"
        for plan in plans
        if plan.shard is not None and str(plan.table) in refused
    }
    return {**refused, **merged}
