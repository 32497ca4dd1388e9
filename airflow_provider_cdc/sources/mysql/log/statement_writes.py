"""Checks that logged statements did not change a copied table indirectly, through a view, a trigger or a function.

`log.statements.meaning` accepted these statements. According to its text, each statement writes to one table
that is not copied. The text is misleading if the written table is a view or has a trigger, or if the statement reads a
view, because a view may call functions.

This module queries the server for views and triggers after the statements were executed, so the result describes only
the time of the query. So the log from the beginning of the window up to the query must not contain a statement that
could have changed the result. Such statements create or drop a trigger or a view, or rename or drop one of the tables.
CREATE TABLE cannot change the result, because an earlier object with the same name must have been dropped before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ImageNotWhole, LogGone, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, StatementWrite
from airflow_provider_cdc.sources.mysql.log.statements.meaning import EVERY_TABLE, Effect
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import alike
from airflow_provider_cdc.sources.mysql.log.survey import survey
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    check_place,
    end_of_log,
    is_before,
    log_files,
)
from airflow_provider_cdc.sources.mysql.server.privileges import Privileges
from airflow_provider_cdc.sources.mysql.server.session import Connection, account, query, session, table_sql
from airflow_provider_cdc.sources.mysql.tables.schema import select_of_tables


def check_writes(settings: ConnectionSettings, summaries: Sequence[SegmentSummary]) -> None:
    """Implements `Source.check_writes`.

    :raises ImageNotWhole: the changes may have reached copied tables.
    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    writes = [(write.table, write) for summary in summaries for write in summary.writes.values()]
    if not writes:
        return
    with session(settings) as connection:
        privileges = Privileges(connection)
        for table, write in writes:
            _check(connection, privileges, table, write)
        # Read the end of the log after the queries. Every change that could have affected the results of the queries is
        # then before this end of the log.
        end, files = end_of_log(settings, connection), log_files(connection)
        check_place(settings, files, end)
    redefined = [*chain(*(summary.redefined for summary in summaries))]
    redefined += _redefined_between(settings, summaries[-1].segment, end, list(files))
    for table, write in writes:
        for name in (table, *write.read):
            if any(_covers(definition, name) for definition in redefined):
                raise _refused(
                    f"{name} was renamed or dropped since then, or a view or trigger was created or dropped",
                    table,
                    write,
                    "trigger a new run, and run no such statement while it lasts",
                )


def _check(connection: Connection, privileges: Privileges, table: TableName, write: StatementWrite) -> None:
    names = [table, *write.read]
    kinds = {
        TableName(schema, name): (kind, engine)
        for schema, name, kind, engine in select_of_tables(connection, names, "TABLE_TYPE, ENGINE", "TABLES")
    }
    if not privileges.sees_triggers(table):
        raise _refused(
            f"it is not known whether {table} has triggers, because this user lacks TRIGGER on it",
            table,
            write,
            f"GRANT SELECT, TRIGGER ON {table_sql(table)} TO {account(connection)}, then trigger a new run",
        )
    for name in names:
        kind, engine = kinds.get(name, ("", ""))
        if not kind:
            raise _refused(
                f"{name}, which it read, does not exist, or this user may not see it"
                if name != table
                else f"{table} does not exist under exactly this name",
                table,
                write,
                f"GRANT SELECT ON {table_sql(name)} TO {account(connection)}, then trigger a new run",
            )
        if kind != "BASE TABLE" or (name == table and engine != "InnoDB"):
            raise _refused(
                f"{name} is a {kind.lower()}" + (f" of the engine {engine}" if kind == "BASE TABLE" else ""),
                table,
                write,
                "use binlog_format=ROW in the session that makes the change, then trigger a new run",
            )
    triggers = query(
        connection,
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s "
        "AND EVENT_OBJECT_TABLE = %s",
        (table.schema, table.name),
    )
    if triggers:
        raise _refused(
            f"{table} has the trigger {triggers[0][0]}", table, write, "drop the trigger, then trigger a new run"
        )


def _refused(reason: str, table: TableName, write: StatementWrite, hint: str) -> ImageNotWhole:
    return ImageNotWhole(
        f"a change of {table} was logged as a statement, without row images, and may have reached tables that are "
        f"being copied: {reason}",
        where=write.place,
        hint=hint,
    )


def _covers(redefined: TableName, name: TableName) -> bool:
    if redefined == EVERY_TABLE:
        return True
    return alike(redefined.schema, name.schema) and (redefined.name == "*" or alike(redefined.name, name.name))


def _redefined_between(
    settings: ConnectionSettings, last: LogSegment, end: LogPlace, files: Sequence[str]
) -> list[TableName]:
    """Return the tables that logged statements redefine, from the end of the segment ``last`` up to ``end``."""
    if last.last_name not in files:
        raise LogGone(
            f"the log file {last.last_name} is purged",
            where=settings.address,
            hint="trigger a new run, and make the server keep its logs for longer (binlog_expire_logs_seconds)",
        )
    begin = LogPlace(last.last_name, last.stop or 0)
    if last.stop is None:
        rest = files[files.index(last.last_name) + 1 :]
        begin = LogPlace(rest[0], log_protocol.FIRST_POSITION) if rest else end
    if not is_before(begin, end):
        return []
    facts = survey(settings, begin, GtidSet(), (), end=end)
    if facts.stopped is not None:
        raise facts.stopped[0]
    if facts.ends_early:
        raise SourceUnavailable(
            f"the server has no more events at {facts.ends_early}, before the end of the part to check",
            where=settings.address,
            hint="the task can be retried as it is",
        )
    if any(statement.meaning.effect is Effect.NOT_UNDERSTOOD for statement in facts.statements):
        return [EVERY_TABLE]
    return [*chain(*(summary.redefined for summary in facts.summaries))]
