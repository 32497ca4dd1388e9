"""What a run publishes as, as far as its beginning and its manifest are concerned."""

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

    ``prepare`` makes the lake ready for tables with these schemas, of which a part is selected, and returns where their
    data files are written, by the name of the copy; see `sinks.base.Sink.prepare`.
    """

    name: str
    prepare: Callable[[Sequence[Table], Mapping[TableName, Selection]], dict[TableName, Place]] = _no_places


PLAIN_PARQUET = LakeFormat("parquet")
