"""The objects of buckets in S3 and Azure, through obstore. Unlike in pyarrow.fs, its writes may have a condition."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.lazy import LazyModule
from airflow_provider_cdc.core.storage.access import StorageSettings

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
        with _told():
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
        with _told():
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
        with _told(), suppress(exceptions.NotFoundError, FileNotFoundError):
            obstore.delete(self._store, key)


class _told:  # noqa: N801
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
