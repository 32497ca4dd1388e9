"""The registered sinks, by the name of their format.

To add a sink, write its module, register it here, and run the contract tests on it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.catalog import CatalogSettings, LakeSettings, settings_of_options

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.base import Sink


SINKS = {
    "iceberg": "airflow_provider_cdc.sinks.iceberg.sink:IcebergSink",
    "parquet": "airflow_provider_cdc.sinks.parquet:ParquetSink",
}
"""Module and class of each format. A module is imported only when it is needed, because its libraries are large."""


def open_sink(settings: LakeSettings | str, lake: Storage) -> Sink:
    """Return a sink that publishes in ``lake``.

    :param settings: the settings of the lake, or only its format.
    :raises ConfigurationError: the format is unknown, or its libraries are not installed.
    """
    settings = LakeSettings(settings) if isinstance(settings, str) else settings
    if settings.format not in SINKS:
        raise ConfigurationError(
            f"unknown format {settings.format!r}",
            where="parameter format",
            hint=f"choose one of {', '.join(sorted(SINKS))}",
        )
    module, name = SINKS[settings.format].split(":")
    try:
        kind: Callable[[Storage, LakeSettings], Sink] = getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigurationError(
            f"the library for the format {settings.format} is not installed: {error}",
            where="parameter format",
            hint=f'pip install "airflow-provider-cdc[{settings.format}]", where Airflow\'s tasks run',
        ) from error
    return kind(lake, settings)


def sink_of_run(manifest: Manifest, catalog: CatalogSettings | None) -> Sink:
    """Return the sink with which a run publishes.

    :param catalog: the settings of the connection that the option ``catalog_conn_id`` names; None: the option is not
        set.
    """
    settings = settings_of_options(manifest.lake_format, manifest.options.lake, catalog, manifest.source_conn_id)
    return open_sink(settings, Storage(manifest.lake))
