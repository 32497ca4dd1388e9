"""Opens the file system of a folder (pyarrow.fs), with the settings of a connection or those in the environment."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.lazy import LazyModule
from airflow_provider_cdc.core.storage.access import AZURE, GCS, S3, StorageSettings, fitting
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from pyarrow import fs
else:
    fs = LazyModule("pyarrow.fs")

_RENEWED_SECONDS = 300.0
"""The file system is opened with a new token this long before the old token expires."""


class Opened:
    """An open file system, and the path of the folder ``uri`` in it.

    The file system of Google Cloud Storage gets a token that expires after an hour. So `filesystem` opens the file
    system again before the token expires.
    """

    def __init__(self, uri: LakeUri, settings: StorageSettings | None) -> None:
        self.settings = fitting(settings, uri)
        self._expires: float | None = None
        if self.settings is None:
            # Without this, even a small file on S3 is a multipart upload: three requests instead of one.
            query = "?allow_delayed_open=true" if uri.scheme == "s3" else ""
            self._filesystem, self.root = fs.FileSystem.from_uri(f"{uri}{query}")
        else:
            self.root = posixpath.join(*place_of(uri))
            self._bucket = place_of(uri)[0]
            self._open(uri)

    @property
    def filesystem(self) -> fs.FileSystem:
        if self._expires is not None and time.time() > self._expires - _RENEWED_SECONDS:
            self._open(None)
        return self._filesystem

    def _open(self, uri: LakeUri | None) -> None:
        settings = self.settings
        assert settings is not None
        if settings.store == GCS:
            self._filesystem, self._expires = _gcs(settings)
        elif uri is not None:
            make: Callable[[StorageSettings, LakeUri, str], Any] = {S3: _s3, AZURE: _azure}[settings.store]
            self._filesystem = make(settings, uri, self._bucket)


def place_of(uri: LakeUri) -> tuple[str, ...]:
    """Return the bucket or container of a folder, and the folder's names in it.

    :raises ConfigurationError: the URI names no bucket or container.
    """
    user, _, host = uri.authority.rpartition("@")
    if uri.scheme not in ("abfs", "abfss"):
        return (host, *uri.decoded)
    if user or "." not in host:
        return (user or host, *uri.decoded)
    if not uri.decoded:
        raise ConfigurationError(
            "the URI names no container", where=str(uri), hint="write it as abfs://container@account/folder"
        )
    return uri.decoded


def account_of(uri: LakeUri, settings: StorageSettings | None) -> str:
    """Return the name of the Azure storage account that a URI or a connection names. The result is empty if neither
    names an account."""
    user, _, host = uri.authority.rpartition("@")
    if user or "." in host:
        return host.partition(".")[0].partition(":")[0]
    return settings.get("account") if settings is not None else ""


def _s3(settings: StorageSettings, uri: LakeUri, bucket: str) -> Any:
    get = settings.get
    endpoint, region = get("endpoint"), get("region")
    if not region and not endpoint:
        region = fs.resolve_s3_region(bucket)
    if get("addressing") == "path" and not endpoint:
        # pyarrow.fs uses path-style addressing only if an endpoint is given.
        endpoint = f"https://s3.{region}.amazonaws.com"
    credentials: dict[str, str] = {}
    if get("access_key"):
        credentials = {"access_key": get("access_key"), "secret_key": get("secret_key")}
        if get("session_token"):
            credentials["session_token"] = get("session_token")
    if get("role_arn"):
        credentials |= {"role_arn": get("role_arn"), "session_name": "airflow-provider-cdc"}
        if get("external_id"):
            credentials["external_id"] = get("external_id")
    return fs.S3FileSystem(
        **credentials,
        allow_delayed_open=True,
        region=region or None,
        endpoint_override=endpoint or None,
        force_virtual_addressing=bool(endpoint) and get("addressing") == "virtual",
    )


def _gcs(settings: StorageSettings) -> tuple[Any, float | None]:
    from airflow_provider_cdc.core.storage.google import token_of

    place: dict[str, Any] = {}
    if settings.get("endpoint"):
        scheme, _, authority = settings.get("endpoint").rpartition("://")
        place = {"endpoint_override": authority, "scheme": scheme or "https"}
    if settings.get("anonymous"):
        return fs.GcsFileSystem(anonymous=True, **place), None
    if not settings.get("key"):
        return fs.GcsFileSystem(**place), None
    token, expires = token_of(settings)
    return fs.GcsFileSystem(access_token=token, credential_token_expiration=expires, **place), expires.timestamp()


def _azure(settings: StorageSettings, uri: LakeUri, bucket: str) -> Any:
    options: dict[str, str] = {}
    for name, argument in (
        ("key", "account_key"),
        ("sas_token", "sas_token"),
        ("tenant_id", "tenant_id"),
        ("client_id", "client_id"),
        ("client_secret", "client_secret"),
    ):
        if settings.get(name):
            options[argument] = settings.get(name)
    account = account_of(uri, settings)
    if not account:
        raise ConfigurationError(
            "neither the URI nor the connection names the storage account",
            where=str(uri),
            hint="write it as abfs://container@account.dfs.core.windows.net/folder",
        )
    endpoint = settings.get("endpoint")
    if endpoint:
        # An emulator, such as Azurite: http://host:port/account.
        scheme, _, rest = endpoint.partition("://")
        authority = rest.partition("/")[0]
        options |= {"blob_storage_authority": authority, "blob_storage_scheme": scheme}
        options |= {"dfs_storage_authority": authority, "dfs_storage_scheme": scheme}
    return fs.AzureFileSystem(account, **options)
