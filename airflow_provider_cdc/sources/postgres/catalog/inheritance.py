"""Finds tables whose rows are partly or entirely stored in other tables. A copy would miss rows that a SELECT returns.

Partitions are copied together with their root. Child tables (``INHERITS``) are not copied with their parent, because a
key of the parent may occur again in a child, and a child may have additional columns. TimescaleDB creates such child
tables. Citus stores rows on other servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem, SchemaChanged
from airflow_provider_cdc.sources.planning.patterns import exactly
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.server.session import query, value

_SHOWN = 3

_HYPERTABLES = (
    "SELECT c.oid FROM _timescaledb_catalog.hypertable h JOIN pg_namespace n ON n.nspname = h.schema_name "
    "JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = h.table_name WHERE c.oid = ANY(%s::oid[])"
)
_DISTRIBUTED = "SELECT logicalrelid::oid FROM pg_catalog.pg_dist_partition WHERE logicalrelid::oid = ANY(%s::oid[])"


def inheritance_problems(catalog: Catalog, tables: Sequence[Table]) -> Iterable[Problem]:
    """Yield a problem for each table that has rows stored outside the table and its partitions."""
    hypertables = _listed(catalog, "_timescaledb_catalog.hypertable", _HYPERTABLES, tables)
    distributed = _listed(catalog, "pg_catalog.pg_dist_partition", _DISTRIBUTED, tables)
    for table in tables:
        where, children = str(table.name), list(table.details["children"])
        out = f"leave the table out: add the pattern !{exactly(table.name)}"
        if table.details["oid"] in hypertables:
            yield Problem(where, "is a TimescaleDB hypertable: its rows are in other tables (its chunks)", out, where)
        elif table.details["oid"] in distributed:
            yield Problem(where, "is distributed by Citus: its rows are in other tables (its shards)", out, where)
        elif children:
            more = f" and {len(children) - _SHOWN} more" if len(children) > _SHOWN else ""
            yield Problem(
                where,
                f"other tables inherit from it ({', '.join(children[:_SHOWN])}{more}): a SELECT shows their rows, too",
                f"{out}, and copy the other tables individually; or ALTER TABLE … NO INHERIT",
                where,
            )


def check_whole(catalog: Catalog, tables: Sequence[Table]) -> None:
    """Check that all rows of the tables are in the tables themselves or in their partitions.

    :raises SchemaChanged: a table has rows in other relations.
    """
    for problem in inheritance_problems(catalog, tables):
        raise SchemaChanged(problem.what, where=problem.where, hint=problem.hint)


def _listed(catalog: Catalog, relation: str, sql: str, tables: Sequence[Table]) -> set[int]:
    if value(catalog, "to_regclass(%s) IS NULL", (relation,)):
        return set()
    return {oid for (oid,) in query(catalog, sql, ([table.details["oid"] for table in tables],))}
