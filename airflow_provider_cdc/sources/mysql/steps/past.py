"""Finds a position in the past, and checks whether a copy can be exact there.

The run reads the rows now and rewinds them to the past position. So the conditions of a run must have been met since
that position (`checks.past`). The settings that the log does not show and the definitions of the copied tables must be
unchanged. The server must have a single history without a crash.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.errors import PreflightError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.asked import OF_TABLES
from airflow_provider_cdc.sources.mysql.checks.context import ServerContext, TablesContext, of_recorded
from airflow_provider_cdc.sources.mysql.checks.past import REPLACED, REPLICATED, SINCE, STATEMENTS, Past, PastContext
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS
from airflow_provider_cdc.sources.mysql.log.replaced import unaltered_since
from airflow_provider_cdc.sources.mysql.server.replication import log_session, wait_for
from airflow_provider_cdc.sources.mysql.server.server import identity, shown, with_mark
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value
from airflow_provider_cdc.sources.mysql.steps.log_server import check_definitions, log_at
from airflow_provider_cdc.sources.mysql.steps.positions import check_time, resolve, since_position
from airflow_provider_cdc.sources.mysql.steps.snapshot import NO_POSITION, tables_of
from airflow_provider_cdc.sources.mysql.tables.identity import with_identities
from airflow_provider_cdc.sources.mysql.tables.partitions import with_known_at_position
from airflow_provider_cdc.sources.planning.survey import FINAL_SECONDS


def check_past(settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan]) -> None:
    """Implements `Source.check_past`."""
    with session(settings) as connection:
        check_time(connection, as_of)
        past = resolve(settings, as_of)
        at_position, context = _contexts(settings, connection, plans, past)
        problems = problems_of(OF_TABLES, Moment.POSITION_FIXED, at_position)
        problems += problems_of((*REPLICATED, *SINCE), Moment.PREFLIGHT, context)
        # Search the log for statements only if no part of the log is missing.
        problems = problems or _broken(settings, connection, context)
        if problems := problems or problems_of(REPLACED, Moment.PREFLIGHT, context):
            raise PreflightError(problems)


def _broken(settings: ConnectionSettings, source: Connection, context: PastContext) -> list[Problem]:
    """Return the problems of statements since the position, in the log that is read."""
    if settings.log_server is None:
        return problems_of(STATEMENTS, Moment.PREFLIGHT, context)
    with log_session(settings) as (here, connection):
        wait_for(settings, source, connection, shown(source))
        past, problems = since_position(here, connection, context.position)
        logged = PastContext(connection, position=context.position, settings=here, past=past, tables=context.tables)
        return problems or problems_of(STATEMENTS, Moment.PREFLIGHT, logged)


def record_past(settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan]) -> InitialPoint:
    """Implements `Source.record_past`."""
    with session(settings) as connection:
        # Read the settings first, so that a later comparison finds changed settings.
        server_identity = identity(settings, connection)
        if problems := problems_of(SETTINGS, Moment.EACH_STEP, ServerContext(connection)):
            raise PreflightError(problems)
        check_time(connection, as_of)
        past = resolve(settings, as_of, final=True)
        if not past.prefix.position:
            raise PreflightError([NO_POSITION])
        wait_until_visible(connection, past.prefix.position, FINAL_SECONDS)
        at_position, context = _contexts(settings, connection, plans, past)
        problems = problems_of(OF_TABLES, Moment.POSITION_FIXED, at_position)
        tables = with_identities(connection, context.tables, {})
        # Do not search the log for statements here. Preflight has already searched the log, and the later read of the
        # log finds such statements again.
        problems += problems_of((*REPLICATED, *SINCE), Moment.POSITION_FIXED, context)
        if problems := problems or problems_of(REPLACED, Moment.POSITION_FIXED, context):
            raise PreflightError(problems)
        unaltered = partial(unaltered_since, settings, connection, past.prefix.place, tables)
        tables = with_known_at_position(connection, tables, plans, unaltered)
        server_identity = with_mark(settings, connection, server_identity, past.prefix.position, past.prefix.place)
        if settings.log_server is not None:
            of_log = log_at(settings, connection, past.prefix.position)
            server_identity = replace(server_identity, log_server=of_log)
            check_definitions(settings, connection, tables)
    return InitialPoint(past.prefix.position, server_identity.recorded(), tables, 0.0)


def _contexts(
    settings: ConnectionSettings, connection: Connection, plans: Sequence[TablePlan], past: Past
) -> tuple[TablesContext, PastContext]:
    """Return two contexts: for the checks of the tables, and for the checks that cover the time since the position."""
    tables = of_recorded(connection, tables_of(connection, plans), plans)
    position = past.prefix.position
    return tables, PastContext(connection, position=position, settings=settings, past=past, tables=tables.tables)


def wait_until_visible(connection: Connection, position: GtidSet, seconds: float) -> None:
    """Wait until all transactions of ``position`` are visible to readers. A transaction is written to the log shortly
    before it becomes visible.

    :raises SourceUnavailable: the position is not visible after ``seconds``.
    """
    until = time.monotonic() + seconds
    while not position <= GtidSet.parse(value(connection, "@@global.gtid_executed")):
        if time.monotonic() > until:
            raise SourceUnavailable(
                "some transactions of the position are already in the log, but not yet visible to queries",
                hint="the task can be retried",
            )
        time.sleep(0.05)
