"""OpenLineage: reports that each copy, an Airflow asset, was made from a table of its source.

Airflow's OpenLineage provider calls this module if it is installed and enabled. No other code imports OpenLineage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_cdc.core.run.results import CONSOLIDATE, ConsolidateResult
from airflow_provider_cdc.core.run.run import Run, read_is_latest
from airflow_provider_cdc.core.shards.copy_tables import copies_of
from airflow_provider_cdc.core.tables.table import Table

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_provider_cdc.sources.api.connection import ConnectionSettings


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
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import (
        dataset_version_dataset,
        output_statistics_output_dataset,
        schema_dataset,
        symlinks_dataset,
    )

    from airflow_provider_cdc.assets import copy_asset

    if CONSOLIDATE not in run.steps:
        return None

    def columns_of(table: Table, names: Sequence[str]) -> Any:
        fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=table.column(name).type) for name in names]
        return schema_dataset.SchemaDatasetFacet(fields=fields)

    result, manifest, latest = run.found(ConsolidateResult), run.manifest, read_is_latest(run.folder)
    version = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=run.position_text)
    inputs, outputs = [], []
    for copy in copies_of(manifest.tables):
        if (name := str(copy.name)) not in result.published:
            continue
        facets = {"version": version}
        for table in (entry.table for entry in copy.tables):
            facets["schema"] = columns_of(table, [column.name for column in table.columns])
            namespace, source = _at_source(settings, table, manifest.source.get("database", ""))
            inputs.append(InputDataset(namespace=namespace, name=source, facets=dict(facets)))
        table = copy.first.table
        facets["schema"] = columns_of(table, table.published_columns)
        place = _dataset(result.published[name].rpartition("/")[0])
        folder = symlinks_dataset.Identifier(namespace=place[0], name=place[1], type="LOCATION")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=[folder])
        counted = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=result.rows[name])
        copied = copy_asset(manifest.source_conn_id, table.copy_name, manifest.lake, latest=latest[name])
        namespace, asset = _dataset(copied.uri)
        outputs.append(
            OutputDataset(namespace=namespace, name=asset, facets=facets, outputFacets={"outputStatistics": counted})
        )
    return OperatorLineage(inputs=inputs, outputs=outputs)


def of_asset(asset: Any, context: Any) -> Any:
    """Convert an asset of this package to an OpenLineage dataset, for tasks that have it as an inlet."""
    from openlineage.client.event_v2 import Dataset

    namespace, name = _dataset(asset.uri)
    return Dataset(namespace=namespace, name=name)


def _at_source(settings: ConnectionSettings, table: Table, database: str) -> tuple[str, str]:
    name = f"{database}.{table.name}" if database else str(table.name)
    return f"{settings.kind}://{settings.host}:{settings.port}", name


def _dataset(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of a URI. The namespace is the store, and the name is the path in the store."""
    parts = urlsplit(uri)
    if not parts.netloc:
        return parts.scheme, unquote(parts.path)
    # The query part of an asset's URI means another target, or a copy of the past. So an asset with a query part is a
    # different dataset from the plain asset.
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path.removeprefix("/")) + query
