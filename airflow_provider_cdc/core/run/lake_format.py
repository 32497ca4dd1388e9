"""The format in which a run publishes. This module has only the facts that are needed to begin a run and to write its
manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.run.place import Place
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table, TableName


def _no_places(tables: Sequence[Table], selections: Mapping[TableName, Selection]) -> dict[TableName, Place]:
    return {}


@dataclass(frozen=True)
class LakeFormat:
    """The format of the copies.

    The function ``prepare`` prepares the lake for the given tables and the selected part of each table. The function
    returns the places of the data files, by the name of the copy; see `sinks.base.Sink.prepare`.
    """

    name: str
    prepare: Callable[[Sequence[Table], Mapping[TableName, Selection]], dict[TableName, Place]] = _no_places


PLAIN_PARQUET = LakeFormat("parquet")
