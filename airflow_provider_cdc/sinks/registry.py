"""The registered sinks, by the name of their format.

To add a sink, write its module, register it here, and run the contract tests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.options.lake import CODECS, STOP, LakeOptions
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.base import Sink


# Settings of a catalog of tables. Importing this module needs no catalog library.


KINDS = ("sql", "rest", "glue", "hive")
CUTS_NAMESPACE = "cdc"
TABLE_NAME = "{schema}.{table}"

FORM: Mapping[str, Any] = {
    "hidden-fields": ["extra", "port", "host", "schema"],
    "relabeling": {"login": "Login", "password": "Password or token"},
    "placeholders": {"login": "user, or OAuth client id"},
}

FIELDS: Mapping[str, Any] = {
    "kind": {
        "label": "Kind",
        "description": "The kind of the catalog.",
        "schema": {"type": ["string", "null"], "enum": [None, *KINDS], "values_display": {"null": "not set"}},
    },
    "uri": {
        "label": "Address",
        "description": "rest: https://catalog.example.com. sql: postgresql+psycopg://host/database, without a "
        "password. hive: thrift://host:9083.",
        "schema": {"type": ["string", "null"]},
    },
    "warehouse": {
        "label": "Warehouse",
        "description": "Where the catalog puts the tables: s3://bucket/warehouse, or the name of a warehouse.",
        "schema": {"type": ["string", "null"]},
    },
    "namespace": {
        "label": "Namespace of the cuts",
        "description": f"The namespace of the table cdc_cuts. Default: {CUTS_NAMESPACE}.",
        "schema": {"type": ["string", "null"]},
    },
    "properties": {
        "label": "Properties",
        "description": 'Further properties of PyIceberg, as a JSON object: {"s3.endpoint": "…"}.',
        "schema": {"type": ["string", "object", "null"]},
        "sensitive": True,
    },
}


@dataclass(frozen=True)
class CatalogSettings:
    """A catalog, as a connection of type ``cdc_catalog`` describes it.

    ``uri`` is the address of the catalog, without a password. ``warehouse`` is the place in which the catalog creates
    tables. ``namespace`` is the namespace of the table of cuts. ``properties`` are further settings for PyIceberg,
    which may contain secrets.
    """

    kind: str
    uri: str = ""
    warehouse: str = ""
    namespace: str = CUTS_NAMESPACE
    login: str = ""
    password: str = field(default="", repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class LakeSettings:
    """The format of a lake, and the settings that the format needs. A manifest stores all of these except ``catalog``.

    If ``catalog`` is None, the catalog is a file in the lake's folder. ``table_name`` is the template for the names of
    tables: ``{schema}`` and ``{table}`` stand for the names at the source, ``{source}`` for the connection to the
    source. The other settings are options of the run (`core.options.lake.LakeOptions`).
    """

    format: str = "parquet"
    catalog: CatalogSettings | None = None
    table_name: str = TABLE_NAME
    source: str = ""
    on_type_change: str = STOP
    on_foreign_commit: str = STOP
    compression: str = CODECS[0]


def settings_of_options(
    format: str, options: LakeOptions, catalog: CatalogSettings | None, source_conn_id: str
) -> LakeSettings:
    """Return the settings of the lake of a run with the given options.

    :param format: the format of the run.
    """
    return LakeSettings(
        format,
        catalog,
        options.table_name,
        source_conn_id,
        options.on_type_change,
        options.on_foreign_commit,
        options.compression,
    )


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
            where="parameter format (Lake.format)",
            hint=f"choose one of {', '.join(sorted(SINKS))}",
        )
    module, name = SINKS[settings.format].split(":")
    try:
        kind: Callable[[Storage, LakeSettings], Sink] = getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigurationError(
            f"the library for the format {settings.format} is not installed: {error}",
            where="parameter format (Lake.format)",
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
