"""Checks before a run: reports all problems at once, each with a hint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Parts, Table, whole_tables
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.asked import OF_A_REQUEST, OF_SERVER
from airflow_provider_cdc.sources.mysql.checks.context import RequestContext, ServerContext
from airflow_provider_cdc.sources.mysql.checks.replica_tables import is_read_on_replicas
from airflow_provider_cdc.sources.mysql.server.server import durability_warnings, naming_blockers
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.steps.log_server import problems_of_log_server
from airflow_provider_cdc.sources.mysql.steps.replica_reads import replica_problems
from airflow_provider_cdc.sources.mysql.tables.cascades import parents_of, with_parents
from airflow_provider_cdc.sources.mysql.tables.identity import identity_warnings
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables, resolve
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, unsupported
from airflow_provider_cdc.sources.replicas import planned_where

_log = logging.getLogger(__name__)


def preflight(
    settings: ConnectionSettings, patterns: Sequence[str], options: TableOptions, parts: Parts = whole_tables
) -> list[TablePlan]:
    """Check everything that a run needs, and decide how each table is read.

    :param patterns: ``schema.table``. ``*`` matches any number of characters in either part. A pattern that begins with
        ``!`` excludes tables that earlier patterns matched (``!shop._*_gho``).
    :param options: the options of the run. With consistency ``auto``, tables with a key are read with ``watermark``,
        and other tables with ``lock``.
    :param parts: the part of each table that is copied. Columns that are not read may have any type.
    :raises PreflightError: there are problems. The error lists all of them.
    :raises LockNotGranted: a session keeps a table locked against readers.
    :raises SourceUnavailable: the server cannot be reached.
    :raises ConfigurationError: the connection cannot work, or the server is too old.
    """
    with session(settings) as connection, naming_blockers(settings, connection) as concerned:
        context = RequestContext(connection, patterns=patterns, options=options)
        names, context.unresolved = resolve(connection, patterns)
        concerned += names
        unreadable = {name: problem for name in names if (problem := context.privileges.read_problem(name))}
        context.unreadable = list(unreadable.values())
        tables = read_tables(connection, [name for name in names if name not in unreadable])
        tables = tuple(replace(table, options=options, selection=parts(table.name)) for table in tables)
        context.tables, context.hidden = with_parents(connection, context.privileges, tables)
        context.plans = [_plan(table, options) for table in context.tables]
        if settings.replicas:
            context.plans = [
                planned_where(plan, is_read_on_replicas(table, plan.consistency))
                for plan, table in zip(context.plans, context.tables, strict=True)
            ]
        problems = problems_of(OF_A_REQUEST, Moment.PREFLIGHT, context)
        if settings.replicas and not problems:
            problems = replica_problems(settings, connection, context.tables, context.plans)
        if settings.log_server is not None and not problems:
            problems = problems_of_log_server(settings, connection, context.tables)
        warnings = [*durability_warnings(connection), *identity_warnings(connection)]
    if problems:
        raise PreflightError(problems)
    for warning in warnings:
        _log.warning("%s", warning)
    return [*context.plans]


def check_server(settings: ConnectionSettings) -> list[Problem]:
    """Implements `Source.check_server`."""
    with session(settings) as connection:
        return problems_of(OF_SERVER, Moment.PREFLIGHT, ServerContext(connection))


def _plan(table: Table, options: TableOptions) -> TablePlan:
    key = f"{table.key_index} ({', '.join(table.key)})"
    if options.consistency == "lock":
        chosen, reason = "lock", "lock was asked for: read at one position, fixed under a short lock"
    elif table.keyless and options.consistency != "watermark":
        chosen = "lock"
        reason = "it has no key to identify its rows, so it is read at one position, fixed under a short lock"
    elif table.cascades_from and options.consistency != "watermark":
        chosen = "lock"
        reason = "the log lacks what its foreign keys change, so it is read at one position, fixed under a short lock"
    else:
        chosen = "watermark"
        reason = f"its key {key} identifies the rows that change while it is read, so it needs no lock"
    if table.cascades_from:
        reason += f"; deleting rows of {parents_of(table)}, or changing their keys, before it is read stops the run"
    reason += _policy_reason(table)
    return TablePlan(table.name, chosen, reason, table.rows, table.bytes, options.unrepresentable)


def _policy_reason(table: Table) -> str:
    """Return a text that names the columns that the policy changes. These columns are published as text, or have nulls
    that are not in the table."""
    policy = table.options.unrepresentable
    changed = [
        column.name
        for column in table.as_read.columns
        if unsupported(column, apart := table.identifies(column.name), policy) is None
        and (kind := ColumnType.of(column, apart, policy)).policy != "error"
        # Text columns are published as text under every policy.
        and not (policy == "string" and kind.family is Family.TEXT)
    ]
    if not changed:
        return ""
    becomes = "published as text" if policy == "string" else "null where no Arrow type holds the value"
    return f"; {becomes}: {', '.join(changed)}"
