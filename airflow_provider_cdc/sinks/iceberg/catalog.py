"""Opens PyIceberg's catalogs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import Any, TypeVar, cast
from urllib.parse import quote

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import RecursiveDict
from pyiceberg.utils.config import Config, merge_config
from requests import ConnectionError, Session, Timeout
from sqlalchemy.exc import DBAPIError

from airflow_provider_cdc.core.storage.filesystems import storage_error
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import AZURE, S3, LakeUri, StorageSettings, current, token_of
from airflow_provider_cdc.errors import CdcError, CommitUnknown, ConfigurationError, FileDamaged, StorageUnavailable
from airflow_provider_cdc.sinks.iceberg.sql import SqlCatalogWithoutPool, is_locked, is_unreachable
from airflow_provider_cdc.sinks.registry import KINDS, CatalogSettings

# A REST catalog whose requests have time-outs. PyIceberg's own client sets no time-out.


TIMEOUT = "cdc.request-timeout-seconds"
"""The catalog property that sets the time-out of requests, in seconds."""
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""The default of `TIMEOUT`. If a commit takes longer, the run checks whether it succeeded, as after a lost answer."""


class RestCatalogWithTimeouts(RestCatalog):
    """PyIceberg's REST catalog, with time-outs on all requests, including those for tokens."""

    def _config_headers(self, session: Session) -> None:
        # PyIceberg calls this method first for each session that it creates.
        super()._config_headers(session)
        limited: Any = partial(session.request, timeout=(CONNECT_SECONDS, self._answer_seconds()))
        session.request = limited  # type: ignore[method-assign]

    def _answer_seconds(self) -> float:
        return float(self.properties.get(TIMEOUT) or ANSWER_SECONDS)


BESIDE_THE_TABLES = "_catalog.db"
"""The file of the lake's own catalog, which is used if no connection names a catalog."""

CATALOG_NAME = "default"
"""The name of a catalog whose connection does not give a name. A catalog in a database keeps separate tables for each
name."""

Identifier = tuple[str, ...]

# PyIceberg treats the text after a # as the fragment of a URI. Engines treat the other characters as patterns, or
# decode them.
_MISREAD = re.compile(r"[#*?\[\]{}\\]|%[0-9A-Fa-f]{2}")
_PART = re.compile(r'(?:^|\.)(?:"((?:[^"]|"")+)"|([^".]+))', re.DOTALL)

_Method = TypeVar("_Method", bound=Callable[..., Any])
_CLIENTS = ("requests", "urllib3", "sqlalchemy", "sqlite3", "psycopg", "psycopg2", "botocore", "thrift")
"""The packages that PyIceberg uses to reach a catalog. Their errors are errors of the catalog."""
COMPLETE = "run the task again: it finds out what was committed, and completes the rest"
"""The hint for a publication that stopped half-way."""
_OPENINGS = 4
"""How many times to try to open a catalog in a database. Each table of the catalog can make one try fail."""
_LOADS = 3
"""How many times to try to load a table whose metadata file is gone."""
_SILENCES = (ConnectionError, Timeout, ServerError, ServiceUnavailableError, TooManyRequestsError)
"""Errors that mean that a REST catalog cannot be reached or has failed. A retry may help."""
_REFUSALS = (ForbiddenError, UnauthorizedError, OAuthError)
_CATALOGS: Mapping[str, type[Catalog]] = {"rest": RestCatalogWithTimeouts, "sql": SqlCatalogWithoutPool}
"""The classes that are used in place of PyIceberg's own, by the kind of the catalog."""


def open_catalog(settings: CatalogSettings | None, lake: Storage) -> Catalog:
    """Open the catalog that ``settings`` describe. If ``settings`` is None, open the catalog in the folder ``lake``.

    :raises ConfigurationError: there is no such catalog, or it cannot be used with these settings.
    :raises StorageUnavailable: the catalog cannot be reached.
    """
    if settings is None:
        return _beside(lake)
    if settings.kind not in KINDS:
        raise ConfigurationError(
            f"there is no catalog of the kind {settings.kind!r}", hint=f"choose one of {', '.join(KINDS)}"
        )
    with _opening(settings):
        properties = properties_of(settings)
        return _load(properties.pop("catalog_name", CATALOG_NAME), properties)


def check_catalog(catalog: Catalog, settings: CatalogSettings) -> None:
    """Check that a catalog answers.

    :raises ConfigurationError: the catalog cannot be used.
    :raises StorageUnavailable: the catalog cannot be reached.
    """
    with _opening(settings):
        catalog.list_namespaces()


