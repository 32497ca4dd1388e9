"""Checks whether a published copy can be rolled forward, and finds the part of the log that is needed for it.

The conditions of a run must have held since the copy's position. The run that made the copy recorded the server's state
before this position. The recorded state is compared with the current state, as if the run were still in progress. The
search of the log only finds problems early, because the step that nets the window would also stop at these problems.

If the log has a schema change of a table that can be carried (`statements.column_changes`), the log is searched a
second time for this table, with the columns that the table had at each place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ExactnessError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.past import REPLICATED, PositionContext
from airflow_provider_cdc.sources.mysql.log import walk_state
from airflow_provider_cdc.sources.mysql.log.prefixes import prefix_of
from airflow_provider_cdc.sources.mysql.log.statement_writes import check_writes
from airflow_provider_cdc.sources.mysql.log.statements.column_changes import NotCarried, PlacedChanges, evolution
from airflow_provider_cdc.sources.mysql.log.survey import LogFacts, refused, survey
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from airflow_provider_cdc.sources.mysql.server.replication import end_of_shown, log_settings
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value
from airflow_provider_cdc.sources.mysql.steps.check_identity import check_identity
from airflow_provider_cdc.sources.mysql.steps.positions import resolve
from airflow_provider_cdc.sources.mysql.steps.takeover import as_here, continued_log, replaced_on, take_over
from airflow_provider_cdc.sources.mysql.tables.schema import difference, read_tables

_DIFFERENCES = (
    "the server logs only the differences of JSON documents (binlog_row_value_options is PARTIAL_JSON; SET PERSIST "
    "binlog_row_value_options = '' makes it log whole documents)"
)


def refusals_since(
    settings: ConnectionSettings,
    facts: MysqlFacts,
    start: GtidSet,
    tables: Sequence[Table],
    to: AsOf | None,
    evolutions: dict[TableName, Evolution] | None = None,
) -> dict[TableName, str]:
    """Implements `Source.refusals_since`."""
    with session(settings) as connection:
        taken = take_over(settings, connection, facts, start)
        if taken is not None:
            facts, tables = taken.facts, as_here(connection, tables)
        facts = continued_log(settings, connection, facts, start)
        check_identity(settings, connection, facts, start, Moment.ROLL_FORWARD)
        context = PositionContext(connection, position=start)
        if problems := problems_of(REPLICATED, Moment.ROLL_FORWARD, context):
            raise ExactnessError(problems[0].what, where=problems[0].where, hint=problems[0].hint)
        until, after = None, start
        if to is not None:
            prefix = resolve(settings, to).prefix
            if not start <= prefix.position:
                return dict.fromkeys((table.name for table in tables), "the copy is at a later position")
            until, after = prefix.place, prefix.position
        log = log_settings(settings)
        # Without a log server, the present end of the log is read when the log is searched.
        now_ends = None if settings.log_server is None else end_of_shown(settings, connection)
        end = until if until is None or settings.log_server is None else prefix_of(log, after).place
        refused = {table.name: why for table in tables if (why := reason_not_logged(table))}
        fit = [table for table in tables if table.name not in refused]
        now = {table.name: table for table in read_tables(connection, [table.name for table in fit])}
        differences = {table.name: _difference(table, now[table.name]) for table in fit}
        if evolutions is None:
            refused |= {name: f"since the copy {why}" for name, why in differences.items() if why}
        fit = [table for table in fit if table.name not in refused]
        with session(log) as of_log:
            logs_differences = _logs_differences(of_log)
        if logs_differences:
            columns = {table.name: (*table.columns, *now[table.name].columns) for table in fit}
            documents = [table for table in fit if any(column.type == "json" for column in columns[table.name])]
            refused |= {table.name: _DIFFERENCES for table in documents}
            fit = [table for table in fit if table.name not in refused]
        begin = facts.of_log.place
        changes: dict[TableName, list[PlacedChanges]] = {}
        carried = None if evolutions is None else changes
        refused |= _broken(log, begin, start, end or now_ends, fit, carried) if fit else {}
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
            refused |= _broken(log, begin, start, end or now_ends, evolved) if evolved else {}
            if end is not None and (evolved := [table for table in evolved if table.name not in refused]):
                # The present columns tell the columns at the position only if no later statement changed them.
                now_same = [replace(table, eras=()) for table in evolved]
                refused |= _broken(log, end, after, now_ends, now_same)
        # Check for replaced tables last. If a logged statement replaced a table, the search of the log has already
        # found the statement and named it in the reason.
        fit = [table for table in fit if table.name not in refused]
        replaced = replaced_on(taken, settings, connection, facts.place, fit, until)
        return refused | {name: f"since the copy {why}" for name, why in replaced.items()}


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
    carries = changes is not None

    def are_all_refused(facts: LogFacts) -> bool:
        return len(refused(facts, tables, carries)) == len(tables)

    facts = survey(settings, begin, start, tables, end=end, rows=True, is_enough=are_all_refused)
    reasons = refused(facts, tables, carries)
    if len(reasons) == len(tables):
        return reasons
    if facts.stopped is not None:
        return {table.name: reasons.get(table.name, _reason(facts.stopped[0])) for table in tables}
    if changes is not None:
        for one in facts.statements:
            if one.columns is not None:
                placed = PlacedChanges(one.columns, str(one.begins), str(one.ends))
                changes.setdefault(one.columns.table, []).append(placed)
        for row in facts.bad_rows:
            if row.code == walk_state.SHAPE and row.table not in changes:
                reasons.setdefault(row.table, f"since the copy: {row.error.message} ({row.where})")
    # A transaction whose rows are not in the log may have changed any table. Every roll-forward from this copy would
    # stop at such a transaction.
    if facts.lost:
        why = f"since the copy: {_reason(facts.lost[0][0])}"
        return {table.name: reasons.get(table.name, why) for table in tables}
    try:
        check_writes(settings, facts.summaries)
    except ExactnessError as error:
        return {table.name: reasons.get(table.name, f"since the copy: {_reason(error)}") for table in tables}
    return reasons


def _reason(error: CdcError) -> str:
    return f"{error.where}: {error.message}" if error.where else error.message
