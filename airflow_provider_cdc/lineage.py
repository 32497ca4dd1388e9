"""OpenLineage: reports that each copy, an Airflow asset, was made from a table of its source.

Airflow's OpenLineage provider calls this module if it is installed and enabled. No other code imports OpenLineage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_cdc.core.run.results import CONSOLIDATE, ConsolidateResult
from airflow_provider_cdc.core.run.run import Run, read_is_latest
from airflow_provider_cdc.core.shards.copy_tables import CopyTables, copies_of
from airflow_provider_cdc.core.tables.table import Table, TableName

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_cdc.core.shards.union import Union, UnionResult
    from airflow_provider_cdc.sources.api.source import ConnectionSettings


def lineage_of(run: Run, settings: ConnectionSettings) -> OperatorLineage | None:
    """Return the lineage of a run: each published table is an input, and the table's asset is an output. For a merged
    table, its shards are inputs, and its own asset is an output. None: the run is not published.

    Each dataset lists its columns, and its version is the run's position. The dataset of an asset also has the number
    of rows, and the folder of its copies as a symlink. Columns have the types that the source declares. Source tables
    are named as in OpenLineage: ``mysql://host:port`` and ``schema.table``, or ``postgres://host:port`` and
    ``database.schema.table``.

    :param settings: the connection to the source.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    if CONSOLIDATE not in run.steps:
        return None
    result, manifest, latest = run.result_of(ConsolidateResult), run.manifest, read_is_latest(run.folder)
    inputs, outputs = [], []
    for copy in copies_of(manifest.tables):
        if (name := str(copy.name)) not in result.published:
            continue
        inputs += _at_source(run, settings, copy)
        asset = _asset(manifest.source_conn_id, copy.name, manifest.lake, latest[name])
        table, place = copy.first.table, result.published[name]
        outputs.append(_copy(asset, table, run.position_text, result.rows[name], place))
    return OperatorLineage(inputs=inputs, outputs=outputs)


def lineage_of_union(
    union: Union, result: UnionResult, lake: str, members: Mapping[str, tuple[Run, ConnectionSettings]]
) -> OperatorLineage:
    """Return the lineage of merged tables of several sources: the shards of all sources are inputs, and the assets of
    the merged tables are outputs. The version of a shard is the position of its source. The version of a merged table
    is the id of the union.

    :param lake: the target of the union.
    :param members: the run of each source, and the connection to it. The asset is that of the first source.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    inputs, outputs = [], []
    for name, copy in union.copies.items():
        tables = {}
        for source, (run, settings) in members.items():
            merged = next(one for one in copies_of(run.manifest.tables) if str(one.name) == name)
            tables[source] = merged.first.table
            inputs += _at_source(run, settings, merged)
        first = next(iter(members))
        asset = _asset(first, copy.name(name), lake, result.latest[name])
        outputs.append(_copy(asset, tables[first], union.id, result.rows[name], result.published[name]))
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _at_source(run: Run, settings: ConnectionSettings, copy: CopyTables) -> list[Any]:
    """Return the datasets of the tables at the source from which a copy was made."""
    from openlineage.client.event_v2 import InputDataset

    namespace, database = f"{settings.kind}://{settings.host}:{settings.port}", run.manifest.source.get("database", "")
    datasets = []
    for table in (entry.table for entry in copy.tables):
        name = f"{database}.{table.name}" if database else str(table.name)
        facets = {
            "version": _version(run.position_text),
            "schema": _columns(table, [column.name for column in table.columns]),
        }
        datasets.append(InputDataset(namespace=namespace, name=name, facets=facets))
    return datasets


def _copy(asset: str, table: Table, version: str, rows: int, uri: str) -> Any:
    """Return the dataset of a copy.

    :param asset: the URI of the copy's asset.
    :param table: the table, or the first shard of a merged table.
    :param uri: the URI of the copy's files.
    """
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset, symlinks_dataset

    place = _dataset(uri.rpartition("/")[0])
    folder = symlinks_dataset.Identifier(namespace=place[0], name=place[1], type="LOCATION")
    facets = {
        "version": _version(version),
        "schema": _columns(table, table.published_columns),
        "symlinks": symlinks_dataset.SymlinksDatasetFacet(identifiers=[folder]),
    }
    counted = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
    namespace, name = _dataset(asset)
    return OutputDataset(namespace=namespace, name=name, facets=facets, outputFacets={"outputStatistics": counted})


def _asset(source_conn_id: str, name: TableName, lake: str, latest: bool) -> str:
    from airflow_provider_cdc.assets import copy_asset

    return str(copy_asset(source_conn_id, name, lake, latest=latest).uri)


def _version(version: str) -> Any:
    from openlineage.client.facet_v2 import dataset_version_dataset

    return dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=version)


def _columns(table: Table, names: Sequence[str]) -> Any:
    from openlineage.client.facet_v2 import schema_dataset

    fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=table.column(name).type) for name in names]
    return schema_dataset.SchemaDatasetFacet(fields=fields)


def of_asset(asset: Any, context: Any) -> Any:
    """Convert an asset of this package to an OpenLineage dataset, for tasks that have it as an inlet."""
    from openlineage.client.event_v2 import Dataset

    namespace, name = _dataset(asset.uri)
    return Dataset(namespace=namespace, name=name)


def _dataset(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of a URI. The namespace is the store, and the name is the path in the store."""
    parts = urlsplit(uri)
    if not parts.netloc:
        return parts.scheme, unquote(parts.path)
    # The query part of an asset's URI means another target, or a copy of the past. So an asset with a query part is a
    # different dataset from the plain asset.
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path.removeprefix("/")) + query
