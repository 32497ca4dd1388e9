"""Opens PyIceberg's catalogs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar, cast
from urllib.parse import quote

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.errors import CdcError, ConfigurationError, StorageUnavailable
from airflow_provider_cdc.sinks.catalog import KINDS, CatalogSettings

BESIDE_THE_TABLES = "_catalog.db"
"""The file of the catalog of a lake that no connection names one for."""

CATALOG_NAME = "default"
"""The name of catalogs whose connection names none. In a database, each name has tables of its own."""

Identifier = tuple[str, ...]

# PyIceberg takes what is after a # for the fragment of a URI. Engines take the others for patterns, or decode them.
_MISREAD = re.compile(r"[#*?\[\]{}\\]|%[0-9A-Fa-f]{2}")
_PART = re.compile(r'(?:^|\.)(?:"((?:[^"]|"")+)"|([^".]+))', re.DOTALL)

_Method = TypeVar("_Method", bound=Callable[..., Any])
_CLIENTS = ("requests", "urllib3", "sqlalchemy", "sqlite3", "psycopg", "psycopg2", "botocore", "thrift")
"""The packages below PyIceberg whose errors are the catalog's."""
_REFUSALS = (ForbiddenError, UnauthorizedError, OAuthError)


def open_catalog(settings: CatalogSettings | None, lake: Storage) -> Catalog:
    """The catalog that ``settings`` describe, or the one beside the tables in ``lake``.

    :raises ConfigurationError: there is no such catalog, or it cannot be reached as described.
    """
    if settings is None:
        return _beside(lake)
    if settings.kind not in KINDS:
        raise ConfigurationError(
            f"there is no catalog of the kind {settings.kind!r}", hint=f"choose one of {', '.join(KINDS)}"
        )
    try:
        properties = properties_of(settings)
        return load_catalog(properties.pop("catalog_name", CATALOG_NAME), **properties)
    except ConfigurationError:
        raise
    except Exception as error:
        # PyIceberg and the drivers below it raise errors of many kinds, some of which show the settings.
        raise ConfigurationError(
            f"the catalog cannot be opened ({type(error).__name__})",
            where=f"{settings.kind} catalog {settings.uri or settings.warehouse}",
            hint="test the connection of type cdc_catalog: Admin, Connections, Test",
        ) from error


def check_catalog(catalog: Catalog, settings: CatalogSettings) -> None:
    """Make sure that a catalog answers.

    :raises ConfigurationError: it does not.
    """
    try:
        catalog.list_namespaces()
    except Exception as error:
        # The message of a driver may show the settings.
        raise ConfigurationError(
            f"the catalog does not answer ({type(error).__name__})",
            where=f"{settings.kind} catalog {settings.uri or settings.warehouse}",
            hint="test the connection of type cdc_catalog: Admin, Connections, Test",
        ) from error


def properties_of(settings: CatalogSettings) -> dict[str, str]:
    """PyIceberg's properties of a catalog. They hold secrets."""
    properties = {"type": settings.kind, **settings.properties}
    if settings.warehouse:
        properties["warehouse"] = settings.warehouse
    if settings.kind == "rest":
        if settings.login and settings.password:
            properties["credential"] = f"{settings.login}:{settings.password}"
        elif settings.password:
            properties["token"] = settings.password
    uri = settings.uri
    if settings.kind == "sql" and settings.password:
        scheme, _, rest = uri.partition("://")
        uri = f"{scheme}://{quote(settings.login, safe='')}:{quote(settings.password, safe='')}@{rest}"
    if uri:
        properties["uri"] = uri
    return properties


def _beside(lake: Storage) -> Catalog:
    uri = LakeUri.parse(lake.uri)
    if not is_local(lake):
        raise ConfigurationError(
            "a catalog in a file works only on a local disk",
            where=lake.uri,
            hint="name a catalog in catalog_conn_id: a connection of type cdc_catalog",
        )
    lake.make_folder()
    path = lake.path(BESIDE_THE_TABLES)
    return load_catalog(CATALOG_NAME, type="sql", uri=f"sqlite:///{quote(path)}", warehouse=uri.plain)


