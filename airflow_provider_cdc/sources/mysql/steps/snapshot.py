"""Fixes the initial position, and determines an upper bound on the transactions that the reads may have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import (
    PreflightError,
    Problem,
    SchemaChanged,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.mysql.checks.asked import OF_TABLES
from airflow_provider_cdc.sources.mysql.checks.context import ServerContext, of_recorded
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS
from airflow_provider_cdc.sources.mysql.server.log_history import end_of_log
from airflow_provider_cdc.sources.mysql.server.server import executed, identity, shown, started, with_mark
from airflow_provider_cdc.sources.mysql.server.session import (
    Connection,
    session,
)
from airflow_provider_cdc.sources.mysql.steps.chunk_reader import table_lock
from airflow_provider_cdc.sources.mysql.steps.log_server import begin_log, check_definitions
from airflow_provider_cdc.sources.mysql.tables.identity import read_identities, with_identities
from airflow_provider_cdc.sources.mysql.tables.partitions import with_known_at_position, with_same_identity
from airflow_provider_cdc.sources.mysql.tables.schema import naming_missing_tables, read_tables

NO_POSITION = Problem(
    "gtid_executed",
    "is empty: no transaction was committed yet, so the position cannot identify the history of this server",
    "commit a transaction on the server; a CREATE DATABASE is enough",
)


def record_initial(settings: ConnectionSettings, plans: Sequence[TablePlan], lock: LockPolicy) -> InitialPoint:
    """Fix the initial position, and then read the schemas. Because of this order, every DDL statement that is executed
    after the schemas were read is in the window.

    Tables with the consistency ``lock`` are locked together while the position is read.

    :raises LockNotGranted: the lock was not granted within the policy.
    :raises PreflightError: a check of preflight now finds a problem, because the server or a table was changed since
        preflight.
    :raises SchemaChanged: a table no longer exists, or lost the key that its plan relies on.
    """
    locked = [plan.table for plan in plans if plan.locked]
    with session(settings) as connection:
        # Read the settings before the position, so that a later comparison finds changed settings.
        server_identity = replace(identity(settings, connection), log_server=begin_log(settings, connection))
        if problems := problems_of(SETTINGS, Moment.EACH_STEP, ServerContext(connection)):
            raise PreflightError(problems)
        # Read the table identities after the place in the log and before the position. Then a later comparison finds
        # every table whose identity has changed since. The log from the place on shows whether the change was logged.
        identities = read_identities(connection, [plan.table for plan in plans])
        if locked:
            with naming_missing_tables(connection, locked), table_lock(connection, locked, lock) as held:
                position = executed(connection)
            lock_seconds = held.seconds
        else:
            position, lock_seconds = executed(connection), 0.0
        if not position:
            raise PreflightError([NO_POSITION])
        server_identity = with_mark(settings, connection, server_identity, position)
        # Repeat the checks of preflight. All changes from now on are in the window.
        context = of_recorded(connection, tables_of(connection, plans), plans)
        problems = problems_of(OF_TABLES, Moment.POSITION_FIXED, context)
        tables = with_identities(connection, context.tables, identities)
        unaltered = partial(with_same_identity, connection, identities)
        tables = with_known_at_position(connection, tables, plans, unaltered)
        if not problems:
            check_definitions(settings, connection, tables)
    if problems:
        raise PreflightError(problems)
    return InitialPoint(position, server_identity.recorded(), tables, lock_seconds)


def tables_of(connection: Connection, plans: Sequence[TablePlan]) -> tuple[Table, ...]:
    """Return the tables of the plans in their current state.

    :raises SchemaChanged: a table no longer exists, or lost the key that its plan relies on.
    """
    tables = read_tables(connection, [plan.table for plan in plans])
    for plan, table in zip(plans, tables, strict=True):
        if table.keyless and plan.consistency == "watermark":
            raise SchemaChanged(
                "the consistency `watermark` needs a key, but the table lost its key after the task `preflight` ran",
                where=str(table.name),
                hint="clear the task `preflight` and all tasks after it",
            )
    return tuple(
        replace(table, options=plan.options, selection=plan.selection)
        for plan, table in zip(plans, tables, strict=True)
    )


def bound_reads(settings: ConnectionSettings) -> UpperBound:
    """Return an upper bound on the transactions that the finished reads could have seen.

    The bound is the end of the log (``log_history.LogPlace``), because a transaction is written to the log before it
    becomes visible.
    """
    with session(settings) as connection:
        start = started(connection)
        end = end_of_log(settings, connection)
        return UpperBound(shown(connection), LogEnd(str(end)), start)
