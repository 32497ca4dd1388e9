"""Writes under a condition: an object is created only if it does not exist, and replaced only if it is unchanged.

pyarrow.fs cannot do this. For S3 and Azure, obstore does it; for Google Cloud Storage, the JSON API. Some stores accept
the condition and ignore it. So the first conditional write of a process to a bucket is preceded by a probe.

An answer may be lost, although the store did the work. So after every error, the object is read: if it has the data
that was to be written, the write succeeded. This requires that no two writers write the same data, so the records
contain the id of the run or of the try.
"""

from __future__ import annotations

import os
import posixpath
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_cdc.core.storage.filesystems import LazyModule, Opened, account_of, bucket_location
from airflow_provider_cdc.core.storage.uri import GCS, S3, LakeUri, StorageSettings, store_of
from airflow_provider_cdc.errors import ConfigurationError

# The objects of buckets in S3 and Azure, through obstore. Unlike in pyarrow.fs, its writes may have a condition.


if TYPE_CHECKING:
    import obstore
    from obstore import exceptions, store
else:
    obstore, exceptions, store = (LazyModule(f"obstore{name}") for name in ("", ".exceptions", ".store"))

_CLIENT: dict[str, Any] = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=10)}
_IN_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""The environment variables from which obstore reads credentials, or the place of the credentials."""
_RETRIES: dict[str, Any] = {"max_retries": 1, "retry_timeout": timedelta(seconds=60)}


class Unsupported(Exception):
    """The store, or its client with these settings, has no conditional writes."""


def s3_objects(bucket: str, settings: StorageSettings | None, region: str) -> ObstoreObjects:
    """Return the objects of a bucket in S3.

    :raises Unsupported: obstore does not support these settings.
    """
    options: Mapping[str, str] = settings.options if settings is not None else {}
    get = options.get
    if get("role_arn"):
        raise Unsupported("obstore cannot assume a role")
    endpoint = get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    config: Any = {"region": region}
    if endpoint:
        config["endpoint"] = endpoint
    if get("access_key"):
        config |= {"access_key_id": get("access_key"), "secret_access_key": get("secret_key")}
    if get("session_token"):
        config["session_token"] = get("session_token")
    if get("addressing") == "virtual" and not endpoint:
        config["virtual_hosted_style_request"] = True
    provider: Any = None
    if not get("access_key") and not any(name in os.environ for name in _IN_ENVIRONMENT):
        # obstore itself reads neither profiles nor files with credentials. Without a provider, it would ask for the
        # role of the machine.
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider

            provider = Boto3CredentialProvider()
        except ImportError:
            if "AWS_PROFILE" in os.environ or Path("~/.aws/credentials").expanduser().exists():
                raise Unsupported("obstore reads no files with credentials without boto3") from None
    client: Any = {**_CLIENT, "allow_http": endpoint.startswith("http://")}
    retries: Any = _RETRIES
    return ObstoreObjects(
        lambda: store.S3Store(
            bucket,
            config=config,
            client_options=client,
            retry_config=retries,
            **({} if provider is None else {"credential_provider": provider}),
        )
    )


def azure_objects(container: str, settings: StorageSettings | None, account: str) -> ObstoreObjects:
    """Return the objects of a container of an Azure storage account.

    :raises Unsupported: obstore does not support these settings.
    """
    options: Mapping[str, str] = settings.options if settings is not None else {}
    endpoint = options.get("endpoint", "")
    names = {
        "key": "account_key",
        "sas_token": "sas_key",
        "tenant_id": "tenant_id",
        "client_id": "client_id",
        "client_secret": "client_secret",
        "endpoint": "endpoint",
    }
    config: Any = {"account_name": account}
    config |= {obstore_name: options[name] for name, obstore_name in names.items() if name in options}
    client: Any = {**_CLIENT, "allow_http": endpoint.startswith("http://")}
    retries: Any = _RETRIES
    return ObstoreObjects(
        lambda: store.AzureStore(
            container,
            config=config,
            client_options=client,
            retry_config=retries,
        )
    )


class ObstoreObjects:
    """The objects of one bucket. The methods raise `OSError` or `Unsupported`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        try:
            self._store = make()
        except (exceptions.BaseError, ValueError) as error:
            raise Unsupported(_redacted(error)) from None

    def read(self, key: str) -> tuple[bytes, Any] | None:
        with _obstore_errors():
            try:
                answer = obstore.get(self._store, key)
                return bytes(answer.bytes()), (answer.meta.get("e_tag"), answer.meta.get("version"))
            except (exceptions.NotFoundError, FileNotFoundError):
                return None

    def write(self, key: str, data: bytes, version: Any) -> bool:
        mode: Any = "create"
        if version is not None:
            # Leave out a value that the store did not give, because the store would not find the object by an empty
            # value.
            mode = {name: value for name, value in zip(("e_tag", "version"), version, strict=True) if value}
        with _obstore_errors():
            try:
                obstore.put(self._store, key, data, mode=mode)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
            except exceptions.NotFoundError:
                if version is None:
                    raise
                # Another writer has deleted the object.
                return False
        return True

    def delete(self, key: str) -> None:
        with _obstore_errors(), suppress(exceptions.NotFoundError, FileNotFoundError):
            obstore.delete(self._store, key)


