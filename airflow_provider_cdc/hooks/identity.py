"""Reads which identity makes the tokens of a source's connection: the fields ``iam``, ``aws_conn_id``, ``gcp_conn_id``
and ``azure_conn_id`` of its extra.

The fields have the names of Airflow's own hooks for MySQL and PostgreSQL, which know no ``gcp_conn_id``. The clouds'
providers need not be installed, because only the fields of their connections are read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_provider_cdc.errors import ConfigurationError, SourceUnavailable
from airflow_provider_cdc.hooks.storage import check_unsupported, google_key, text_of
from airflow_provider_cdc.sources.secret_store import is_reference
from airflow_provider_cdc.sources.tokens import CLOUDSQL_IAM, ENTRA, RDS_IAM

_CLOUDS = {"aws_conn_id": RDS_IAM, "gcp_conn_id": CLOUDSQL_IAM, "azure_conn_id": ENTRA}
_TYPES = {RDS_IAM: "aws", CLOUDSQL_IAM: "google_cloud_platform", ENTRA: "azure"}
_DEFAULT_FIELD, _DEFAULT_ID = "aws_conn_id", "aws_default"
_REDSHIFT = ("redshift", "redshift-serverless", "cluster-identifier", "workgroup-name")
_NOT_IN_SESSION_NAME = re.compile(r"[^\w+=,.@-]+", re.ASCII)
_RDS_HOST = re.compile(r"\.([a-z]{2,}(?:-[a-z]+)+-\d+)\.rds\.amazonaws\.com(?:\.cn)?$")
"""The name of an instance, a cluster or a proxy of Amazon RDS. It has the region."""
_YES, _NO = ("true", "yes", "on", "1"), ("", "none", "false", "no", "off", "0")


def read_identity(extra: Mapping[str, Any], where: str) -> Any:
    """Return the connection with the credentials for the tokens of a source's connection. None: there is none.

    :param extra: the extra of the source's connection.
    :param where: the source's connection, for messages.
    :raises ConfigurationError: the fields contradict each other, or the connection does not exist.
    """
    if not (conn_id := _conn_id(extra, where)):
        return None
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        return _missing(extra, conn_id, error, ConfigurationError)


async def identity_in_event_loop(extra: Mapping[str, Any], where: str) -> Any:
    """Return what `read_identity` returns, for a trigger.

    :raises SourceUnavailable: Airflow does not return the connection.
    """
    if not (conn_id := _conn_id(extra, where)):
        return None
    try:
        return await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException as error:
        # Airflow also raises this error if its own server does not answer.
        return _missing(extra, conn_id, error, SourceUnavailable)


def auth_of(extra: Mapping[str, Any], where: str) -> str:
    """Return how sessions of a source's connection log in, as in ``ConnectionSettings.auth``."""
    setting = str(extra.get("iam", "")).lower()
    if setting not in _YES + _NO:
        raise ConfigurationError(
            f"the field iam of the connection's extra is {extra['iam']!r}", where=where, hint="use true or false"
        )
    if setting in _NO:
        return ""
    if redshift := [name for name in _REDSHIFT if extra.get(name)]:
        raise ConfigurationError(
            f"{', '.join(redshift)}: Amazon Redshift cannot be copied, because it has no log of changes",
            where=where,
            hint="name a MySQL or PostgreSQL server",
        )
    named = [field for field in _CLOUDS if extra.get(field)]
    if len(named) > 1:
        raise ConfigurationError(
            f"the connection's extra has {' and '.join(named)}",
            where=where,
            hint="name only the connection of the cloud on which the server runs",
        )
    return _CLOUDS[named[0] if named else _DEFAULT_FIELD]


def secret_of(extra: Mapping[str, Any], password: str | None, where: str) -> str:
    """Return ``ConnectionSettings.secret_ref``.

    :param password: the password of the source's connection.
    :raises ConfigurationError: the field does not name a secret, or the connection also says how to log in.
    """
    if not (reference := text_of(extra, "secret_ref")):
        return ""
    if not is_reference(reference):
        raise ConfigurationError(
            "the field secret_ref of the connection's extra does not name a secret",
            where=where,
            hint="give the ARN of a secret of AWS Secrets Manager, or projects/…/secrets/…/versions/… of Google",
        )
    if others := [name for name, value in (("a password", password), ("iam", auth_of(extra, where))) if value]:
        raise ConfigurationError(
            f"the connection has secret_ref and {' and '.join(others)}",
            where=where,
            hint="remove one: with secret_ref, no other secret need be in Airflow",
        )
    return reference


