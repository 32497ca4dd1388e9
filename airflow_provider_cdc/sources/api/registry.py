"""The kinds of databases that can be copied. Each kind is registered only here.

Every ``airflow`` command imports this module, so the module does not import any source or hook. It only has the paths
of their classes, and loads a class when the class is needed. So users who copy MySQL need not install the dependencies
of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source

Field = Mapping[str, Any]
"""A field of the connection form, in the format of Airflow's ``provider_info.schema.json``."""

_TLS_PREFIX = "tls_"


@dataclass(frozen=True)
class SourceKind:
    """A kind of database.

    ``name``
        the name in ``ConnectionSettings.kind`` and in manifests.
    ``source``, ``hook``
        the paths of the two classes: ``module.Class``.
    ``connection_types``
        the types of Airflow connections. The first type belongs to this package and has the form. The other types are
        Airflow's own.
    ``form``
        ``ui-field-behaviour``: which standard fields of the form are hidden, relabelled or filled with placeholders.
    ``fields``
        the fields of the form that are stored in the connection's extra.
    ``extra``
        the extra of this package that installs the dependencies of this kind. Empty: the package without extras
        installs them.
    """

    name: str
    title: str
    source: str
    hook: str
    connection_types: tuple[str, ...]
    default_port: int
    form: Mapping[str, Any]
    fields: Mapping[str, Field]
    extra: str = ""

    @property
    def tls_fields(self) -> dict[str, str]:
        """The fields that are TLS settings, each with its name in ``ConnectionSettings.tls``."""
        return {name: name.removeprefix(_TLS_PREFIX) for name in self.fields if name.startswith(_TLS_PREFIX)}

    @property
    def option_fields(self) -> list[str]:
        """The fields whose values become ``ConnectionSettings.options``."""
        return [name for name in self.fields if not name.startswith(_TLS_PREFIX) and name not in _TOKEN_FIELDS]

    def load(self, path: str, where: str = "") -> Any:
        """Load the class at ``path``, which is ``source`` or ``hook``.

        :param where: the connection, for the message.
        :raises ConfigurationError: the dependencies of this kind are not installed.
        """
        module, _, name = path.rpartition(".")
        try:
            return getattr(import_module(module), name)
        except ImportError as error:
            if not self.extra:
                raise
            raise ConfigurationError(
                f"the dependencies of {self.title} are not installed: {error}",
                where=where,
                hint=f"pip install 'airflow-provider-cdc[{self.extra}]' in the Python environment of Airflow and in "
                "that of Spark",
            ) from error


def _text(label: str, description: str, *choices: str) -> Field:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if choices:
        # Without this display name, Airflow's form would show the choice None as "null".
        schema |= {"enum": [None, *choices], "values_display": {"null": "not set"}}
    return {"label": label, "description": description, "schema": schema}


_TLS_FIELDS: Mapping[str, Field] = {
    "tls_mode": _text(
        "TLS mode",
        "Default: verify_ca if an authority is given, else required; for this machine, TLS if the server offers it.",
        "disabled",
        "preferred",
        "required",
        "verify_ca",
        "verify_identity",
    ),
    "tls_ca": _text("TLS authority", "Path of the PEM file with the authority that signed the server's certificate."),
    "tls_cert": _text(
        "TLS certificate", "Path of the PEM file with the client's certificate, if the server requests one."
    ),
    "tls_key": _text("TLS key", "Path of the PEM file with the key of the client's certificate, without a passphrase."),
    "tls_trusted_network": {
        "label": "Trusted network",
        "description": "The network to the server is trusted: the password may be sent to any server that answers.",
        "schema": {"type": ["boolean", "null"]},
    },
}

_TOKEN_FIELDS: Mapping[str, Field] = {
    "iam": {
        "label": "Log in with tokens",
        "description": "Instead of the password: tokens of AWS, Google Cloud or Microsoft Entra.",
        "schema": {"type": ["boolean", "null"]},
    },
    "aws_conn_id": _text("AWS connection", "Its identity makes the tokens. Default: aws_default, or the machine's."),
    "region_name": _text(
        "AWS region", "The region of the server. Default: that of the AWS connection, or of the host."
    ),
    "gcp_conn_id": _text("Google connection", "Its service account makes the tokens for Cloud SQL."),
    "azure_conn_id": _text("Azure connection", "Its identity makes the tokens for Azure Database."),
    "secret_ref": _text(
        "Secret",
        "Instead of the password: the ARN of a secret of AWS Secrets Manager, or a version of Google Secret Manager "
        "(projects/…/secrets/…/versions/…). Each machine reads it with its own identity.",
    ),
}
"""The fields that replace the password: by a secret, or by tokens of an identity. Airflow's own types have most of them
in their extra."""

KINDS = (
    SourceKind(
        name="mysql",
        title="MySQL",
        source="airflow_provider_cdc.sources.mysql.MysqlSource",
        hook="airflow_provider_cdc.hooks.mysql.CdcMysqlHook",
        connection_types=("cdc_mysql", "mysql"),
        default_port=3306,
        form={
            "hidden-fields": ["schema", "extra"],
            "relabeling": {"login": "User"},
            "placeholders": {"host": "mysql.example.com", "port": "3306", "login": "cdc"},
        },
        fields={
            **_TLS_FIELDS,
            "tls_server_key": _text(
                "Server's RSA key",
                "Path of the PEM file with the server's public key, to encrypt the password if TLS is disabled.",
            ),
            **_TOKEN_FIELDS,
        },
    ),
    SourceKind(
        name="postgres",
        title="PostgreSQL",
        source="airflow_provider_cdc.sources.postgres.PostgresSource",
        hook="airflow_provider_cdc.hooks.postgres.CdcPostgresHook",
        connection_types=("cdc_postgres", "postgres"),
        default_port=5432,
        form={
            "hidden-fields": ["extra"],
            "relabeling": {"login": "User", "schema": "Database"},
            "placeholders": {"host": "postgres.example.com", "port": "5432", "login": "cdc", "schema": "shop"},
        },
        fields={
            "publication": _text("Publication", "One that already has the tables, for users who may not create any."),
            **_TLS_FIELDS,
            "tls_channel_binding": _text(
                "Channel binding",
                "require: the server must prove, without an authority, that it knows the password (SCRAM over TLS).",
                "disable",
                "prefer",
                "require",
            ),
            **_TOKEN_FIELDS,
        },
        extra="postgres",
    ),
)


def kind_of(connection_type: str, where: str = "") -> SourceKind:
    """Return the kind of database for a type of Airflow connection.

    :param where: the connection, for the message.
    :raises ConfigurationError: this kind of database cannot be copied.
    """
    for kind in KINDS:
        if connection_type in kind.connection_types:
            return kind
    raise _unknown(f"cannot copy from a connection of type {connection_type!r}", where)


def open_source(settings: ConnectionSettings) -> Source:
    """Return the source for ``settings``. Opens no session.

    :raises ConfigurationError: this kind of database cannot be copied.
    """
    for kind in KINDS:
        if kind.name == settings.kind:
            source: Source = kind.load(kind.source)(settings)
            return source
    raise _unknown(f"cannot copy from a {settings.kind!r} connection", "")


def _unknown(what: str, where: str) -> ConfigurationError:
    *types, last = [name for kind in KINDS for name in kind.connection_types]
    return ConfigurationError(what, where=where, hint=f"use a connection of type {', '.join(types)} or {last}")
