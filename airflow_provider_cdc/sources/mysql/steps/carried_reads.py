"""Carries a finished read of a table over schema changes, so that the run need not read the table again.

The rules are those of copies that are rolled forward (`steps.roll_forward`). In addition, each schema change must lie
in the log after the end of the read. A read that lasted beyond a schema change may have rows of both shapes: for
example, `RENAME COLUMN a TO b, RENAME COLUMN b TO a` leaves the names as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.spool_chain import reached
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment
from airflow_provider_cdc.sources.mysql.log import refusals
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Effect, meaning
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import names_of
from airflow_provider_cdc.sources.mysql.log.survey import PreparedWalker, looked_through, stretches
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    check_place,
    end_of_log,
    is_before,
    log_files,
)
from airflow_provider_cdc.sources.mysql.server.privileges import Privileges
from airflow_provider_cdc.sources.mysql.server.server import LOG_PLACE
from airflow_provider_cdc.sources.mysql.server.session import RunSettings, session
from airflow_provider_cdc.sources.mysql.tables.identities.replaced import WatchedTables


class CarriesReads:
    """The methods of `Source` for reads that are carried over schema changes."""

    settings: ConnectionSettings

    def end_of_log(self) -> LogEnd:
        with session(self.settings) as connection:
            return LogEnd(str(end_of_log(self.settings, connection)))

    def ends_of_reads(self, tables: Sequence[Table]) -> dict[TableName, LogEnd]:
        return dict.fromkeys((table.name for table in tables), self.end_of_log())

    def carry_read(
        self,
        identity: Mapping[str, str],
        start: Position,
        table: Table,
        now: Table,
        ended: LogEnd,
        end: Position,
        recorded: LogEnd | None = None,
    ) -> Evolution:
        # Import this module late: `sources.mysql.source` explains why.
        from airflow_provider_cdc.sources.mysql.steps import roll_forward

        # The values of new columns come from the log, so no SELECT of them would be denied.
        with session(self.settings) as connection:
            denied = Privileges(connection).select_problem(table.name)
        if denied is not None:
            raise _not_carried(table, denied.what)
        begin, evolutions = GtidSet.expect(start), dict[TableName, Evolution]()
        refused = roll_forward.refusals_since(self.settings, identity, begin, [table], None, evolutions)
        if why := refused.get(table.name):
            raise _not_carried(table, why.replace("since the copy", "since the read"))
        evolution = evolutions.get(table.name)
        if evolution is None:
            raise _not_carried(table, "the log has no change of its columns")
        read_until = LogPlace.parse(ended)
        for era in evolution.eras:
            if is_before(LogPlace.parse(era.begins), read_until):
                raise _not_carried(table, f"{era.statement} ({era.begins}) may have come before the end of the read")
        carried = replace(table, columns=evolution.columns, eras=evolution.eras)
        if not carried.same_shape(now) or carried.key_index != now.key_index:
            raise _not_carried(table, "it was altered again meanwhile")
        # The window up to the new position must contain all of these statements.
        roll_forward.segments_between(self.settings, begin, GtidSet.expect(end), identity, 1, [carried])
        return evolution

    def segments_of_reads(
        self,
        start: Position,
        end: Position,
        since: Mapping[str, str],
        identity: Mapping[str, str],
        slots: int,
        tables: Sequence[Table],
    ) -> list[LogSegment]:
        # Import this module late: `sources.mysql.source` explains why.
        from airflow_provider_cdc.sources.mysql.steps import roll_forward

        between = GtidSet.expect(start), GtidSet.expect(end)
        return roll_forward.segments_between(self.settings, *between, since, slots, tables)


def _not_carried(table: Table, why: str) -> SchemaChanged:
    return SchemaChanged(why, where=str(table.name))


# Looks at the tables whose finished reads are kept when a run moves to a later position.
#
# The rows that were read are brought to the later position by the log. So the log up to this position must have no
# statement that changes such a table. And the next run compares the table with the facts at the later position, because
# it searches the log only from there on.


class KeepsTables:
    """The methods of `Source` for tables whose finished reads are kept."""

    settings: ConnectionSettings
    _identity: Mapping[str, str] | None
    _watched: WatchedTables | None

    def altered_in_log(self, tables: Sequence[Table]) -> Mapping[TableName, SchemaChanged]:
        # Import this module late: `sources.mysql.source` explains why.
        from airflow_provider_cdc.sources.mysql.steps import carried_reads

        assert isinstance(self.settings, RunSettings)
        assert self._identity is not None
        return carried_reads.altered_in_log(self.settings, self._identity, self.settings.position, tables)

    def refresh_identities(self, tables: Sequence[Table]) -> list[Table]:
        assert self._watched is not None
        with session(self.settings) as connection:
            return self._watched.refresh_identities(self.settings, connection, tables)

    def with_facts_of(self, identity: Mapping[str, str]) -> Self:
        source = copy(self)
        source._watched = WatchedTables(identity)
        return source


# Finds all tables that statements in the log have changed since the position of a run.


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
