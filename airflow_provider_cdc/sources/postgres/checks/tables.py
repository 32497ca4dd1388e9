"""Checks of tables: their keys, columns and storage, which rows are logged and visible, and user code that may run."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.catalog import users_code
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.named_tables import relation_problems
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import identity_problem
from airflow_provider_cdc.sources.postgres.catalog.schema import inheritance_problems
from airflow_provider_cdc.sources.postgres.catalog.types import leaving_out, unmapped
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.checks.context import CatalogContext, TablesContext, UserContext
from airflow_provider_cdc.sources.postgres.server.session import quote


def _plannable(context: TablesContext) -> Iterable[Problem]:
    return users_code.unplannable(context.connection, context.tables)


def _inheritance(context: CatalogContext) -> Iterable[Problem]:
    return inheritance_problems(context.connection, context.tables)


def _columns(context: CatalogContext) -> Iterable[Problem]:
    for table in context.tables:
        where = str(table.name)
        if not table.columns:
            yield Problem(
                where, "has no columns: only its number of rows could be copied", "leave the table out", where
            )


def _keys(context: CatalogContext) -> Iterable[Problem]:
    for table in context.planned("watermark"):
        where = str(table.name)
        if table.columns and table.keyless and table.details["kind"] not in (VIEW, MATERIALIZED):
            yield Problem(
                where,
                "the consistency `watermark` needs a primary key or a non-deferrable unique index of whole NOT NULL "
                "columns, and the table has neither",
                f"ALTER TABLE {quote(table.name.schema, table.name.name)} ADD PRIMARY KEY (…), or set "
                f"`Read.consistency` "
                "to `auto` or `exported`",
                where,
            )


def _rewound(context: CatalogContext) -> Iterable[Problem]:
    for table, plan in zip(context.tables, context.plans, strict=True):
        if table.columns and not plan.at_upper:
            yield from rewind_problems(context.connection, table)


def rewind_problems(catalog: Catalog, table: Table) -> Iterable[Problem]:
    """Yield the reasons why the log does not have all old rows of a table. Such a table cannot be rewound."""
    if (problem := identity_problem(table)) is not None:
        yield problem
    where = str(table.name)
    since_18 = catalog.info.server_version >= 180_000
    read = {column.name for column in table.as_read.columns}
    for column in table.columns:
        generated = column.details.get("generated")
        # If a table has a virtual column, the server rejects an application's UPDATE, even if the column is not read.
        if generated == "virtual" or (generated and not since_18 and column.name in read):
            why = "the log has no virtual columns" if since_18 else "the log has them only since PostgreSQL 18"
            yield Problem(
                f"{where}.{column.name}",
                f"is a generated column, and {why}",
                f"{leaving_out(table, column.name) if generated == 'stored' else ''}drop the column, leave the table "
                "out, or set `Read.consistency` to `auto` or `again`",
                where,
            )


def _types(context: CatalogContext) -> Iterable[Problem]:
    for table in context.tables:
        where = str(table.name)
        for column in table.as_read.columns:
            if (reason := unmapped(column)) is not None:
                yield Problem(
                    f"{where}.{column.name}",
                    reason,
                    f"{leaving_out(table, column.name)}change the column's type, or leave the table out",
                    where,
                )


def _relations(context: CatalogContext) -> Iterable[Problem]:
    for table in context.tables:
        yield from relation_problems(context.connection, table)


def _event_triggers(context: UserContext) -> Iterable[Problem]:
    # Do not try commands that this user may not execute.
    if context.publication or context.missing_of_server or not context.may_publish:
        return ()
    return users_code.publication_refused(context.connection, context.logged)


_NOT_PLANNED = (Raised(Moment.POSITION_FIXED, "sources.postgres.steps.snapshot:_check_plans"),)

PLANNABLE: tuple[Check[TablesContext], ...] = (
    Check(
        "postgres.users-functions",
        "The server can plan a SELECT of each table in a session of the run, whatever functions its indexes call.",
        (Moment.PREFLIGHT,),
        "qualify the names in the function with their schemas, or leave the table out",
        _plannable,
    ),
)

ROWS_ELSEWHERE: tuple[Check[CatalogContext], ...] = (
    Check(
        "postgres.rows-elsewhere",
        "The rows of a table are in the table itself, or in its partitions.",
        (Moment.PREFLIGHT, Moment.POSITION_FIXED),
        "leave the table out, and copy its children as separate tables",
        _inheritance,
        (Raised(Moment.POSITION_FIXED, "sources.postgres.catalog.schema:check_whole"),),
    ),
)

COLUMNS: tuple[Check[CatalogContext], ...] = (
    Check(
        "postgres.columns",
        "A table has columns.",
        (Moment.PREFLIGHT,),
        "leave the table out",
        _columns,
    ),
    Check(
        "postgres.key",
        "If the parts of a table are read at different times, the table has a key that identifies its rows.",
        (Moment.PREFLIGHT,),
        "add a primary key, or set `Read.consistency` to `auto` or `exported`",
        _keys,
        _NOT_PLANNED,
    ),
    Check(
        "postgres.replica-identity",
        "The log has the old rows of each table that the run rewinds.",
        (Moment.PREFLIGHT,),
        "ALTER TABLE … REPLICA IDENTITY FULL, or set `Read.consistency` to `auto` or `again`",
        _rewound,
        (*_NOT_PLANNED, Raised(Moment.LOG_READ, "sources.postgres.log.walker:LogWalker._check_identity")),
    ),
    Check(
        "postgres.column-types",
        "Every column has a type that Arrow can represent.",
        (Moment.PREFLIGHT,),
        "change the column's type, or leave the table out",
        _types,
    ),
)

RELATIONS: tuple[Check[CatalogContext], ...] = (
    Check(
        "postgres.relations",
        "A table and its partitions are logged (not UNLOGGED) and stored as heap tables, and this user sees all of "
        "their rows.",
        (Moment.PREFLIGHT, Moment.POSITION_FIXED),
        "ALTER TABLE … SET LOGGED, connect as the table's owner or ALTER ROLE … BYPASSRLS, or leave the table out",
        _relations,
    ),
)

EVENT_TRIGGERS: tuple[Check[UserContext], ...] = (
    Check(
        "postgres.event-triggers",
        "No event trigger of the database rejects the run's publication.",
        (Moment.PREFLIGHT,),
        "exclude the user of this connection in the trigger, or name a publication in the connection",
        _event_triggers,
        (Raised(Moment.POSITION_FIXED, "sources.postgres.catalog.users_code:execute"),),
    ),
)
