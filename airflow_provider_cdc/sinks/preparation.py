"""Prepares a lake for the tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from airflow_provider_cdc.core.filters.apply import published_schema
from airflow_provider_cdc.core.run.lake_format import PLAIN_PARQUET, LakeFormat
from airflow_provider_cdc.core.run.place import Place
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sinks.base import Prepared, Sink


class Source(Protocol):
    """The source of a run; see ``sources.api.source.Source``."""

    def arrow_schema(self, table: Table) -> pa.Schema: ...


def lake_format(name: str, sink: Sink, run_id: str, source: Source) -> LakeFormat:
    """Return the format in which a run of ``source`` publishes with ``sink``."""

    if name == PLAIN_PARQUET.name:
        return PLAIN_PARQUET

    def prepare(tables: Sequence[Table], selections: Mapping[TableName, Selection]) -> dict[TableName, Place]:
        selected = [replace(table, selection=selections[table.name]) for table in tables]
        return sink.prepare(
            run_id,
            [
                Prepared(table.copy_name, published_schema(table, source.arrow_schema(table)), table.key)
                for table in selected
            ],
        )

    return LakeFormat(name, prepare)
