"""Prepares a lake for the tables of a run, and decides which tables the run leaves out because of the lake."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

from airflow_provider_cdc.core.options.lake import BY_NAME, MergeOptions
from airflow_provider_cdc.core.run.commit_record import published_run
from airflow_provider_cdc.core.run.manifest import PLAIN_PARQUET, InitialPoint, LakeFormat, Place, RunTable, TablePlan
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.published import published_schema
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import ORIGIN, PLAIN, Layout, MergedColumn, Shard, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError, SchemaChanged
from airflow_provider_cdc.sinks.base import Prepared, Sink
from airflow_provider_cdc.sources.api.source import Source


def lake_format(
    name: str, sink: Sink, run_id: str, source: Source, layouts: Mapping[TableName, Layout] = MappingProxyType({})
) -> LakeFormat:
    """Return the format in which a run of ``source`` publishes with ``sink``.

    :param layouts: the layouts of the tables that have one.
    """

    if name == PLAIN_PARQUET.name:
        return PLAIN_PARQUET

    def prepare(
        tables: Sequence[Table], selections: Mapping[TableName, Selection], bases: Mapping[TableName, Place]
    ) -> dict[TableName, Place]:
        selected = [replace(table, selection=selections[table.name]) for table in tables]
        # The shards of a merged table share one table of the lake. Shards that are read in full have no base.
        of_copies = {table.copy_name: bases[table.name] for table in selected if table.name in bases}
        firsts = {table.copy_name: table for table in reversed(selected)}
        tables = [table for table in selected if firsts[table.copy_name] is table]
        prepared = [_prepared(source, table, layouts.get(table.lake_name, PLAIN)) for table in tables]
        return sink.prepare(run_id, [replace(one, base=of_copies.get(one.name)) for one in prepared])

    return LakeFormat(name, prepare)


def prepare_places(
    lake_format: LakeFormat,
    tables: Sequence[Table],
    selections: Mapping[TableName, Selection],
    bases: Mapping[TableName, Place],
    *,
    skips: bool,
) -> tuple[dict[TableName, Place], dict[str, str]]:
    """Prepare the lake. Return the places of the data files, as ``lake_format.prepare`` does, and the tables that
    cannot be prepared, by name, each with the reason.

    :param bases: the result of `places_of_bases`.
    :param skips: whether the run leaves such tables out (`on_table_error`). At least one table remains.
    :raises ConfigurationError: a table cannot be prepared, and is not left out; or the tables do not fit together.
    """
    try:
        return lake_format.prepare(tables, selections, bases), {}
    except ConfigurationError as error:
        # A wrong parameter, such as one name for two tables, is not a problem of one table.
        if not skips or error.where.startswith("parameter "):
            raise
    problems: dict[TableName, ConfigurationError] = {}
    together: dict[TableName, list[Table]] = {}
    for table in tables:
        together.setdefault(table.lake_name, []).append(table)
    # The shards of a merged table are left out together.
    for own in together.values():
        try:
            lake_format.prepare(own, selections, bases)
        except ConfigurationError as error:
            problems |= dict.fromkeys((table.name for table in own), error)
    prepared = [table for table in tables if table.name not in problems]
    if not prepared:
        raise next(iter(problems.values()))
    return lake_format.prepare(prepared, selections, bases), {
        str(name): error.message for name, error in problems.items()
    }


def places_of_bases(plans: Sequence[TablePlan], scratch: Storage) -> dict[TableName, Place]:
    """Return the places of the copies that are rolled forward, by the table's name."""
    places = {
        (run_id, entry.table.name): entry.place
        for run_id in {plan.base for plan in plans if plan.base}
        for entry in published_run(scratch, run_id).manifest.tables
    }
    found = {plan.table: places.get((plan.base, plan.table)) for plan in plans}
    return {name: place for name, place in found.items() if place is not None}


def run_tables(
    plans: Sequence[TablePlan], tables: Sequence[Table], places: Mapping[TableName, Place]
) -> tuple[RunTable, ...]:
    """Return the tables of a run, each with its plan."""
    by_name = {plan.table: plan for plan in plans}
    return tuple(
        RunTable(
            replace(table, selection=plan.selection),
            plan.consistency,
            plan.reason,
            plan.at_upper,
            plan.base,
            places.get(plan.copy_name),
            feed_gap=plan.feed_gap,
        )
        for table, plan in ((table, by_name[table.name]) for table in tables)
    )


def place_of_carried(
    sink: Sink, run_id: str, source: Source, table: Table, layout: Layout, read: Place | None
) -> Place | None:
    """Prepare the lake for a table that the run has read, and that is carried over schema changes. Return the place of
    its data files; None: the format has no places.

    :param table: the present table. Its eras begin with the columns that were read.
    :param read: the place that was prepared for the rows that were read.
    :raises ConfigurationError: the lake's table cannot take the new columns, or changed after it was prepared.
    """
    if read is None:
        return None
    prepared = replace(_prepared(source, table, layout), read=read)
    return sink.prepare(run_id, [prepared])[table.copy_name]


def _prepared(source: Source, table: Table, layout: Layout) -> Prepared:
    # Each shard gives its columns other identities, so the columns of a merged table are identified by their names.
    identities = source.column_identities(table) if table.shard is None else {}
    published = published_schema(table, source.arrow_schema(table))
    before = {one.name: one.was for one in table.eras[0].fields} if table.eras else {}
    return Prepared(table.copy_name, published, table.published_key, identities, layout, before)


# Checks that the shards of a run still fit into their merged tables when its position is fixed.


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
