"""What the hooks of all kinds of sources share: reading an Airflow connection into ``ConnectionSettings``."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_cdc.errors import CdcError, ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.optional_capabilities import ChecksServer
from airflow_provider_cdc.sources.api.registry import Kind, kind_of, open_source
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.session.trust import warning

_log = logging.getLogger(__name__)


class CdcHook(BaseHook):
    """A connection to a database that tables are copied from.

    :param source_conn_id: id of a connection of the hook's own type, or of the stock type of that database.
    """

    conn_name_attr = "source_conn_id"
    own_tls_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of the form that a stock connection of this kind may have in its extra, too: its own type has none."""
    stock_refused: ClassVar[tuple[str, ...]] = ()
    """Fields of a stock connection's extra that say where its sessions go, or who is trusted there, and that lead
    nowhere here: without them another server might answer."""

    def __init__(self, source_conn_id: str) -> None:
        super().__init__()
        self.source_conn_id = source_conn_id

    @property
    def kind(self) -> Kind:
        return kind_of(self.conn_type)

    def settings(self) -> ConnectionSettings:
        """How to reach the server. Warns in the log if the connection waives what protects the password.

        :raises ConfigurationError: the connection lacks a host or a user, or its extra holds what nobody reads.
        """
        return self.settings_of(self.get_connection(self.source_conn_id))

    def settings_of(self, connection: Any) -> ConnectionSettings:
        """`settings` of ``connection``, which somebody else has asked Airflow for."""
        where = f"connection {self.source_conn_id!r}"
        for field, value in (("host", connection.host), ("login", connection.login)):
            if not value:
                raise ConfigurationError(f"it has no {field}", where=where, hint=f"set the connection's {field}")
        extra = connection.extra_dejson
        same_type = connection.conn_type == self.conn_type
        if not same_type and (refused := [field for field in self.stock_refused if extra.get(field)]):
            raise ConfigurationError(
                f"its extra says where to go or whom to trust in a way that is not followed here: {', '.join(refused)}",
                where=where,
                hint="name the server by the connection's host and port and its user by login and password, in a "
                f"connection of its own (type {self.conn_type})",
            )
        settings = ConnectionSettings(
            kind=self.kind.name,
            host=connection.host,
            port=connection.port or self.kind.default_port,
            user=connection.login,
            password=connection.password or "",
            database=connection.schema or "",
            tls=self._own_tls(extra, where) if same_type else self._stock_tls(extra, where),
            options={field: str(extra[field]) for field in self.kind.option_fields if extra.get(field)},
        )
        if warning_text := warning(settings):
            _log.warning("%s", warning_text)
        return settings

    def get_conn(self) -> Source:
        """The source behind the connection. Opens no session."""
        return open_source(self.settings())

    def test_connection(self) -> tuple[bool, str]:
        """Whether copies can be made over this connection, as far as that does not depend on the tables; and a text
        for the connection form, which says what is missing."""
        try:
            answers = self._describe_server()
            source = self.get_conn()
            problems = source.check_server() if isinstance(source, ChecksServer) else []
        except CdcError as error:
            return False, str(error)
        if not problems:
            return True, answers
        # The UI shows all of it as one paragraph.
        message = "\n".join(
            f"({number}) {problem.where}: {problem.what}. Hint: {problem.hint}."
            for number, problem in enumerate(problems, 1)
        )
        return False, f"{answers}, but copies cannot be made:\n{message}"

    @abstractmethod
    def _describe_server(self) -> str:
        """Open a session and say in one line what answers."""

    @abstractmethod
    def _stock_tls(self, extra: Mapping[str, Any], where: str) -> dict[str, str]:
        """The TLS settings in the extra of a stock connection."""

    def _own_tls(self, extra: Mapping[str, Any], where: str) -> dict[str, str]:
        # A misspelt TLS setting that is quietly ignored is an unencrypted connection.
        if unknown := sorted(set(extra) - set(self.kind.fields)):
            raise ConfigurationError(
                f"its extra has fields that mean nothing here: {', '.join(unknown)}",
                where=where,
                hint=f"the fields are {', '.join(self.kind.fields)}",
            )
        return {name: str(extra[field]) for field, name in self.kind.tls_fields.items() if extra.get(field)}

    def _our_own(self, extra: Mapping[str, Any]) -> dict[str, str]:
        """What the stock type of connection has no field for."""
        names = self.kind.tls_fields
        fields = ("tls_trusted_network", *self.own_tls_fields)
        return {names[field]: str(extra[field]) for field in fields if extra.get(field)}