def credentials_of(auth: str, extra: Mapping[str, Any], identity: Any, host: str, where: str) -> dict[str, str]:
    """Return ``ConnectionSettings.credentials``, with only the fields that are set.

    :param identity: the connection that `read_identity` returned.
    :param host: the source's host.
    """
    if identity is not None and identity.conn_type != _TYPES[auth]:
        raise ConfigurationError(
            f"the connection {identity.conn_id!r}, which makes the tokens, is of the type {identity.conn_type}",
            where=where,
            hint=f"name a connection of the type {_TYPES[auth]}",
        )
    where = where if identity is None else f"connection {identity.conn_id!r}"
    own = {} if identity is None else identity.extra_dejson
    if auth == CLOUDSQL_IAM:
        found = {"key": google_key(own, where)}
    elif auth == ENTRA:
        found = _azure(identity, own, where)
    else:
        found = _aws(identity, own, where)
        region = text_of(extra, "region_name") or found["region"] or _region_of(host)
        found["region"] = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
        if not found["region"]:
            raise ConfigurationError(
                f"the region of {host} is unknown", where=where, hint="set region_name in the connection's extra"
            )
    return {name: value for name, value in found.items() if value}


def _conn_id(extra: Mapping[str, Any], where: str) -> str:
    auth = auth_of(extra, where)
    if not auth:
        return ""
    field = next(name for name, kind in _CLOUDS.items() if kind == auth)
    # As in Airflow's hooks, null stands for the identity of the machine.
    return str(extra.get(field, _DEFAULT_ID if field == _DEFAULT_FIELD else "") or "")


def _missing(
    extra: Mapping[str, Any],
    conn_id: str,
    cause: Exception,
    kind: type[ConfigurationError] | type[SourceUnavailable],
) -> None:
    if _DEFAULT_FIELD in extra or conn_id != _DEFAULT_ID:
        raise kind(
            "the connection, which makes the tokens to log in, does not exist",
            where=f"connection {conn_id!r}",
            hint="create it, or correct the extra of the source's connection",
        ) from cause


def _region_of(host: str) -> str:
    match = _RDS_HOST.search(host)
    return match[1] if match else ""


def _aws(connection: Any, extra: Mapping[str, Any], where: str) -> dict[str, str]:
    instead = "enter keys, or a role (role_arn); or leave both empty, to use the identity of the machine"
    check_unsupported(extra, dict.fromkeys(("profile_name", "assume_role_with_web_identity"), instead), where)
    if (method := text_of(extra, "assume_role_method")) not in ("", "assume_role"):
        raise ConfigurationError(
            f"its assume_role_method is {method}, which is not supported", where=where, hint="use assume_role, or keys"
        )
    keys = (connection.login, connection.password) if connection is not None else ("", "")
    return {
        "access_key": keys[0] or text_of(extra, "aws_access_key_id"),
        "secret_key": keys[1] or text_of(extra, "aws_secret_access_key"),
        "session_token": text_of(extra, "aws_session_token"),
        "region": text_of(extra, "region_name"),
        **_role(connection, extra, where),
    }


def _role(connection: Any, extra: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the role to assume, and all arguments with which Airflow's AWS hook assumes it: a session policy restricts
    its rights, and the role may demand a name of the session, tags or an ``ExternalId``."""
    role, arguments = text_of(extra, "role_arn"), extra.get("assume_role_kwargs") or {}
    if not role:
        return {}
    if not isinstance(arguments, Mapping):
        raise ConfigurationError("its assume_role_kwargs are no object", where=where, hint="enter a JSON object")
    named = {"RoleSessionName": _NOT_IN_SESSION_NAME.sub("-", f"airflow_{connection.conn_id.lower()}").strip("-")}
    return {"role_arn": role, "role_arguments": json.dumps({**named, **arguments}, sort_keys=True)}


def _azure(connection: Any, extra: Mapping[str, Any], where: str) -> dict[str, str]:
    instead = (
        "enter the client's id, its secret and the tenant; or leave them empty, to use the identity of the machine"
    )
    check_unsupported(extra, dict.fromkeys(("key_path", "key_json"), instead), where)
    if connection is None or not (connection.login and connection.password):
        names = ("managed_identity_client_id", "workload_identity_tenant_id")
        return {name: text_of(extra, name) for name in names}
    tenant = text_of(extra, "tenantId")
    if not tenant:
        raise ConfigurationError("it has no tenant", where=where, hint="set tenantId in its extra")
    return {"client_id": connection.login, "client_secret": connection.password, "tenant_id": tenant}
