"""Checks whether a published copy can be rolled forward, and finds the part of the log that is needed for it.

The conditions of a run must have held since the copy's position. The run that made the copy recorded the server's state
before this position. The recorded state is compared with the current state, as if the run were still in progress. The
search of the log only finds problems early, because the step that nets the window would also stop at these problems.

If the log has a schema change of a table that can be carried (`tables.column_eras`), the log is searched a second time
for this table, with the columns that the table had at each place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.kernels.compile import Bytes
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ExactnessError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable
from airflow_provider_cdc.sources.mysql.checks.past import REPLICATED, PositionContext
from airflow_provider_cdc.sources.mysql.log import events, refusals, walk_state
from airflow_provider_cdc.sources.mysql.log.eras import SegmentEras, cut
from airflow_provider_cdc.sources.mysql.log.positions.prefixes import prefix_of
from airflow_provider_cdc.sources.mysql.log.segments import log_segments
from airflow_provider_cdc.sources.mysql.log.statements.column_changes import column_changes
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Effect, meaning
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import names_of
from airflow_provider_cdc.sources.mysql.log.survey import LongPrepared, PreparedWalker, looked_through, stretches
from airflow_provider_cdc.sources.mysql.log.walk_state import LOOKED_AT, TABLE_WORDS
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, check_place, end_of_log, log_files
from airflow_provider_cdc.sources.mysql.server.server import LOG_PLACE, begun_at
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value
from airflow_provider_cdc.sources.mysql.steps.check_identity import check_identity
from airflow_provider_cdc.sources.mysql.steps.past import resolve
from airflow_provider_cdc.sources.mysql.steps.statement_writes import check_writes
from airflow_provider_cdc.sources.mysql.tables.cascades import relies_on_log
from airflow_provider_cdc.sources.mysql.tables.column_eras import NotCarried, PlacedChanges, evolution
from airflow_provider_cdc.sources.mysql.tables.identities.replaced import replaced_since
from airflow_provider_cdc.sources.mysql.tables.schema import difference, read_tables

_DIFFERENCES = (
    "the server logs only the differences of JSON documents (binlog_row_value_options is PARTIAL_JSON; SET PERSIST "
    "binlog_row_value_options = '' makes it log whole documents)"
)


def refusals_since(
    settings: ConnectionSettings,
    identity: Mapping[str, str],
    start: GtidSet,
    tables: Sequence[Table],
    to: AsOf | None,
    evolutions: dict[TableName, Evolution] | None = None,
) -> dict[TableName, str]:
    """Implements `Source.refusals_since`."""
    with session(settings) as connection:
        check_identity(settings, connection, identity, start, Moment.ROLL_FORWARD)
        context = PositionContext(connection, position=start)
        if problems := problems_of(REPLICATED, Moment.ROLL_FORWARD, context):
            raise ExactnessError(problems[0].what, where=problems[0].where, hint=problems[0].hint)
        end, after = None, start
        if to is not None:
            prefix = resolve(settings, to).prefix
            if not start <= prefix.position:
                return dict.fromkeys((table.name for table in tables), "the copy is at a later position")
            end, after = prefix.place, prefix.position
        refused = {table.name: why for table in tables if (why := reason_not_logged(table))}
        fit = [table for table in tables if table.name not in refused]
        now = {table.name: table for table in read_tables(connection, [table.name for table in fit])}
        differences = {table.name: _difference(table, now[table.name]) for table in fit}
        if evolutions is None:
            refused |= {name: f"since the copy {why}" for name, why in differences.items() if why}
        fit = [table for table in fit if table.name not in refused]
        if _logs_differences(connection):
            columns = {table.name: (*table.columns, *now[table.name].columns) for table in fit}
            documents = [table for table in fit if any(column.type == "json" for column in columns[table.name])]
            refused |= {table.name: _DIFFERENCES for table in documents}
            fit = [table for table in fit if table.name not in refused]
        begin = LogPlace.parse(identity[LOG_PLACE])
        changes: dict[TableName, list[PlacedChanges]] = {}
        carried = None if evolutions is None else changes
        refused |= _broken(settings, connection, begin, start, end, fit, carried) if fit else {}
        fit = [table for table in fit if table.name not in refused]
        if evolutions is not None:
            altered = {table.name: table for table in fit if table.name in changes or differences[table.name]}
            for name, table in altered.items():
                try:
                    evolutions[name] = evolution(table, now[name], changes.get(name, ()))
                except (NotCarried, ConfigurationError) as error:
                    what = differences[name] or f"the log has {changes[name][0].changes.described}"
                    refused[name] = f"since the copy {what}: {error}"
            evolved = [
                replace(table, columns=evolutions[name].columns, eras=evolutions[name].eras)
                for name, table in altered.items()
                if name not in refused
            ]
            refused |= _broken(settings, connection, begin, start, end, evolved) if evolved else {}
            if end is not None and (evolved := [table for table in evolved if table.name not in refused]):
                # The present columns tell the columns at the position only if no later statement changed them.
                now_same = [replace(table, eras=()) for table in evolved]
                refused |= _broken(settings, connection, end, after, None, now_same)
        # Check for replaced tables last. If a logged statement replaced a table, the search of the log has already
        # found the statement and named it in the reason.
        fit = [table for table in fit if table.name not in refused]
        replaced = replaced_since(settings, connection, begin, fit, until=end)
        return refused | {name: f"since the copy {why}" for name, why in replaced.items()}


def segments_between(
    settings: ConnectionSettings,
    start: GtidSet,
    end: GtidSet,
    since: Mapping[str, str],
    slots: int,
    tables: Sequence[Table] = (),
) -> list[LogSegment]:
    """Implements `Source.segments_between`."""
    return cut(log_segments(settings, start, prefix_of(settings, end).place, begun_at(since), slots), tables)


def _difference(table: Table, now: Table) -> str:
    return difference(table, now) or ("its key is another index" if table.key_index != now.key_index else "")


def reason_not_logged(table: Table) -> str:
    """Return the reason why the log does not have all changes of a table's rows. Empty: the log has them."""
    if table.cascades_from:
        return "foreign keys change its rows, and the server does not log these changes"
    return ""