def check_location(folder: Storage) -> None:
    """Make sure that the metadata of tables below a folder can name their files.

    :raises ConfigurationError: PyIceberg, or an engine, would look for them elsewhere.
    """
    path = "/" + "/".join(LakeUri.parse(folder.uri).decoded)
    if match := _MISREAD.search(path):
        raise ConfigurationError(
            f"the path has {match[0]}, and readers of Iceberg tables would look for the files elsewhere",
            where=folder.uri,
            hint="choose a folder whose name has no #, *, ?, [, ], {, }, backslash, or % before two hexadecimal digits",
        )


def is_local(lake: Storage) -> bool:
    """Whether a lake is on a local disk."""
    return LakeUri.parse(lake.uri).scheme in ("", "file")


def name_of(identifier: Identifier) -> str:
    """The name of a table in one text, different for different tables; `identifier_in` reads it.

    Parts are joined by dots. A part with a dot or a quote is in double quotes, as in SQL.
    """
    parts = ('"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part for part in identifier)
    return ".".join(parts)


def identifier_in(name: str) -> Identifier:
    """The parts of a name that `name_of` made."""
    parts = _PART.findall(name)
    return tuple(quoted.replace('""', '"') if quoted else plain for quoted, plain in parts)


def load_table(catalog: Catalog, identifier: Identifier) -> Table | None:
    """A table of the catalog; None: there is none."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def make_namespace(catalog: Catalog, namespace: Identifier, properties: Mapping[str, str] | None = None) -> None:
    """Create a namespace, and those above it, unless they exist."""
    for depth in range(1, len(namespace) + 1):
        try:
            if not catalog.namespace_exists(namespace[:depth]):
                catalog.create_namespace(namespace[:depth], dict(properties or {}))
        except Exception:
            # Another run made it meanwhile: PyIceberg's own catalog raises the database's error then.
            if not catalog.namespace_exists(namespace[:depth]):
                raise


def folder_of(table: Table, name: str = "") -> Storage:
    """The folder of a table, or the one called ``name`` in it."""
    location = str(table.location()).rstrip("/")
    scheme, colon, rest = location.partition("://")
    # Iceberg's locations are not percent-encoded.
    uri = f"{scheme}://{quote(rest, safe='/~!$&()*+,;=:@-._' + chr(39))}" if colon else f"file://{quote(location)}"
    return Storage(uri).folder(name) if name else Storage(uri)


def send(
    catalog: Catalog, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> TableMetadata:
    """Commit updates to a table; return its new metadata.

    Whatever `Catalog.commit_table` raises passes: only ``CommitFailedException`` means that nothing was committed.
    """
    response = catalog.commit_table(table, requirements, updates)
    with suppress(Exception):
        # PyIceberg does it for its own commits only. Without it, every commit leaves a file of metadata for ever.
        catalog._delete_old_metadata(table.io, table.metadata, response.metadata)
    return response.metadata


@contextmanager
def answering(where: str) -> Iterator[None]:
    """Tell errors of a catalog as errors of this package.

    :raises ConfigurationError: the catalog denies access.
    :raises StorageUnavailable: it failed, or cannot be reached.
    """
    try:
        yield
    except CdcError:
        raise
    except Exception as error:
        # What the errors say may show the settings.
        kind = type(error)
        if isinstance(error, _REFUSALS):
            raise ConfigurationError(
                f"the catalog denies access ({kind.__name__})",
                where=where,
                hint="test the connection of type cdc_catalog: Admin, Connections, Test",
            ) from error
        if isinstance(error, RESTError) or kind.__module__.partition(".")[0] in _CLIENTS:
            raise StorageUnavailable(
                f"the catalog failed, or cannot be reached ({kind.__name__})",
                where=where,
                hint="make sure that it can be reached from where Airflow and Spark run (name, network, certificates)",
            ) from error
        raise


def answered(where: str) -> Callable[[_Method], _Method]:
    """Decorate a method that calls a catalog, so that it raises the errors of `answering`."""

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def replacement(*arguments: Any, **named: Any) -> Any:
            with answering(where):
                return method(*arguments, **named)

        return cast(_Method, replacement)

    return decorate
