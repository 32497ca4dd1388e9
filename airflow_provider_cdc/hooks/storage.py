"""Reads connections to object stores: the option ``storage_conn_id``.

Airflow's providers for Amazon, Google and Microsoft define the types of these connections. The providers need not be
installed, because only the fields of the connections are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_provider_cdc.core.storage.uri import AZURE, GCS, S3, StorageSettings, using
from airflow_provider_cdc.errors import ConfigurationError, StorageUnavailable

PARAMETER = "storage_conn_id"
_MISSING = "the connection does not exist"
_CREATE = "create it with the type aws, google_cloud_platform, wasb or adls, or correct Lake.storage_conn_id"

Returned = TypeVar("Returned")


@contextmanager
def storage_access(storage_conn_id: str) -> Iterator[None]:
    """Open folders in object stores with the settings of a connection, for the duration of the block.

    :param storage_conn_id: empty: with what the environment has.
    :raises ConfigurationError: the connection does not exist, is of another type, or has unsupported fields.
    """
    with using(storage_settings(storage_conn_id)):
        yield


def accessing_storage(method: Callable[..., Returned]) -> Callable[..., Returned]:
    """Wrap a method of a task, so that it opens folders in object stores with the task's ``storage_conn_id``."""

    @wraps(method)
    def replacement(task: Any, *arguments: Any, **named: Any) -> Returned:
        with storage_access(conn_id_of(task)):
            return method(task, *arguments, **named)

    return replacement


def conn_id_of(task: Any) -> str:
    """Return the ``storage_conn_id`` of a task; empty: it has none."""
    conn_id = getattr(task, PARAMETER, "")
    return conn_id if isinstance(conn_id, str) else ""


def storage_settings(storage_conn_id: str) -> StorageSettings | None:
    """Return the settings for access to an object store that a connection has; None: no connection is named.

    :raises ConfigurationError: the connection does not exist, is of another type, or has unsupported fields.
    """
    if not storage_conn_id:
        return None
    try:
        connection = BaseHook.get_connection(storage_conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            "the connection does not exist", where=_where(storage_conn_id), hint=_CREATE
        ) from error
    return settings_of(connection, storage_conn_id)


async def storage_in_event_loop(storage_conn_id: str) -> StorageSettings | None:
    """Return what `storage_settings` returns, for a trigger.

    :raises StorageUnavailable: Airflow does not return the connection.
    :raises ConfigurationError: the connection is of another type, or has unsupported fields.
    """
    if not storage_conn_id:
        return None
    try:
        connection = await BaseHook.aget_connection(storage_conn_id)
    except AirflowNotFoundException as error:
        # Airflow also raises this error if its own server does not answer.
        raise StorageUnavailable(
            "the connection does not exist", where=_where(storage_conn_id), hint=_CREATE
        ) from error
    return settings_of(connection, storage_conn_id)


def settings_of(connection: Any, storage_conn_id: str) -> StorageSettings:
    """Return the `storage_settings` of ``connection``, which the caller has read from Airflow already."""
    where = _where(storage_conn_id)
    if connection.conn_type not in _READERS:
        raise ConfigurationError(
            f"its type is {connection.conn_type}",
            where=where,
            hint=f"name a connection of one of the types {', '.join(_READERS)}",
        )
    store, read = _READERS[connection.conn_type]
    options = read(connection, connection.extra_dejson, where)
    return StorageSettings(store, {name: value for name, value in options.items() if value})


def _where(storage_conn_id: str) -> str:
    return f"{PARAMETER} {storage_conn_id!r}"


def text_of(extra: Mapping[str, Any], *names: str) -> str:
    """Return the first of some fields of the extra that is set; empty: none is."""
    return next((str(extra[name]) for name in names if extra.get(name)), "")


def check_unsupported(extra: Mapping[str, Any], fields: Mapping[str, str], where: str) -> None:
    """Reject fields that would change whose rights apply, or whom the client trusts. Ignoring them would be worse.

    :param fields: the hint for each field.
    """
    for name, hint in fields.items():
        if extra.get(name):
            raise ConfigurationError(f"the field {name} of its extra is not supported", where=where, hint=hint)


