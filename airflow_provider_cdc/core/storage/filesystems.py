"""Opens the file system of a folder (pyarrow.fs), with the settings of a connection or those in the environment."""

from __future__ import annotations

import errno
import posixpath
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.storage.uri import AZURE, GCS, S3, LakeUri, StorageSettings, fitting
from airflow_provider_cdc.errors import CdcError, ConfigurationError, StorageRefused, StorageUnavailable


class LazyModule:
    """Stands for a module, which is imported when an attribute is accessed.

    Airflow parses DAG files continually, and importing PyArrow alone takes as long as importing the rest of this
    package.

    :param name: the module's full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


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
            self.root = posixpath.join(*bucket_location(uri))
            self._bucket = bucket_location(uri)[0]
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


def bucket_location(uri: LakeUri) -> tuple[str, ...]:
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
    from airflow_provider_cdc.core.storage.uri import token_of

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


# Classifies errors of the lake's store by whether a retry may help, and adds hints for the user.


_ACCESS = (
    "grant the user that Airflow and Spark run as the right to list, read, write and delete there, "
    "and make sure that both have valid credentials (Lake.storage_conn_id, or their environment)"
)
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_TERMINAL = {
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOTDIR: "a part of the path is a file: choose another target",
    errno.EISDIR: "there is a folder where a file should be: move the folder away",
    errno.ENOTSUP: "this store does not support the operation: choose another target",
}
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\")]*")
_OURS = (FileNotFoundError, FileExistsError)
"""Errors that the callers expect and handle."""

# Object stores report errors only as text, with the SDKs' own error names, which no language setting translates.
_REFUSALS = (
    (
        re.compile(
            r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch|"
            r"INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT|EXPIRED_TOKEN|ExpiredToken|INVALID_SIGNATURE|"
            r"MISSING_AUTHENTICATION_TOKEN|UNAUTHENTICATED|AuthenticationFailed|[Ss]tatus(?: code)?:? 401"
        ),
        "its credentials are wrong or have expired",
        (
            "set valid credentials in Lake.storage_conn_id, or in the environment of Airflow and Spark "
            "(AWS_ACCESS_KEY_ID, …)"
        ),
    ),
    (
        re.compile(
            r"NO_SUCH_BUCKET|NoSuchBucket|Bucket '[^']*' not found|[Cc]ontainer ?[Nn]ot ?[Ff]ound|"
            r"The specified bucket does not exist"
        ),
        "there is no such bucket",
        "create it, or correct the target; a bucket in another region than AWS_DEFAULT_REGION is not found either",
    ),
    (
        re.compile(
            r"ACCESS_DENIED|AccessDenied|PERMISSION_DENIED|AuthorizationFailure|AuthorizationPermissionMismatch|"
            r"[Ss]tatus(?: code)?:? 403|Permission denied"
        ),
        "it denies access",
        _ACCESS,
    ),
)


def storage_error(error: OSError, where: str) -> CdcError:
    """Convert ``error`` of the store that holds ``where`` to an error of this package. Unknown errors are retried."""
    # The query of a URL may be a signature.
    text = _QUERY.sub(r"\1?***", " ".join(str(error).split()))[:600]
    number = error.errno
    if number in _DENIED:
        return StorageRefused(f"the store denies access: {text}", where=where, hint=_ACCESS)
    if number in _TERMINAL:
        return StorageRefused(f"the store rejects this: {text}", where=where, hint=_TERMINAL[number])
    if number in _FULL:
        return StorageUnavailable(
            f"the store is full: {text}", where=where, hint="free space there, or increase the quota"
        )
    for known_error, what, hint in _REFUSALS:
        if number is None and known_error.search(text):
            return StorageRefused(f"the store rejects the request ({what}): {text}", where=where, hint=hint)
    return StorageUnavailable(
        f"the store failed: {text}",
        where=where,
        hint="make sure that the store can be reached from where Airflow and Spark run (name, network, endpoint)",
    )


@contextmanager
def convert_store_errors(where: str) -> Iterator[None]:
    """Convert errors of the store that holds ``where``. Errors about a missing or existing file are not converted.

    :raises StorageRefused: a retry cannot help.
    :raises StorageUnavailable: a retry may help.
    """
    try:
        yield
    except CdcError:
        raise
    except _OURS:
        raise
    except OSError as error:
        # A traceback of the cause would show the text with the query.
        cause = None if _QUERY.search(str(error)) else error
        raise storage_error(error, where) from cause
