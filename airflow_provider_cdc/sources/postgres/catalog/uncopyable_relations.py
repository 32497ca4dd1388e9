"""Finds relations that cannot be copied because of how they store, log or show their rows."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.catalog.views.safe_views import view_problems
from airflow_provider_cdc.sources.postgres.catalog.views.view_definitions import VIEW
from airflow_provider_cdc.sources.postgres.server.session import query


def relation_problems(catalog: Catalog, table: Table) -> Iterable[Problem]:
    """Yield the problems of the relations that hold a table's rows."""
    yield from view_problems(catalog, table)
    oids = [leaf.oid for leaf in leaves(table)]
    for name, kind, persistence, access, heap, secured, forced, user in query(
        catalog,
        "SELECT c.oid::regclass::text, c.relkind, c.relpersistence, a.amname, "
        "a.amhandler = 'heap_tableam_handler'::regproc, row_security_active(c.oid), "
        "pg_has_role(c.relowner, 'USAGE') AND c.relforcerowsecurity, quote_ident(current_user) "
        "FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid",
        (oids,),
    ):
        where = str(table.name)
        if kind == "f":
            yield Problem(
                where,
                f"the partition {name} is a foreign table, and the log does not contain the changes of foreign tables",
                "leave it out",
                where,
            )
            continue
        if persistence != "p":
            yield Problem(
                where,
                f"{name} is {'unlogged' if persistence == 'u' else 'temporary'}: its changes are not in the log",
                f"ALTER TABLE {name} SET LOGGED, or leave the table out",
                where,
            )
        # The storage is determined by the handler of the access method, and not by the name of the method. A view
        # stores no rows.
        if not heap and kind != VIEW:
            yield Problem(
                where,
                f"{name} uses the access method {access}, which may move rows to other places",
                "leave the table out",
                where,
            )
        if secured:
            yield Problem(
                where,
                f"row-level security hides rows of {name} from this user",
                (
                    f"ALTER TABLE {name} NO FORCE ROW LEVEL SECURITY, or "
                    if forced
                    else "connect as the owner of the table, or "
                )
                + f"ALTER ROLE {user} BYPASSRLS",
            )
