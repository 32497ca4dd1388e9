"""The base class of the hooks: it reads an Airflow connection into ``ConnectionSettings``."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_cdc.errors import CdcError, ConfigurationError
from airflow_provider_cdc.hooks.identity import auth_of, credentials_of, read_identity, secret_of
from airflow_provider_cdc.sources.api.registry import SourceKind, kind_of, open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source
from airflow_provider_cdc.sources.session import warning

_log = logging.getLogger(__name__)


class CdcHook(BaseHook):
    """A connection to a source database.

    :param source_conn_id: id of a connection of the hook's own type, or of Airflow's stock type for that database.
    """

    conn_name_attr = "source_conn_id"
    own_tls_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of this hook's form that are also accepted in the extra of a stock connection. A stock connection has
    Airflow's own type for the database, and the form of that type lacks these fields.
    """
    stock_refused: ClassVar[tuple[str, ...]] = ()
    """Fields in the extra of a stock connection that would redirect sessions to another server, or change which servers
    are trusted.

    These fields are not supported. If they were ignored, sessions could reach a different server than the user expects,
    so such connections are rejected.
    """

    def __init__(self, source_conn_id: str) -> None:
        super().__init__()
        self.source_conn_id = source_conn_id

    @property
    def kind(self) -> SourceKind:
        return kind_of(self.conn_type)

    def settings(self) -> ConnectionSettings:
        """Return the settings for reaching the server. Logs a warning if the connection's settings leave the password
        unprotected.

        :raises ConfigurationError: the connection has no host or user, or its extra has unsupported fields.
        """
        connection = self.get_connection(self.source_conn_id)
        return self.settings_of(connection, read_identity(connection.extra_dejson, self.where))

    @property
    def where(self) -> str:
        """The connection, for messages."""
        return f"connection {self.source_conn_id!r}"

    def settings_of(self, connection: Any, identity: Any) -> ConnectionSettings:
        """Return the `settings` of ``connection``. The caller has already read the connection from Airflow.

        :param identity: the connection with the credentials for tokens (`hooks.identity.read_identity`).
        """
        where = self.where
        for field, value in (("host", connection.host), ("login", connection.login)):
            if not value:
                raise ConfigurationError(f"it has no {field}", where=where, hint=f"set the {field} of the connection")
        extra = connection.extra_dejson
        same_type = connection.conn_type == self.conn_type
        if not same_type and (refused := [field for field in self.stock_refused if extra.get(field)]):
            raise ConfigurationError(
                f"unsupported connection extras: {', '.join(refused)} (they would redirect the connection or change "
                "its trust or authentication)",
                where=where,
                hint=f"create a connection of type {self.conn_type}, and set its host, port, login and password",
            )
        auth, secret_ref = auth_of(extra, where), secret_of(extra, connection.password, where)
        settings = ConnectionSettings(
            kind=self.kind.name,
            host=connection.host,
            port=connection.port or self.kind.default_port,
            user=connection.login,
            password="" if auth else connection.password or "",
            database=connection.schema or "",
            tls=self._own_tls(extra, where) if same_type else self._stock_tls(extra, where),
            options={field: str(extra[field]) for field in self.kind.option_fields if extra.get(field)},
            auth=auth,
            credentials=credentials_of(auth, extra, identity, connection.host, where) if auth else {},
            secret_ref=secret_ref,
        )
        if warning_text := warning(settings):
            _log.warning("%s", warning_text)
        return settings

    def get_conn(self) -> Source:
        """Return the source behind the connection. Opens no session."""
        return open_source(self.settings())

    def test_connection(self) -> tuple[bool, str]:
        """Return whether runs can copy tables through this connection, and a message for the connection form.

        The tables are not checked. The message describes the server and each problem.
        """
        try:
            answers = self._describe_server()
            source = self.get_conn()
            problems = source.check_server()
        except CdcError as error:
            return False, str(error)
        if not problems:
            return True, answers
        # The UI shows the message as one paragraph, so the problems are numbered.
        message = "\n".join(
            f"({number}) {problem.where}: {problem.what}. Hint: {problem.hint}."
            for number, problem in enumerate(problems, 1)
        )
        return False, f"{answers}, but copies cannot be made:\n{message}"

    @abstractmethod
    def _describe_server(self) -> str:
        """Open a session, and return one line that describes the server."""

    @abstractmethod
    def _stock_tls(self, extra: Mapping[str, Any], where: str) -> dict[str, str]:
        """Return the TLS settings in the extra of a stock connection."""

    def _own_tls(self, extra: Mapping[str, Any], where: str) -> dict[str, str]:
        # If a misspelt TLS setting were silently ignored, the connection might not be encrypted.
        if unknown := sorted(set(extra) - set(self.kind.fields)):
            raise ConfigurationError(
                f"unknown fields in the extra of the connection: {', '.join(unknown)}",
                where=where,
                hint=f"use only these fields: {', '.join(self.kind.fields)}",
            )
        return {name: str(extra[field]) for field, name in self.kind.tls_fields.items() if extra.get(field)}

    def _our_own(self, extra: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings for which the form of the stock connection type has no field."""
        names = self.kind.tls_fields
        fields = ("tls_trusted_network", *self.own_tls_fields)
        return {names[field]: str(extra[field]) for field in fields if extra.get(field)}