@contextmanager
def _opening(settings: CatalogSettings) -> Iterator[None]:
    """Convert errors of a catalog that is opened. PyIceberg and its drivers raise errors of many classes. Some messages
    contain the settings, so they are not shown."""
    where = f"{settings.kind} catalog {settings.uri or settings.warehouse}"
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        if isinstance(error, _SILENCES) or is_unreachable(error):
            raise StorageUnavailable(
                f"the catalog does not answer ({type(error).__name__})",
                where=where,
                hint="make sure that it can be reached from where Airflow and Spark run (name, network, certificates)",
            ) from error
        raise ConfigurationError(
            f"the catalog cannot be opened ({type(error).__name__})",
            where=where,
            hint="test the connection of type cdc_catalog: Admin, Connections, Test",
        ) from error


def properties_of(settings: CatalogSettings) -> dict[str, str]:
    """Return the properties with which PyIceberg opens a catalog. They contain secrets."""
    properties = {"type": settings.kind, **io_properties(current()), **settings.properties}
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


def io_properties(storage: StorageSettings | None) -> dict[str, str]:
    """Return the properties with which PyIceberg opens files in an object store. They contain secrets.

    Properties in the connection to the catalog take precedence.
    """
    if storage is None:
        return {}
    get = storage.get
    if storage.store == S3:
        virtual = get("addressing") == "virtual"
        properties = {
            "s3.access-key-id": get("access_key"),
            "s3.secret-access-key": get("secret_key"),
            "s3.session-token": get("session_token"),
            "s3.region": get("region"),
            "s3.endpoint": get("endpoint"),
            "s3.force-virtual-addressing": str(virtual).lower() if get("addressing") else "",
            "s3.role-arn": get("role_arn"),
        }
    elif storage.store == AZURE:
        properties = {
            "adls.account-name": get("account"),
            "adls.account-key": get("key"),
            "adls.sas-token": get("sas_token"),
            "adls.tenant-id": get("tenant_id"),
            "adls.client-id": get("client_id"),
            "adls.client-secret": get("client_secret"),
        }
        if endpoint := get("endpoint"):
            scheme, _, rest = endpoint.partition("://")
            for part in ("blob", "dfs"):
                properties[f"adls.{part}-storage-authority"] = rest.partition("/")[0]
                properties[f"adls.{part}-storage-scheme"] = scheme
    else:
        properties = {"gcs.service.host": get("endpoint")}
        if get("key"):
            token, expires = token_of(storage)
            properties |= {
                "gcs.oauth2.token": token,
                "gcs.oauth2.token-expires-at": str(int(expires.timestamp() * 1000)),
            }
    return {name: value for name, value in properties.items() if value}


def _beside(lake: Storage) -> Catalog:
    uri = LakeUri.parse(lake.uri)
    if not is_local(lake):
        raise ConfigurationError(
            "a catalog in a file works only on a local disk",
            where=lake.uri,
            hint="name a catalog in Iceberg.catalog_conn_id: a connection of type cdc_catalog",
        )
    lake.make_folder()
    path = lake.path(BESIDE_THE_TABLES)
    return _load(CATALOG_NAME, {"type": "sql", "uri": f"sqlite:///{quote(path)}", "warehouse": uri.plain})


