"""Checks everything that a run needs, before the run begins. Reports all problems at once, each with a hint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Parts, Table, whole_tables
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, read_catalog
from airflow_provider_cdc.sources.postgres.catalog.named_tables import resolve
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import followed
from airflow_provider_cdc.sources.postgres.catalog.schema import read_tables
from airflow_provider_cdc.sources.postgres.catalog.views.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.checks.asked import OF_A_REQUEST, OF_SERVER, OF_TABLES
from airflow_provider_cdc.sources.postgres.checks.context import CatalogContext, RequestContext, UserContext
from airflow_provider_cdc.sources.postgres.checks.tables import rewind_problems
from airflow_provider_cdc.sources.postgres.server.blockers import naming_blockers
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots.given_publication import warn_of_harm
from airflow_provider_cdc.sources.postgres.steps.warnings import BYTES_PER_SECOND, advise


def preflight(
    settings: ConnectionSettings, patterns: Sequence[str], options: TableOptions, parts: Parts = whole_tables
) -> list[TablePlan]:
    """Check everything that a run needs, and decide how each table is read.

    :param patterns: ``schema.table``; ``*`` matches any sequence of characters in either part, and a pattern that
        begins with ``!`` excludes tables that earlier patterns matched (``!shop._*_gho``).
    :param options: with the consistency ``auto``, tables with a key are read by ``watermark``, and tables without a key
        by ``exported``. If the log lacks the old rows of any table, no table can be rewound, and the copy is exact at
        the end of the reads. In that case, tables for which the log has no key are read by ``exported``, and all other
        tables by ``again``.
    :param parts: the part of each table that is copied. Columns that are not read need neither a supported type nor a
        privilege.
    :raises PreflightError: there are problems. The error lists all of them.
    :raises LockNotGranted: a session holds a table lock that blocks readers.
    :raises SourceUnavailable: the server cannot be reached.
    :raises ConfigurationError: the connection cannot work, or the server is too old.
    """
    publication = settings.options.get("publication", "")
    with session(settings) as connection, naming_blockers(settings, connection) as concerned:

        def find(catalog: Catalog) -> tuple[list[Problem], CatalogContext, list[Problem]]:
            names, unresolved = resolve(catalog, patterns)
            concerned[:] = names
            tables = [
                replace(table, options=options, selection=parts(table.name)) for table in read_tables(catalog, names)
            ]
            plans = _plans(catalog, tables, options, publication)
            context = CatalogContext(catalog, tables=tables, plans=plans, publication=publication)
            return unresolved, context, problems_of(OF_TABLES, Moment.PREFLIGHT, context)

        unresolved, found, problems_of_tables = read_catalog(connection, find)
        context = RequestContext(
            connection,
            settings=settings,
            publication=publication,
            patterns=patterns,
            options=options,
            unresolved=unresolved,
            tables=found.tables,
            plans=found.plans,
            may_publish=not found.missing_of_tables,
        )
        problems = problems_of(OF_A_REQUEST, Moment.PREFLIGHT, context) + problems_of_tables
        if publication:
            read_catalog(connection, lambda catalog: warn_of_harm(catalog, publication, context.logged))
        advise(connection, context.tables)
    if problems:
        raise PreflightError(problems)
    return [*context.plans]


def check_server(settings: ConnectionSettings) -> list[Problem]:
    """`Source.check_server`."""
    with session(settings) as connection:
        context = UserContext(connection, settings=settings, publication=settings.options.get("publication", ""))
        return problems_of(OF_SERVER, Moment.PREFLIGHT, context)


def _plans(catalog: Catalog, tables: Sequence[Table], options: TableOptions, publication: str) -> list[TablePlan]:
    why = _why_again(catalog, tables, options)
    if not why:
        return [_plan(table, options) for table in tables]
    by_keys = options.consistency != "exported"
    told = [by_keys and known for known in followed(catalog, tables, publication)]
    return _plans_again(tables, told, options, why)


def _why_again(catalog: Catalog, tables: Sequence[Table], options: TableOptions) -> str:
    """Return the reason why rows of tables are read again instead of rewound. Empty: they are rewound."""
    if options.consistency == "again":
        return "the option `consistency` is `again`"
    views = [table.name for table in tables if table.details["kind"] in (VIEW, MATERIALIZED)]
    if views and options.consistency != "watermark":
        return f"{views[0]} is a view, which is exact only at the position where it is read"
    if options.consistency != "auto":
        return ""
    lacking = [(table.name, found[0]) for table in tables if (found := list(rewind_problems(catalog, table)))]
    if not lacking:
        return ""
    name, problem = lacking[0]
    more_tables = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    column = problem.where.removeprefix(f"{name}.")
    why = f"{column} {problem.what}" if column != problem.where else "its replica identity is not FULL"
    return f"the log does not have the old rows of {name}{more_tables} ({why})"


def _plans_again(tables: Sequence[Table], told: Sequence[bool], options: TableOptions, why: str) -> list[TablePlan]:
    plans = []
    for table, is_told in zip(tables, told, strict=True):
        if is_told:
            chosen = "again"
            key = f"{table.key_index} ({', '.join(table.key)})"
            reason = (
                f"{why}: changed rows are read again by the key {key}, and the copy is exact at the end of the reads"
            )
        else:
            chosen = "exported"
            lasts = f"about {math.ceil(table.bytes / BYTES_PER_SECOND):,} s"
            if table.details["kind"] == VIEW:
                lasts = "as long as its query takes"
            reason = (
                f"{_why_whole(table, options)}, so the whole table is read in one snapshot, which stays open for "
                f"{lasts} ({why})"
            )
        plans.append(replace(_planned(table, chosen, reason, options), at_upper=True))
    return plans


def _why_whole(table: Table, options: TableOptions) -> str:
    if table.details["kind"] in (VIEW, MATERIALIZED):
        return "it is a view, and the log has no changes of views"
    return (
        "the option `consistency` is `exported`"
        if options.consistency == "exported"
        else "the log does not have the keys of its changed rows"
    )


def _plan(table: Table, options: TableOptions) -> TablePlan:
    if options.consistency == "exported":
        chosen = "exported"
        reason = "the option `consistency` is `exported`: the table is read in one snapshot, at one position"
    elif table.keyless and options.consistency != "watermark":
        chosen = "exported"
        reason = "it has no key that identifies its rows, so it is read in one snapshot, at one position"
    else:
        chosen = "watermark"
        key = f"{table.key_index} ({', '.join(table.key)})"
        reason = f"its key {key} identifies the rows that change during the read, so it needs no long transaction"
    return _planned(table, chosen, reason, options)


def _planned(table: Table, chosen: str, reason: str, options: TableOptions) -> TablePlan:
    return TablePlan(
        table.name, chosen, reason, table.rows, table.bytes, options.unrepresentable, arrays=options.arrays
    )