class _obstore_errors:  # noqa: N801
    """Converts obstore's errors to `OSError` and `Unsupported`, without secrets in URLs."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, exceptions.NotSupportedError | exceptions.InvalidPathError):
            raise Unsupported(_redacted(error)) from None
        if isinstance(error, exceptions.BaseError | ValueError | OSError):
            raise OSError(_redacted(error)) from None


def _redacted(error: BaseException) -> str:
    """Return the text of an error without the queries of URLs, which may be signed, and without its debug part."""
    text = str(error).partition("\n\nDebug source:")[0]
    return re.sub(r"(https?://[^\s?\"']+)\?[^\s)\"']+", r"\1?***", text)


_TRIES = 4
_PAUSE_SECONDS = 0.5
# Errors that mean that conditional writes are impossible. Some stores do not support conditional writes. In other
# cases, obstore cannot write, because it finds no credentials although pyarrow.fs finds some. If neither of them has
# the permission to write, the writes without a condition report the error.
_UNSUPPORTED = re.compile(
    r"NotImplemented|InvalidArgument|not implemented|not supported|[Ss]tatus:? (?:400|401|403|405|501)|AccessDenied|"
    r"[Cc]redential|metadata/(?:identity|instance)|api/token|lacked the required permissions|Unauthenticated"
)


class Objects(Protocol):
    """The objects of one bucket. Errors are `OSError` or `Unsupported`."""

    def read(self, key: str) -> tuple[bytes, Any] | None:
        """Return the content and the version of an object, or None if the object does not exist."""

    def write(self, key: str, data: bytes, version: Any) -> bool:
        """Write an object if it still has ``version``. If ``version`` is None, write it if it does not exist. Return
        whether the object was written."""

    def delete(self, key: str) -> None: ...


class Conditional:
    """Conditional writes to the objects of one bucket. Keys are paths in the bucket."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def read(self, key: str) -> tuple[bytes, Any] | None:
        """Return the content and the version of an object, or None if the object does not exist."""
        present: tuple[bytes, Any] | None = _insisting(lambda: self._objects.read(key))
        return present

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists. Return whether the object now contains ``data``."""
        return self.replace(key, data, None)

    def replace(self, key: str, data: bytes, version: Any) -> bool:
        """Write an object if it still has ``version``. If ``version`` is None, write it if it does not exist. Return
        whether the object now contains ``data``.

        :raises OSError: it is unknown whether the object was or will be written.
        """
        error: OSError | None = None
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE_SECONDS)
            try:
                if self._objects.write(key, data, version):
                    return True
                error = None
            except OSError as failure:
                error = failure
            # The library may have sent a request twice, and the first one may have succeeded.
            present = self.read(key)
            if present is not None and present[0] == data:
                return True
            if error is None or (None if present is None else present[1]) != version:
                # The condition no longer holds, so no request that is still under way can succeed.
                return False
        assert error is not None
        raise error

    def probe(self, folder: str) -> None:
        """Check that the store rejects a write whose condition does not hold.

        :raises Unsupported: the store accepts such a write.
        """
        key = posixpath.join(folder, f"_probe-{uuid.uuid4().hex}")
        try:
            _insisting(lambda: self._objects.write(key, b"1", None))
            if _insisting(lambda: self._objects.write(key, b"2", None)):
                raise Unsupported("the store creates an object that exists")
            first = self.read(key)
            if first is None or not _insisting(lambda: self._objects.write(key, b"3", first[1])):
                raise Unsupported("the store does not replace an object that is unchanged")
            if _insisting(lambda: self._objects.write(key, b"4", first[1])):
                raise Unsupported("the store replaces an object that has changed")
        finally:
            with suppress(OSError, Unsupported):
                self._objects.delete(key)


def _insisting(call: Callable[[], Any]) -> Any:
    for attempt in range(_TRIES):
        try:
            return call()
        except OSError as error:
            if attempt == _TRIES - 1 or _UNSUPPORTED.search(str(error)):
                raise
        time.sleep(_PAUSE_SECONDS)
    return None


_known: dict[tuple[Any, ...], Conditional | None] = {}
_lock = Lock()


def conditional_in(uri: LakeUri, opened: Opened) -> Conditional | None:
    """Return the conditional writes to the bucket of the folder ``uri``, or None if the store has no conditional
    writes.

    The first call of a process for a bucket writes and deletes a probe in the folder.

    :raises OSError: the store does not answer.
    """
    if not store_of(uri):
        return None
    options = os.environ if opened.settings is None else opened.settings.options
    key = (uri.scheme, uri.authority, *sorted(item for item in options.items() if _matters(item[0], opened.settings)))
    with _lock:
        if key not in _known:
            _known[key] = _probed(uri, opened)
        return _known[key]


def _matters(name: str, settings: StorageSettings | None) -> bool:
    return settings is not None or name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_"))


def key_of(uri: LakeUri) -> str:
    """Return the path of a URI in its bucket."""
    return "/".join(bucket_location(uri)[1:])


def _probed(uri: LakeUri, opened: Opened) -> Conditional | None:
    try:
        conditional = Conditional(_objects_of(uri, opened))
        conditional.probe(key_of(uri))
    except (Unsupported, ConfigurationError, ImportError):
        return None
    except OSError as error:
        if _UNSUPPORTED.search(str(error)):
            return None
        raise
    return conditional


def _objects_of(uri: LakeUri, opened: Opened) -> Objects:
    from airflow_provider_cdc.core.storage.uri import GoogleRecords

    settings, bucket = opened.settings, bucket_location(uri)[0]
    if store_of(uri) == GCS:
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        endpoint = settings.get("endpoint") if settings is not None else emulator
        return GoogleRecords(bucket, settings, endpoint)
    if store_of(uri) == S3:
        return s3_objects(bucket, settings, str(opened.filesystem.region))
    return azure_objects(bucket, settings, account_of(uri, settings))