def _load(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog. A catalog in a database creates its tables when it is first opened, and fails if another process
    creates them at the same time."""
    for _ in range(_OPENINGS - 1 if properties["type"] == "sql" else 0):
        with suppress(DBAPIError):
            return _load_once(name, properties)
    return _load_once(name, properties)


def _load_once(name: str, properties: Mapping[str, str]) -> Catalog:
    kind = _CATALOGS.get(properties["type"])
    if kind is None:
        return load_catalog(name, **properties)
    # As PyIceberg's `load_catalog` does, with another class.
    conf: RecursiveDict = merge_config(Config().get_catalog_config(name) or {}, dict(properties))
    return kind(name, **{key: value for key, value in conf.items() if key != "type"})  # type: ignore[arg-type]


def check_location(folder: Storage) -> None:
    """Make sure that the metadata of tables can name files below ``folder``.

    :raises ConfigurationError: PyIceberg or an engine would look for the files in another place.
    """
    path = "/" + "/".join(LakeUri.parse(folder.uri).decoded)
    if match := _MISREAD.search(path):
        raise ConfigurationError(
            f"the path has {match[0]}, and readers of Iceberg tables would look for the files elsewhere",
            where=folder.uri,
            hint="choose a folder whose name has no #, *, ?, [, ], {, }, backslash, or % before two hexadecimal digits",
        )


def is_local(lake: Storage) -> bool:
    """Return whether a lake is on a local disk."""
    return LakeUri.parse(lake.uri).scheme in ("", "file")


def name_of(identifier: Identifier) -> str:
    """Return the name of a table as one text. Different tables have different texts. `identifier_in` parses the text.

    The parts are joined by dots. A part that contains a dot or a quote is in double quotes, as in SQL.
    """
    parts = ('"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part for part in identifier)
    return ".".join(parts)


def identifier_in(name: str) -> Identifier:
    """Parse a name from `name_of` into its parts."""
    parts = _PART.findall(name)
    return tuple(quoted.replace('""', '"') if quoted else plain for quoted, plain in parts)


def load_table(catalog: Catalog, identifier: Identifier) -> Table | None:
    """Load a table of the catalog. Return None if the catalog does not have the table.

    :raises FileDamaged: the metadata file that the catalog names is gone or damaged.
    """
    for attempt in range(_LOADS):
        try:
            return catalog.load_table(identifier)
        except NoSuchTableError:
            return None
        except (FileNotFoundError, ValidationError) as error:
            # Another program may have committed and deleted the file in between.
            if attempt == _LOADS - 1:
                raise FileDamaged(
                    f"the metadata file that the catalog names is gone or damaged ({type(error).__name__})",
                    where=name_of(identifier),
                    hint="restore the file, or drop the table in the catalog (drop_table deletes no files), and "
                    "trigger a new run, which creates the table anew",
                ) from error
    raise AssertionError("not reached")


def make_namespace(catalog: Catalog, namespace: Identifier, properties: Mapping[str, str] | None = None) -> None:
    """Create a namespace and its parent namespaces, unless they exist."""
    for depth in range(1, len(namespace) + 1):
        try:
            if not catalog.namespace_exists(namespace[:depth]):
                catalog.create_namespace(namespace[:depth], dict(properties or {}))
        except Exception:
            # Another run may have created the namespace meanwhile. PyIceberg's SQL catalog then raises an error of the
            # database.
            if not catalog.namespace_exists(namespace[:depth]):
                raise


def folder_of(table: Table, name: str = "") -> Storage:
    """Return the folder of a table, or the folder ``name`` in it."""
    location = str(table.location()).rstrip("/")
    scheme, colon, rest = location.partition("://")
    # Iceberg's locations are not percent-encoded.
    uri = f"{scheme}://{quote(rest, safe='/~!$&()*+,;=:@-._' + chr(39))}" if colon else f"file://{quote(location)}"
    return Storage(uri).folder(name) if name else Storage(uri)


def send(
    catalog: Catalog, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> TableMetadata:
    """Commit updates to a table, and return the table's new metadata.

    Errors of `Catalog.commit_table` are not converted. Only ``CommitFailedException`` means that nothing was committed.
    """
    response = catalog.commit_table(table, requirements, updates)
    with suppress(Exception):
        # PyIceberg deletes old metadata files only after its own commits. Without this call, an old metadata file would
        # remain after every commit.
        catalog._delete_old_metadata(table.io, table.metadata, response.metadata)
    return response.metadata


def commit_unknown(what: str, where: str, error: Exception) -> CommitUnknown:
    """Return the error for a commit of which it is unknown whether it succeeded.

    :param what: what was to be committed.
    :param error: the last answer of the catalog.
    """
    if is_locked(error):
        return CommitUnknown(
            f"another program keeps the catalog locked, so {what} could not be committed",
            where=where,
            hint="end the transaction of the other program, such as a session that reads the catalog, and run the task "
            "again: it finds out what was committed, and completes the rest",
        )
    return CommitUnknown(
        f"the catalog does not say whether it has committed {what} ({type(error).__name__})",
        where=where,
        hint=COMPLETE,
    )


@contextmanager
def answering(where: str) -> Iterator[None]:
    """Convert errors of a catalog to errors of this package.

    :raises ConfigurationError: the catalog denies access.
    :raises StorageUnavailable: the catalog failed, or cannot be reached.
    """
    try:
        yield
    except CdcError:
        raise
    except Exception as error:
        # The messages of the errors may contain the settings, so only the class is shown.
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
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | FileExistsError):
            # The object store of the tables, through PyIceberg.
            raise storage_error(error, where) from error
        raise


def answered(where: str) -> Callable[[_Method], _Method]:
    """Decorate a method that calls a catalog: `answering` converts the errors of the catalog."""

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def replacement(*arguments: Any, **named: Any) -> Any:
            with answering(where):
                return method(*arguments, **named)

        return cast(_Method, replacement)

    return decorate
