"""Checks everything that a run needs, before the run begins. Reports all problems at once, each with a hint."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Parts, Table, whole_tables
from airflow_provider_cdc.errors import PreflightError, Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, read_catalog
from airflow_provider_cdc.sources.postgres.catalog.named_tables import resolve
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import followed
from airflow_provider_cdc.sources.postgres.catalog.schema import read_tables
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.checks.asked import OF_A_REQUEST, OF_SERVER, OF_TABLES
from airflow_provider_cdc.sources.postgres.checks.context import CatalogContext, RequestContext, UserContext
from airflow_provider_cdc.sources.postgres.checks.tables import rewind_problems
from airflow_provider_cdc.sources.postgres.server.server import naming_blockers
from airflow_provider_cdc.sources.postgres.server.session import Connection, log_session, query, quote, session
from airflow_provider_cdc.sources.postgres.slots import publications, slots, waits
from airflow_provider_cdc.sources.postgres.slots.publications import warn_of_harm
from airflow_provider_cdc.sources.postgres.steps.standby_reads import planned_on_standbys, standby_problems

# Logs warnings during preflight, about settings that make a run costly, versions with defects, and unused slots.


BYTES_PER_SECOND = 20_000_000
_LOG_PER_TABLE_BYTE = 0.1
_LONG_SECONDS = 60
_LEAST_SECONDS = 600
"""The estimates: `BYTES_PER_SECOND` is how many bytes a run reads per second. `_LOG_PER_TABLE_BYTE` is how many bytes
of log the server writes during the reads for each byte of the tables. `_LEAST_SECONDS` is the minimum time, in seconds,
that the rest of a run takes."""

_RIGHT_SINCE: Mapping[int, int] = {15: 8, 16: 4}
"""The first minor version without a certain defect, by major version. With the defect, a slot that is created while
other slots are read may miss open transactions."""

_RISKS: Mapping[tuple[str, str], str] = {
    ("fsync", "off"): "a crash of the machine may undo or damage committed changes",
    ("full_page_writes", "off"): "a crash of the machine may damage pages",
    ("synchronous_commit", "off"): "commits are visible before they are on disk, so each part that is read waits until "
    "they are (up to three times wal_writer_delay)",
}

_log = logging.getLogger(__name__)


def advise(connection: Connection, log: Connection, tables: Sequence[Table]) -> None:
    """Log every warning that applies. ``log`` is a session of the server that has the run's slot."""
    _warn_of_version(connection.info.server_version)
    slots.log_decoding_switch(connection)
    _warn_of_crashes(connection)
    _warn_of_limits(log, tables)
    _warn_of_writers(connection)
    _warn_of_left(connection, log)


def _warn_of_version(version: int) -> None:
    major, minor = divmod(version, 10_000)
    if minor < _RIGHT_SINCE.get(major, 0):
        _log.warning(
            "In PostgreSQL %d.%d, a new replication slot may miss open transactions if other slots are read at that "
            "time. This provider creates its slots in a way that avoids the error, but other clients may not: "
            "upgrade to %d.%d or later",
            major,
            minor,
            major,
            _RIGHT_SINCE[major],
        )


def _warn_of_crashes(connection: Connection) -> None:
    """Warn of settings under which a crash loses data. In any case, parts that were read before a restart are read
    again."""
    # Read the values that apply to other sessions, because this session has its own synchronous_commit.
    rows = query(
        connection,
        "SELECT name, reset_val FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') "
        "ORDER BY name",
    )
    for name, setting in rows:
        if risk := _RISKS.get((name, setting)):
            _log.warning("%s is %s: %s", name, setting, risk)