def _aws(connection: Any, extra: Mapping[str, Any], where: str) -> dict[str, str]:
    check_unsupported(
        extra,
        {
            "profile_name": "give the keys to the connection; or set AWS_PROFILE in the environment, and no connection",
            "assume_role_with_web_identity": "leave Lake.storage_conn_id empty, and set the variables of the web "
            "identity",
        },
        where,
    )
    if extra.get("verify") is False:
        raise ConfigurationError(
            "it turns off the check of the server's certificate (verify), which is not supported",
            where=where,
            hint="install the certificate of the authority on the machines",
        )
    if (method := text_of(extra, "assume_role_method")) not in ("", "assume_role"):
        raise ConfigurationError(
            f"its assume_role_method is {method}, which is not supported", where=where, hint="use assume_role, or keys"
        )
    access_key = connection.login or text_of(extra, "aws_access_key_id")
    role = text_of(extra, "role_arn")
    if role and access_key:
        raise ConfigurationError(
            "it has keys and a role (role_arn); a role is supported only for the identity of the machine",
            where=where,
            hint="leave out the keys, or give the keys the rights themselves",
        )
    config, services = extra.get("config_kwargs") or {}, extra.get("service_config") or {}
    config = json.loads(config) if isinstance(config, str) else config
    own = services.get("s3") or {} if isinstance(services, Mapping) else {}
    addressing = str((config.get("s3") or {}).get("addressing_style") or "")
    return {
        "access_key": access_key,
        "secret_key": connection.password or text_of(extra, "aws_secret_access_key"),
        "session_token": text_of(extra, "aws_session_token"),
        "region": text_of(extra, "region_name"),
        "endpoint": text_of(own, "endpoint_url") or text_of(extra, "endpoint_url", "host"),
        "addressing": addressing if addressing in ("path", "virtual") else "",
        "role_arn": role,
        "external_id": text_of(extra.get("assume_role_kwargs") or {}, "ExternalId"),
    }


def google_key(extra: Mapping[str, Any], where: str) -> str:
    """Return the key of the service account in the extra of a Google connection, as JSON. Empty: there is none."""
    extra = _google_fields(extra)
    instead = "give the connection the key of a service account (Keyfile JSON)"
    check_unsupported(
        extra,
        dict.fromkeys(("key_secret_name", "credential_config_file", "impersonation_chain"), instead),
        where,
    )
    key = extra.get("keyfile_dict") or ""
    if path := text_of(extra, "key_path"):
        try:
            # Executors need not have this file.
            key = Path(path).read_text()
        except OSError as error:
            raise ConfigurationError(
                f"the key file cannot be read: {error}", where=where, hint="correct the path (Keyfile Path)"
            ) from error
    if isinstance(key, str) and key:
        try:
            key = json.loads(key)
        except ValueError:
            # The parser's message may show a part of the key.
            raise ConfigurationError(
                "its key is not JSON", where=where, hint="paste the whole key file of the service account"
            ) from None
    return json.dumps(key) if key else ""


def _google_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("extra__google_cloud_platform__"): value for name, value in extra.items()}


def _google(connection: Any, extra: Mapping[str, Any], where: str) -> dict[str, str]:
    key, extra = google_key(extra, where), _google_fields(extra)
    return {
        "key": key,
        "endpoint": text_of(extra, "endpoint_url"),
        "anonymous": "true" if extra.get("is_anonymous") else "",
    }


def _azure(connection: Any, extra: Mapping[str, Any], where: str) -> dict[str, str]:
    kind = str(connection.conn_type)
    extra = {name.removeprefix(f"extra__{kind}__"): value for name, value in extra.items()}
    parts = dict(part.split("=", 1) for part in text_of(extra, "connection_string").split(";") if "=" in part)
    host = connection.host or text_of(extra, "account_url") or parts.get("BlobEndpoint", "")
    tenant = text_of(extra, "tenant_id", "tenant")
    login, password = connection.login or "", connection.password or ""
    options = {
        "account": parts.get("AccountName", ""),
        "key": parts.get("AccountKey", "") or text_of(extra, "shared_access_key"),
        "sas_token": (text_of(extra, "sas_token") or parts.get("SharedAccessSignature", "")).lstrip("?"),
        "tenant_id": tenant,
    }
    if tenant:
        options |= {"client_id": login, "client_secret": password}
        login = ""
    elif not options["key"] and not options["sas_token"]:
        options["key"] = password
    address = host.partition("://")[2] if "://" in host else host
    if host.startswith("http://") or (address and "/" in address.rstrip("/")):
        # An emulator, whose address ends with the account: http://host:port/account.
        options["endpoint"] = host.rstrip("/")
        options["account"] = options["account"] or address.rstrip("/").rpartition("/")[2]
    options["account"] = options["account"] or login or address.partition(".")[0]
    if "?" in host:
        raise ConfigurationError(
            "its host has a query", where=where, hint="put the SAS token into the field for it (sas_token)"
        )
    return options


_Reader = Callable[[Any, Mapping[str, Any], str], dict[str, str]]
_READERS: dict[str, tuple[str, _Reader]] = {
    "aws": (S3, _aws),
    "google_cloud_platform": (GCS, _google),
    "wasb": (AZURE, _azure),
    "adls": (AZURE, _azure),
}
