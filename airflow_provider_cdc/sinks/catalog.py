"""Settings of a catalog of tables. Importing this module needs no catalog library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.core.options.lake import STOP, LakeOptions

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


def settings_of_options(
    format: str, options: LakeOptions, catalog: CatalogSettings | None, source_conn_id: str
) -> LakeSettings:
    """Return the settings of the lake of a run with the given options.

    :param format: the format of the run.
    """
    return LakeSettings(
        format, catalog, options.table_name, source_conn_id, options.on_type_change, options.on_foreign_commit
    )
