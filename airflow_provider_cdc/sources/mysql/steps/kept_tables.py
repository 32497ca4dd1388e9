"""Looks at the tables whose finished reads are kept when a run moves to a later position.

The rows that were read are brought to the later position by the log. So the log up to this position must have no
statement that changes such a table. And the next run compares the table with the facts at the later position, because
it searches the log only from there on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.session import RunSettings, session
from airflow_provider_cdc.sources.mysql.tables.identities.watched import WatchedTables


class KeepsTables:
    """The methods of `Source` for tables whose finished reads are kept."""

    settings: ConnectionSettings
    _identity: Mapping[str, str] | None
    _watched: WatchedTables | None

    def altered_in_log(self, tables: Sequence[Table]) -> Mapping[TableName, SchemaChanged]:
        # Import this module late: `sources.mysql.source` explains why.
        from airflow_provider_cdc.sources.mysql.steps import altered_in_log

        assert isinstance(self.settings, RunSettings)
        assert self._identity is not None
        return altered_in_log.altered_in_log(self.settings, self._identity, self.settings.position, tables)

    def renewed(self, tables: Sequence[Table]) -> list[Table]:
        assert self._watched is not None
        with session(self.settings) as connection:
            return self._watched.renewed(self.settings, connection, tables)

    def with_facts_of(self, identity: Mapping[str, str]) -> Self:
        source = copy(self)
        source._watched = WatchedTables(identity)
        return source
