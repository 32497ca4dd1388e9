"""Watches the identities of a run's tables, although the server may remove log that the run has recorded.

The log must explain each change of an identity since the run recorded it (`replaced`). If the run records its
log in pieces, the server may remove the log of a statement that was explained before. So the identities are noted with
each piece. From then on, they are compared with the noted identities, and the log is searched from the end of the piece
on. The end of the piece is noted first, and then the identities are read, as at the beginning of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.spool_chain import reached
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from airflow_provider_cdc.sources.mysql.server.server import LOG_PLACE
from airflow_provider_cdc.sources.mysql.server.session import Connection, query
from airflow_provider_cdc.sources.mysql.tables.identities.identity import (
    Explained,
    TableIdentity,
    identified,
    look_replaced,
)
from airflow_provider_cdc.sources.mysql.tables.missing import naming_missing_tables
from airflow_provider_cdc.sources.mysql.tables.schema import table_sql

_HINT = "trigger a new run"
_WAIT_SECONDS = 10
_AT_ONCE = 50


@dataclass(frozen=True)
class _Noted:
    """The place in the log from which on the log must explain changes, and the identities there, by the table's name.
    Tables that still have their recorded identity are omitted."""

    place: LogPlace
    identities: Mapping[str, TableIdentity]

    def among(self, tables: Sequence[Table]) -> list[Table]:
        """Return the tables with the noted identities."""
        return [
            replace(self._with(table), cascades_from=tuple(map(self._with, table.cascades_from))) for table in tables
        ]

    def _with(self, table: Table) -> Table:
        identity = self.identities.get(str(table.name))
        return table if identity is None else identified(table, identity)


def _wait_for_statements(connection: Connection, names: Sequence[TableName]) -> None:
    """Wait until the tables show the effects of all statements that are in the log. The server logs a statement before
    its effects are visible, and holds the metadata lock of the table meanwhile."""
    query(connection, f"SET SESSION lock_wait_timeout = {_WAIT_SECONDS}")
    for start in range(0, len(names), _AT_ONCE):
        selects = [f"(SELECT 1 FROM {table_sql(name)} LIMIT 0)" for name in names[start : start + _AT_ONCE]]
        with naming_missing_tables(connection, names):
            query(connection, " UNION ALL ".join(selects))


class WatchedTables:
    """The tables of the run that recorded the server's ``identity``."""

    def __init__(self, identity: Mapping[str, str]) -> None:
        self._identity = identity
        self._noted: _Noted | None = None
        # The thread that checks the tables each minute adds to it, too.
        self._explained: dict[TableName, Explained] = {}

    @property
    def _since(self) -> _Noted:
        if self._noted is not None:
            return self._noted
        spooled = reached(self._identity)
        if spooled is None or not spooled.known:
            return _Noted(LogPlace.parse(self._identity[LOG_PLACE]), {})
        known = json.loads(spooled.known)
        identities = {name: TableIdentity(**fields) for name, fields in known["identities"].items()}
        return _Noted(LogPlace.parse(known["place"]), identities)

    def check(self, settings: ConnectionSettings, connection: Connection, tables: Sequence[Table]) -> None:
        """Check that no table was replaced without a trace in the log.

        :raises SchemaChanged, TransientError: as `replaced.check_not_replaced`.
        """
        self._check(settings, connection, tables, self._since, self._explained)

    def renewed(self, settings: ConnectionSettings, connection: Connection, tables: Sequence[Table]) -> list[Table]:
        """Check the ``tables``, and return them with their present identities.

        If the log does not explain an identity yet, because a statement is under way, the table has the identity that
        was known before.

        :raises SchemaChanged, TransientError: as `replaced.check_not_replaced`.
        """
        since = self._since
        self._check(settings, connection, tables, since, self._explained)
        present = {str(name): one.identity for name, one in self._explained.copy().items()}
        return _Noted(since.place, {**since.identities, **present}).among(tables)

    def note(self, settings: ConnectionSettings, connection: Connection, end: LogEnd, tables: Sequence[Table]) -> str:
        """Check the ``tables``, and note their identities at the place ``end``, which was read before this call.

        :returns: the noted identities as text, for `Link.known`.
        """
        _wait_for_statements(connection, [table.name for table in tables])
        since = self._since
        self._check(settings, connection, tables, since, self._explained)
        identities = {**since.identities, **{str(name): one.identity for name, one in self._explained.copy().items()}}
        noted = _Noted(LogPlace.parse(end), identities)
        if not look_replaced(connection, noted.among(tables), {}):
            # Otherwise a table has just been altered, or the server did not show its numbers in time.
            self._noted, self._explained, since = noted, {}, noted
        known = {name: asdict(identity) for name, identity in since.identities.items()}
        return json.dumps({"place": str(since.place), "identities": known})

    @staticmethod
    def _check(
        settings: ConnectionSettings,
        connection: Connection,
        tables: Sequence[Table],
        noted: _Noted,
        explained: dict[TableName, Explained],
    ) -> None:
        known = noted.among(tables)
        if look_replaced(connection, known, explained):
            from airflow_provider_cdc.sources.mysql.tables.identities import replaced

            replaced.check_not_replaced(settings, connection, noted.place, known, _HINT, explained)