def _logs_differences(connection: Connection) -> bool:
    return "PARTIAL_JSON" in str(value(connection, "@@global.binlog_row_value_options"))


def _broken(
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    start: GtidSet,
    end: LogPlace | None,
    tables: Sequence[Table],
    changes: dict[TableName, list[PlacedChanges]] | None = None,
) -> dict[TableName, str]:
    """Search the log after ``start``. Return the tables that cannot be rolled forward because of a logged statement or
    event, each with the reason.

    :param begin: a place in the log that is before all changes since ``start``.
    :param changes: receives the statements that change columns of tables in a known way. Neither these statements nor
        rows of another shape are a reason for such a table.
    """
    # Read the end of the log first, so that the list of files includes the file that contains the end.
    end, files = end or end_of_log(settings, connection), log_files(connection)
    check_place(settings, files, begin)
    reasons: dict[TableName, str] = {}
    prepared = LongPrepared()
    summaries = []

    def walker_of(segment: LogSegment) -> _Survey:
        # Skip tables for which a reason was found in an earlier file. Files are read in parallel, so some of these
        # reasons may not be known yet.
        unread_tables = [table for table in tables if table.name not in reasons]
        return _Survey(segment, start, unread_tables, carries=changes is not None)

    other_shapes: dict[TableName, str] = {}
    with looked_through(settings, files, cut(stretches(files, begin, end), tables), walker_of) as walkers:
        for walker, error in walkers:
            if error is not None:
                return {table.name: reasons.get(table.name, _said(error)) for table in tables}
            reasons |= {name: why for name, why in walker.broken.items() if name not in reasons}
            if len(reasons) == len(tables):
                return reasons
            for name, statements in walker.altered.items():
                if changes is not None:
                    changes.setdefault(name, []).extend(statements)
            other_shapes = walker.other_shapes | other_shapes
            prepared.add(walker)
            summaries.append(walker.summary)
    known = changes or {}
    reasons |= {name: why for name, why in other_shapes.items() if name not in known and name not in reasons}
    # A transaction whose rows are not in the log may have changed any table. Every roll-forward from this copy would
    # stop at such a transaction.
    if lost := prepared.without_rows(settings, list(files), begin, start):
        why = f"since the copy: {_said(lost[0][0])}"
        return {table.name: reasons.get(table.name, why) for table in tables}
    try:
        check_writes(settings, summaries)
    except ExactnessError as error:
        return {table.name: reasons.get(table.name, f"since the copy: {_said(error)}") for table in tables}
    return reasons


