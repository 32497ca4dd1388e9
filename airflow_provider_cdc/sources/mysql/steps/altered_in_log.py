"""Finds all tables that statements in the log have changed since the position of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.spool_chain import reached
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment
from airflow_provider_cdc.sources.mysql.log import refusals
from airflow_provider_cdc.sources.mysql.log.long_prepared import PreparedWalker
from airflow_provider_cdc.sources.mysql.log.statements.copied_tables import names_of
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Effect, meaning
from airflow_provider_cdc.sources.mysql.log.survey import looked_through, stretches
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, check_place, end_of_log, log_files
from airflow_provider_cdc.sources.mysql.server.server import LOG_PLACE
from airflow_provider_cdc.sources.mysql.server.session import session


def altered_in_log(
    settings: ConnectionSettings, identity: Mapping[str, str], start: Position, tables: Sequence[Table]
) -> dict[TableName, SchemaChanged]:
    """`Source.altered_in_log`. Row events are not looked at.

    The search begins at the end of the last piece that the run has recorded: a run records no piece that has a
    statement that changes one of its tables.
    """
    spooled = reached(identity)
    begin = LogPlace.parse(identity[LOG_PLACE] if spooled is None else spooled.end)
    with session(settings) as connection:
        # Read the end of the log before the list of files, so that the list includes the file in which the log ends.
        end, files = end_of_log(settings, connection), log_files(connection)
        check_place(settings, files, begin)
    altered: dict[TableName, SchemaChanged] = {}

    def walker_of(segment: LogSegment) -> _Altered:
        return _Altered(segment, GtidSet.expect(start), tables)

    with looked_through(settings, files, stretches(files, begin, end), walker_of) as walkers:
        for walker, error in walkers:
            altered = {**walker.altered, **altered}
            if error is not None:
                # The run stops with the same error when it reads this part of the log.
                break
    return altered


class _Altered(PreparedWalker):
    """Collects the tables that statements change, and goes on after such a statement."""

    def __init__(self, segment: LogSegment, initial: GtidSet, tables: Sequence[Table]) -> None:
        super().__init__(segment.name, segment.start, segment.stop, initial)
        self.altered: dict[TableName, SchemaChanged] = {}
        # These schema changes are known, and the rows are carried over them.
        self._known = {era.begins for table in tables for era in table.eras}
        self._others = list(tables)
        self._names = names_of(tables)

    def _check(self, statement: Statement) -> None:
        if str(LogPlace(self.summary.segment.name, self.position)) in self._known:
            return
        # A statement may name several tables, but each call of `meaning` reports only one table.
        while self._others:
            effect = meaning(statement, self._names)
            if effect.effect is not Effect.TOUCHES or effect.table is None:
                return
            error = refusals.touched(effect.described, effect.table, False, self.where)
            assert isinstance(error, SchemaChanged)
            self.altered[effect.table] = error
            self._others = [table for table in self._others if table.name != effect.table]
            self._names = names_of(self._others)
