"""The hook for catalogs of Iceberg tables: connections of type ``cdc_catalog``."""

from __future__ import annotations

import json
import uuid
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError
from airflow_provider_cdc.sinks.registry import (
    CUTS_NAMESPACE,
    FIELDS,
    KINDS,
    CatalogSettings,
    LakeSettings,
    settings_of_options,
)


class CdcCatalogHook(BaseHook):
    """A catalog of Iceberg tables.

    :param catalog_conn_id: id of a connection of type ``cdc_catalog``.
    """

    conn_name_attr = "catalog_conn_id"
    conn_type = "cdc_catalog"
    default_conn_name = "cdc_catalog"
    hook_name = "Iceberg catalog (CDC)"

    def __init__(self, catalog_conn_id: str) -> None:
        super().__init__()
        self.catalog_conn_id = catalog_conn_id

    def settings(self) -> CatalogSettings:
        """Return the settings for reaching the catalog.

        :raises ConfigurationError: the connection does not exist, is of another type, or lacks a field.
        """
        where = f"catalog_conn_id {self.catalog_conn_id!r}"
        try:
            connection = self.get_connection(self.catalog_conn_id)
        except AirflowNotFoundException as error:
            raise ConfigurationError(
                "the connection does not exist", where=where, hint="create the connection with the type cdc_catalog"
            ) from error
        if connection.conn_type != self.conn_type:
            raise ConfigurationError(
                f"its type is {connection.conn_type}", where=where, hint="name a connection of type cdc_catalog"
            )
        extra = connection.extra_dejson
        if unknown := sorted(set(extra) - set(FIELDS)):
            raise ConfigurationError(
                f"unknown fields in the extra of the connection: {', '.join(unknown)}",
                where=where,
                hint=f"use only these fields: {', '.join(FIELDS)}; put all other settings into properties",
            )
        kind, uri = str(extra.get("kind") or ""), str(extra.get("uri") or "")
        if kind not in KINDS:
            raise ConfigurationError(
                f"its kind is {kind or 'not set'}", where=where, hint=f"choose one of {', '.join(KINDS)}"
            )
        if kind != "glue" and not uri:
            raise ConfigurationError("it has no address", where=where, hint="set the field Address (uri)")
        if "@" in uri.partition("://")[2].partition("/")[0]:
            raise ConfigurationError(
                "the connection's address contains a user or a password",
                where=where,
                hint="put the user and the password into the fields login and password of the connection, where "
                "Airflow encrypts them",
            )
        return CatalogSettings(
            kind=kind,
            uri=uri,
            warehouse=str(extra.get("warehouse") or ""),
            namespace=str(extra.get("namespace") or CUTS_NAMESPACE),
            login=connection.login or "",
            password=connection.password or "",
            properties=_properties(extra.get("properties"), where),
        )

    def test_connection(self) -> tuple[bool, str]:
        """Test the catalog by creating a namespace and dropping it again, because some catalogs allow only reads."""
        from airflow_provider_cdc.sinks.iceberg.catalog import open_catalog

        try:
            settings = self.settings()
            catalog = open_catalog(settings, Storage("file:///"))
            namespace = f"cdc_test_{uuid.uuid4().hex[:12]}"
            catalog.create_namespace(namespace)
            catalog.drop_namespace(namespace)
        except CdcError as error:
            return False, str(error)
        except ImportError as error:
            return (
                False,
                f"the package pyiceberg is missing: {error}. Hint: pip install 'airflow-provider-cdc[iceberg]'.",
            )
        except Exception as error:
            # The message of a driver may contain secrets from the settings, so it is not shown.
            return False, f"the catalog did not create and drop a namespace: {type(error).__name__}"
        return True, f"{settings.kind} catalog: a namespace was created and dropped"


def lake_settings(options: LakeOptions, source_conn_id: str) -> LakeSettings:
    """Return the settings of a run's lake: the format, and the catalog that the catalog connection describes.

    :raises ConfigurationError: the connection does not describe a catalog.
    """
    catalog = CdcCatalogHook(options.catalog_conn_id).settings() if options.catalog_conn_id else None
    return settings_of_options(options.format, options, catalog, source_conn_id)


def _properties(value: Any, where: str) -> dict[str, str]:
    try:
        properties = json.loads(value) if isinstance(value, str) and value.strip() else value or {}
    except ValueError:
        properties = None
    if not isinstance(properties, dict):
        # The text of the field may hold secrets, so the message does not show the text.
        raise ConfigurationError(
            "the connection's properties are not a JSON object", where=where, hint='write {"name": "value"}'
        )
    return {str(name): str(text) for name, text in properties.items()}