class _Survey(PreparedWalker):
    """Walks the log without stopping at the statements at which a run would stop. Records the tables for which a run
    would stop.

    :param carries: record statements that change columns in a known way in ``altered``, and tables whose rows have
        other columns in ``other_shapes``, instead of refusing these tables.
    """

    def __init__(self, segment: LogSegment, initial: GtidSet, tables: Sequence[Table], *, carries: bool) -> None:
        eras = SegmentEras(segment, [TrackedTable(index, table, looked_at=True) for index, table in enumerate(tables)])
        super().__init__(segment.name, segment.start, segment.stop, initial, eras.tracked)
        self.broken: dict[TableName, str] = {}
        self.altered: dict[TableName, list[PlacedChanges]] = {}
        self.other_shapes: dict[TableName, str] = {}
        self._begins = eras.begins
        self._carries = carries
        self._event_bytes = 0
        self._all_names = names_of(tables)
        self._tables = tables
        self._left = list(tables)

    def _handle(self, code: int, data: Bytes) -> bool:
        at = int(self.state[walk_state.AT])
        self._event_bytes = int.from_bytes(data[at + events.LENGTH_AT :][:4].tobytes(), "little")
        return super()._handle(code, data)

    def _check(self, statement: Statement) -> None:
        file, position = self.summary.segment.name, self.position
        begins, ends = (str(LogPlace(file, place)) for place in (position, position + self._event_bytes))
        if begins in self._begins:
            return
        if self._carries and (found := column_changes(statement, self._all_names)) is not None:
            self.altered.setdefault(found.table, []).append(PlacedChanges(found, begins, ends))
            return
        effect = meaning(statement, self._names)
        self._remember(effect)
        # A statement may name several tables, but each call of `meaning` reports only one table.
        while self._left and effect.effect not in (Effect.HARMLESS, Effect.ELSEWHERE):
            touched = [table for table in self._left if table.name == effect.table] or self._left
            self._note(touched, f"{effect.described} ({self.where})")
            effect = meaning(statement, self._names)

    def _bad_rows(self, code: int, table: TableName) -> None:
        if self._carries and code == walk_state.SHAPE:
            why = f"since the copy: {refusals.bad_rows(code, table, '').message} ({self.where})"
            self.other_shapes.setdefault(table, why)
            return
        # Do not check whether a prepared transaction counts. If it does not count, a table is read in full without
        # need, which is always correct.
        unlogged = code == walk_state.OTHERS_CASCADES
        if affected_tables := [
            unread_table
            for unread_table in self._left
            if (relies_on_log(unread_table) if unlogged else unread_table.name == table)
        ]:
            self._note(affected_tables, f"{refusals.bad_rows(code, table, '').message} ({self.where})")

    def _note(self, tables: Sequence[Table], why: str) -> None:
        for table in tables:
            self.broken[table.name] = f"since the copy: {why}"
            self._layouts.tables.words[TABLE_WORDS * self._tables.index(table) + LOOKED_AT] = 2
        self._left = [table for table in self._left if table.name not in self.broken]
        self._names = names_of(self._left)


def _said(error: CdcError) -> str:
    return f"{error.where}: {error.message}" if error.where else error.message