def _warn_of_limits(connection: Connection, tables: Sequence[Table]) -> None:
    """Warn of limits at which the server invalidates the run's slot. If the slot is invalidated, the run stops. There
    is no other effect."""
    limits = dict(
        query(
            connection,
            "SELECT name, setting::bigint FROM pg_settings "
            "WHERE name IN ('max_slot_wal_keep_size', 'idle_replication_slot_timeout')",
        )
    )
    size = sum(table.bytes for table in tables)
    seconds = size / BYTES_PER_SECOND
    megabytes, idle = limits["max_slot_wal_keep_size"], limits.get("idle_replication_slot_timeout", 0)
    if 0 <= megabytes * 2**20 < size * _LOG_PER_TABLE_BYTE:
        _log.warning(
            "max_slot_wal_keep_size is %d MB. The size of the tables is %.0f MB, and reading them takes about %.0f "
            "s. If the server writes more log than this limit during that time, the server removes log that the run "
            "needs",
            megabytes,
            size / 2**20,
            seconds,
        )
    if 0 < idle < _LEAST_SECONDS + seconds:
        _log.warning(
            "idle_replication_slot_timeout is %d s, but the run's slot is idle for about %.0f s while tables are "
            "read. The server may remove the run's log",
            idle,
            seconds,
        )


def _warn_of_writers(connection: Connection) -> None:
    """Warn of long transactions that write. The creation of a run's slots waits for them, and fails after a time limit.
    If rows are read again, the last slot is created late in the run."""
    if long := waits.blockers(connection, _LONG_SECONDS):
        _log.warning(
            "The run's slots must wait for all write transactions to end. These write transactions have run for more "
            "than %d s: %s",
            _LONG_SECONDS,
            "; ".join(long),
        )


def _warn_of_left(connection: Connection, log: Connection) -> None:
    """Warn of slots and publications that earlier runs may have left behind.

    Slots and publications of runs in progress are listed, too. So the message contains the command that drops a slot or
    publication only if no run can use it any more.
    """
    for name, wal_kept, status in slots.left_slots(log):
        drop = f"SELECT pg_drop_replication_slot('{name}'); DROP PUBLICATION IF EXISTS {quote(name)};"
        if status == "lost":
            _log.warning("The slot %s has lost its log. No run can use this slot any more: %s", name, drop)
        else:
            _log.warning(
                "The slot %s keeps %.1f MB of log%s. The run of the slot may be in progress: check in Airflow "
                "whether the run has ended. If so, drop the slot (pg_drop_replication_slot) and the publication of "
                "the same name",
                name,
                wal_kept / 1e6,
                _made_for(publications.about(connection, name)),
            )
    for name in slots.left_publications(connection):
        _log.warning(
            "The publication %s has no slot%s. No run can use this publication any more: DROP PUBLICATION %s;",
            name,
            _made_for(publications.about(connection, name)),
            quote(name),
        )


def _made_for(about: Mapping[str, Any]) -> str:
    if "run_id" not in about:
        return ""
    run = f"run {about.get('dag_run_id') or about.get('run_id')}"
    dag = f" of DAG {about['dag_id']}" if about.get("dag_id") else ""
    return f", and was made for {run}{dag} at {about.get('created')} on {about.get('host')}"


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
            if settings.replicas:
                plans = planned_on_standbys(plans, tables)
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
        if not problems:
            problems = standby_problems(settings, connection, context.tables, context.plans)
        if publication:
            read_catalog(connection, lambda catalog: warn_of_harm(catalog, publication, context.logged))
        with nullcontext(connection) if problems else log_session(settings, connection) as log:
            advise(connection, log, context.tables)
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
    is_followed_by_key = [by_keys and known for known in followed(catalog, tables, publication)]
    return _plans_again(tables, is_followed_by_key, options, why)


def _why_again(catalog: Catalog, tables: Sequence[Table], options: TableOptions) -> str:
    """Return the reason why rows of tables are read again instead of rewound. Empty: they are rewound."""
    if options.consistency == "again":
        return "`Read.consistency` is `again`"
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


def _plans_again(
    tables: Sequence[Table], is_followed_by_key: Sequence[bool], options: TableOptions, why: str
) -> list[TablePlan]:
    plans = []
    for table, is_told in zip(tables, is_followed_by_key, strict=True):
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
        "`Read.consistency` is `exported`"
        if options.consistency == "exported"
        else "the log does not have the keys of its changed rows"
    )


def _plan(table: Table, options: TableOptions) -> TablePlan:
    if options.consistency == "exported":
        chosen = "exported"
        reason = "`Read.consistency` is `exported`: the table is read in one snapshot, at one position"
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
