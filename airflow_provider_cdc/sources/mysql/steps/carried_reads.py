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

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.log import refusals
from airflow_provider_cdc.sources.mysql.log.replaced import WatchedTables
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, is_before
from airflow_provider_cdc.sources.mysql.server.privileges import Privileges
from airflow_provider_cdc.sources.mysql.server.replication import end_of_shown, log_settings
from airflow_provider_cdc.sources.mysql.server.session import RunSettings, session


class CarriesReads:
    """The methods of `Source` for reads that are carried over schema changes."""

    settings: ConnectionSettings

    def ends_of_reads(self, tables: Sequence[Table]) -> dict[TableName, LogEnd]:
        # Do not hold up the reads for a log server that lags behind: without its end, an altered table is read again.
        settings = replace(self.settings, replica_wait_seconds=1)
        with session(settings) as connection:
            end = LogEnd(str(end_of_shown(settings, connection)))
        return dict.fromkeys((table.name for table in tables), end)

    def carry_read(
        self,
        identity: Facts,
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
        facts = MysqlFacts.of(identity)
        refused = roll_forward.refusals_since(self.settings, facts, begin, [table], None, evolutions)
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
        _check_contained(log_settings(self.settings), begin, GtidSet.expect(end), facts.of_log, carried)
        return evolution


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
    _facts: MysqlFacts | None
    _watched: WatchedTables | None

    def altered_in_log(self, tables: Sequence[Table]) -> Mapping[TableName, SchemaChanged]:
        # Import this module late: `sources.mysql.source` explains why.
        from airflow_provider_cdc.sources.mysql.log.survey import survey

        assert isinstance(self.settings, RunSettings)
        assert self._facts is not None
        # A run records no piece of the log that has a statement that changes one of its tables. So the search begins at
        # the end of the last recorded piece.
        of_log = self._facts.of_log
        begin = of_log.needed_from or of_log.place
        with session(self.settings) as connection:
            end = end_of_shown(self.settings, connection)
        # These schema changes are known, and the rows are carried over them.
        known = {era.begins for table in tables for era in table.eras}
        altered: dict[TableName, SchemaChanged] = {}
        # If the survey had to stop, the run stops with the same error when it reads this part of the log.
        for statement in survey(log_settings(self.settings), begin, self.settings.position, tables, end=end).statements:
            if str(statement.begins) in known:
                continue
            for name, found in statement.on.items():
                error = refusals.of_statement(found, (), statement.where)
                if isinstance(error, SchemaChanged):
                    altered.setdefault(name, error)
        return altered

    def refresh_identities(self, tables: Sequence[Table]) -> list[Table]:
        assert self._watched is not None
        with session(self.settings) as connection:
            return self._watched.refresh_identities(self.settings, connection, tables)

    def with_facts_of(self, identity: Facts) -> Self:
        source = copy(self)
        source._watched = WatchedTables(MysqlFacts.of(identity))
        return source


def _check_contained(
    settings: ConnectionSettings, start: GtidSet, end: GtidSet, facts: MysqlFacts, table: Table
) -> None:
    """Check that the log from ``start`` to ``end`` contains all schema changes of a table (`Table.eras`).

    :param facts: the facts that were recorded at ``start``.
    :raises SchemaChanged: the log contains not all of them.
    """
    # Late, because these modules load the kernels.
    from airflow_provider_cdc.sources.mysql.log.prefixes import prefix_of
    from airflow_provider_cdc.sources.mysql.log.segments import cut, log_segments

    cut(log_segments(settings, start, prefix_of(settings, end).place, facts.begun, 1), [table])
