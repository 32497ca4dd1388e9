"""The kinds of databases that can be copied, each registered here and nowhere else.

Every ``airflow`` command reads this, so it imports nothing: sources and hooks are named, and loaded when one is opened.
Who copies MySQL does not have to install what PostgreSQL needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.api.connection import ConnectionSettings
    from airflow_provider_cdc.sources.api.source import Source

Field = Mapping[str, Any]
"""A field of the connection form, as ``provider_info.schema.json`` of Airflow wants it."""

_TLS_PREFIX = "tls_"


@dataclass(frozen=True)
class Kind:
    """A kind of database.

    ``name``
        what ``ConnectionSettings.kind`` and manifests call it.
    ``source``, ``hook``
        where the two classes are: ``module.Class``.
    ``connection_types``
        types of Airflow connections: our own first, with the form, then the stock ones.
    ``form``
        what the form hides, relabels and shows as examples: ``ui-field-behaviour``.
    ``fields``
        the fields of the form that lie in the connection's extra.
    ``extra``
        the extra of this package that installs what this kind needs; empty: the package itself does.
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
        """The names of fields that are TLS settings, and what ``ConnectionSettings.tls`` calls them."""
        return {name: name.removeprefix(_TLS_PREFIX) for name in self.fields if name.startswith(_TLS_PREFIX)}

    @property
    def option_fields(self) -> list[str]:
        """The other fields, which become ``ConnectionSettings.options``."""
        return [name for name in self.fields if not name.startswith(_TLS_PREFIX)]

    def load(self, path: str, where: str = "") -> Any:
        """The class at ``path``, which is ``source`` or ``hook``.

        :param where: the connection, for the message.
        :raises ConfigurationError: what this kind needs is not installed.
        """
        module, _, name = path.rpartition(".")
        try:
            return getattr(import_module(module), name)
        except ImportError as error:
            if not self.extra:
                raise
            raise ConfigurationError(
                f"what {self.title} needs is not installed: {error}",
                where=where,
                hint=f"pip install 'airflow-provider-cdc[{self.extra}]', in Airflow and where Spark's Python runs",
            ) from error


def _text(label: str, description: str, *choices: str) -> Field:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if choices:
        # Airflow's form calls what has no other name "null".
        schema |= {"enum": [None, *choices], "values_display": {"null": "not set"}}
    return {"label": label, "description": description, "schema": schema}


_TLS_FIELDS: Mapping[str, Field] = {
    "tls_mode": _text(
        "TLS mode",
        "Without one: verify_ca if an authority is given, else required; on this machine encrypt where offered.",
        "disabled",
        "preferred",
        "required",
        "verify_ca",
        "verify_identity",
    ),
    "tls_ca": _text("TLS authority", "Path of the PEM file with the authority that signed the server's certificate."),
    "tls_cert": _text(
        "TLS certificate", "Path of the PEM file with the client's certificate, where the server asks for one."
    ),
    "tls_key": _text("TLS key", "Path of the PEM file with the key of the client's certificate, without a passphrase."),
    "tls_trusted_network": {
        "label": "Trusted network",
        "description": "Nobody else is in the network between: the password may be shown to whoever answers there.",
        "schema": {"type": ["boolean", "null"]},
    },
}

KINDS = (
    Kind(
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
                "Path of the PEM file with the server's public key, for the password where TLS is disabled.",
            ),
        },
    ),
    Kind(
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
            "publication": _text("Publication", "One that holds the tables already, for users who may not create any."),
            **_TLS_FIELDS,
            "tls_channel_binding": _text(
                "Channel binding",
                "require: the server must prove, without an authority, that it knows the password (SCRAM over TLS).",
                "disable",
                "prefer",
                "require",
            ),
        },
        extra="postgres",
    ),
)


def kind_of(connection_type: str, where: str = "") -> Kind:
    """The kind of database behind a type of Airflow connection.

    :param where: the connection, for the message.
    :raises ConfigurationError: it is not one that can be copied.
    """
    for kind in KINDS:
        if connection_type in kind.connection_types:
            return kind
    raise _unknown(f"cannot copy from a connection of type {connection_type!r}", where)


def open_source(settings: ConnectionSettings) -> Source:
    """The source behind ``settings``. Opens no session.

    :raises ConfigurationError: the kind of database is not one that can be copied.
    """
    for kind in KINDS:
        if kind.name == settings.kind:
            source: Source = kind.load(kind.source)(settings)
            return source
    raise _unknown(f"cannot copy from a {settings.kind!r} connection", "")


def _unknown(what: str, where: str) -> ConfigurationError:
    *types, last = [name for kind in KINDS for name in kind.connection_types]
    return ConfigurationError(what, where=where, hint=f"use a connection of type {', '.join(types)} or {last}")
