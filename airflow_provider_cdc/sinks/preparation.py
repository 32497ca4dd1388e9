"""Prepares a lake for the tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import pyarrow as pa

from airflow_provider_cdc.core.filters.apply import published_schema
from airflow_provider_cdc.core.run.lake_format import PLAIN_PARQUET, LakeFormat
from airflow_provider_cdc.core.run.place import Place
from airflow_provider_cdc.core.tables.layout import PLAIN, Layout
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sinks.base import Prepared, Sink


class Source(Protocol):
    """The source of a run; see ``sources.api.source.Source``."""

    def arrow_schema(self, table: Table) -> pa.Schema: ...


@runtime_checkable
class IdentifiesColumns(Protocol):
    """A source that identifies columns by more than their names; see
    ``sources.api.optional_capabilities.IdentifiesColumns``."""

    def column_identities(self, table: Table) -> dict[str, str]: ...


def lake_format(
    name: str, sink: Sink, run_id: str, source: Source, layouts: Mapping[TableName, Layout] = MappingProxyType({})
) -> LakeFormat:
    """Return the format in which a run of ``source`` publishes with ``sink``.

    :param layouts: the layouts of the tables that have one.
    """

    if name == PLAIN_PARQUET.name:
        return PLAIN_PARQUET

    def prepare(tables: Sequence[Table], selections: Mapping[TableName, Selection]) -> dict[TableName, Place]:
        selected = [replace(table, selection=selections[table.name]) for table in tables]
        # The shards of a merged table share one table of the lake.
        firsts = {table.copy_name: table for table in reversed(selected)}
        tables = [table for table in selected if firsts[table.copy_name] is table]
        return sink.prepare(run_id, [_prepared(source, table, layouts.get(table.lake_name, PLAIN)) for table in tables])

    return LakeFormat(name, prepare)


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
    identities: dict[str, str] = {}
    if isinstance(source, IdentifiesColumns) and table.shard is None:
        identities = source.column_identities(table)
    published = published_schema(table, source.arrow_schema(table))
    before = {one.name: one.was for one in table.eras[0].fields} if table.eras else {}
    return Prepared(table.copy_name, published, table.published_key, identities, layout, before)
