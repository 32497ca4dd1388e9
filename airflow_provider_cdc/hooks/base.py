"""What the hooks of all kinds of sources share: reading an Airflow connection into ``ConnectionSettings``."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_cdc.errors import CdcError, ConfigurationError
from airflow_provider_cdc.sources import open_source
from airflow_provider_cdc.sources.base import ConnectionSettings, Source
from airflow_provider_cdc.sources.trust import warning

_log = logging.getLogger(__name__)

TLS_FIELDS = {
    "tls_mode": "mode",
    "tls_ca": "ca",
    "tls_cert": "cert",
    "tls_key": "key",
    "tls_trusted_network": "trusted_network",
}
"""The connection form's fields, which lie in the connection's extra, and what ``ConnectionSettings.tls`` calls them."""


class CdcHook(BaseHook):
    """A connection to a database that tables are copied from.

    :param source_conn_id: id of a connection of the hook's own type, or of the stock type of that database.
    """

    conn_name_attr = "source_conn_id"
    kind: ClassVar[str]
    """What ``ConnectionSettings.kind`` says."""
    default_port: ClassVar[int]
    more_tls_fields: ClassVar[Mapping[str, str]] = {}
    """What ``TLS_FIELDS`` is without, for this kind alone."""
    option_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of the connection's extra that become ``ConnectionSettings.options``, under the same names."""

    def __init__(self, source_conn_id: str) -> None:
        super().__init__()
        self.source_conn_id = source_conn_id

    def settings(self) -> ConnectionSettings:
        """How to reach the server. Warns in the log if the connection waives what protects the password.

        :raises ConfigurationError: the connection lacks a host or a user, or its extra holds what nobody reads.
        """
        connection = self.get_connection(self.source_conn_id)
        where = f"connection {self.source_conn_id!r}"
        for field, value in (("host", connection.host), ("login", connection.login)):
            if not value:
                raise ConfigurationError(f"it has no {field}", where=where, hint=f"set the connection's {field}")
        extra = connection.extra_dejson
        own = connection.conn_type == self.conn_type
        settings = ConnectionSettings(
            kind=self.kind,
            host=connection.host,
            port=connection.port or self.default_port,
            user=connection.login,
            password=connection.password or "",
            database=connection.schema or "",
            tls=self._own_tls(extra, where) if own else self._stock_tls(extra, where),
            options={field: str(extra[field]) for field in self.option_fields if extra.get(field)},
        )
        if said := warning(settings):
            _log.warning("%s", said)
        return settings

    def get_conn(self) -> Source:
        """The source behind the connection. Opens no session."""
        return open_source(self.settings())

    def test_connection(self) -> tuple[bool, str]:
        """Whether the server answers, and a sentence for the connection form."""
        try:
            return True, self._describe_server()
        except CdcError as error:
            return False, str(error)

    @abstractmethod
    def _describe_server(self) -> str:
        """Open a session and say in one line what answers."""

    @abstractmethod
    def _stock_tls(self, extra: Mapping[str, Any], where: str) -> dict[str, str]:
        """The TLS settings in the extra of a stock connection."""

    def _own_tls(self, extra: Mapping[str, Any], where: str) -> dict[str, str]:
        # A misspelt TLS setting that is quietly ignored is an unencrypted connection.
        names = {**TLS_FIELDS, **self.more_tls_fields}
        fields = [*names, *self.option_fields]
        if unknown := sorted(set(extra) - set(fields)):
            raise ConfigurationError(
                f"its extra has fields that mean nothing here: {', '.join(unknown)}",
                where=where,
                hint=f"the fields are {', '.join(fields)}",
            )
        return {name: str(extra[field]) for field, name in names.items() if extra.get(field)}

    def _our_own(self, extra: Mapping[str, Any]) -> dict[str, str]:
        """What the stock type of connection has no field for."""
        names = {"tls_trusted_network": "trusted_network", **self.more_tls_fields}
        return {name: str(extra[field]) for field, name in names.items() if extra.get(field)}
