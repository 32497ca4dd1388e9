"""Finds the relations that match the patterns of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import ConfigurationError, Problem
from airflow_provider_cdc.sources.planning import patterns as patterns_of_tables
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.safe_views import view_problems
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import VIEW
from airflow_provider_cdc.sources.postgres.server.session import query, quote

_TABLE, _PARTITION = "table", "partition"
_VIEWS = ("view", "materialized view")
_KINDS = {
    "r": _TABLE,
    "p": _TABLE,
    "v": _VIEWS[0],
    "m": _VIEWS[1],
    "f": "foreign table",
}


def resolve(catalog: Catalog, patterns: Sequence[str]) -> tuple[list[TableName], list[Problem]]:
    """Return the tables that match ``patterns``, sorted and without duplicates, and the problems of the patterns.

    There is a problem for each pattern that matches no table. `sources.planning.patterns` describes the syntax of
    patterns. A partition is a part of its root, so only the root counts as a table. A view counts as a table only if a
    pattern without a star matches the view. No pattern matches system schemas.
    """
    kinds = {
        TableName(schema, name): _PARTITION if partition else _KINDS[kind]
        for schema, name, kind, partition in query(
            catalog,
            "SELECT n.nspname, c.relname, c.relkind, c.relispartition FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind = ANY(%s) AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'",
            (list(_KINDS),),
        )
    }
    for name in _named_one_by_one(patterns):
        if kinds.get(name) in _VIEWS:
            kinds[name] = _TABLE
    return patterns_of_tables.resolve(patterns, kinds, [_TABLE], partial(_matches_nothing, catalog, kinds))


def _named_one_by_one(patterns: Sequence[str]) -> set[TableName]:
    found = set()
    for text in patterns:
        with suppress(ConfigurationError):
            pattern = patterns_of_tables.Pattern.parse(text)
            if len(pattern.schema) == len(pattern.name) == 1:
                found.add(pattern.text)
    return found


def _matches_nothing(
    catalog: Catalog, kinds: dict[TableName, str], pattern: str, wanted: TableName, others: list[TableName]
) -> Problem:
    if others and kinds[others[0]] == _PARTITION:
        (root,) = query(
            catalog,
            "SELECT pg_partition_root(%s::regclass)::text",
            (quote(others[0].schema, others[0].name),),
        )[0]
        return Problem(pattern, f"is a partition of {root}", "name the partitioned table; its partitions are included")
    if others:
        kind = kinds[others[0]]
        hint = "name it without a star, or name the tables that it reads"
        return Problem(
            pattern, f"is a {kind}, not a table", hint if kind in _VIEWS else "name the tables that it reads"
        )
    if wanted.schema.startswith("pg_") or wanted.schema == "information_schema":
        return Problem(pattern, "is in a system schema", "leave the table out: changes of system tables are not logged")
    if "*" in pattern:
        return Problem(
            pattern, "matches no table of this database", "correct the pattern, or the connection's database"
        )
    return Problem(pattern, "there is no such table in this database", "correct the name, or the connection's database")


# Finds relations that cannot be copied because of how they store, log or show their rows.


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
