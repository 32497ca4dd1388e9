"""Checks that the shards of a run still fit into their merged tables when its position is fixed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from airflow_provider_cdc.core.options.lake import BY_NAME, MergeOptions
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import ORIGIN, MergedColumn, Shard, Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.api.source import Source

NOT_MERGED = MergeOptions()


def with_shards(
    source: Source,
    plans: Sequence[TablePlan],
    initial: InitialPoint,
    again: Collection[TableName] = (),
    merging: MergeOptions = NOT_MERGED,
) -> InitialPoint:
    """Return the initial point, in which each shard knows its merged table.

    :param again: merged tables of which all shards are read at this position, and no earlier read of a shard counts.
        Their shards may have other columns than planned, if all of them have the same.
    :param merging: the options that the columns of ``again`` depend on.
    :raises SchemaChanged: a table was altered since it was planned, and no longer fits into its merged table.
    """
    shards = {plan.table: plan for plan in plans if plan.shard is not None}
    if not shards:
        return initial
    # These modules are imported only here, because they import Arrow, which is slow and not needed without shards.
    from airflow_provider_cdc.core.tables.published import columns_of, differences, shard_of

    found: dict[TableName, list[tuple[Table, tuple[MergedColumn, ...]]]] = {}
    for table in initial.tables:
        plan = shards.get(table.name)
        if plan is not None and plan.shard is not None:
            planned = replace(table, selection=plan.selection)
            columns = columns_of(planned, source.arrow_schema(planned)) if _has_columns(planned) else ()
            found.setdefault(plan.shard.merged, []).append((planned, columns))
    shared: dict[TableName, Shard] = {}
    for merged in again:
        tables, columns_of_shards = zip(*sorted(found[merged], key=lambda one: one[0].name), strict=True)
        by_name = merging.column_order == BY_NAME
        shared[merged] = shard_of(merged, tables, columns_of_shards, by_name=by_name)
    shards_by_table: dict[TableName, Shard] = {}
    for table, columns in chain.from_iterable(found.values()):
        shard = shards[table.name].shard
        assert shard is not None
        if (now := shared.get(shard.merged)) is not None:
            shard = replace(shard, columns=now.columns, key=now.key)
        wrong = differences(columns, table.key, shard)
        if not table.key:
            wrong.append("without a key, its rows cannot be told apart from those of other shards")
        wrong += [
            f"its column {column.name} has the name of an origin column"
            for column in shard.columns
            if shard.origin and column.name.casefold() in ORIGIN
        ]
        if wrong:
            raise SchemaChanged(
                f"it no longer fits into the merged table {shard.merged}: {'; '.join(wrong)}",
                where=str(table.name),
                hint="alter the other shards in the same way, or leave this table out, and trigger a new run",
            )
        shards_by_table[table.name] = shard
    tables_with_shards = (replace(one, shard=shards_by_table.get(one.name, one.shard)) for one in initial.tables)
    return replace(initial, tables=tuple(tables_with_shards))


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
