"""Determines from replica identities for which tables the log has the keys of all touched rows.

The log has these keys if, in every relation that holds rows of the table, the replica identity includes the key. The
replica identity is the primary key (REPLICA IDENTITY DEFAULT), the columns of an index (USING INDEX), or the whole row
(FULL). In that case, the log has the new row of an INSERT, the old key of a DELETE, and the new row of an UPDATE. It
also has the old key of an UPDATE that changed any byte of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.server.session import query, quote

FULL = "f"
_GENERATED_COLUMNS_SINCE = 180_000

# For each relation, the columns that identify old rows. For the replica identity FULL, the result is null (all
# columns). For a relation without a replica identity, the result is empty. A relation with the replica identity FULL
# and a virtual column counts as having no replica identity. The reason is that the server rejects an application's
# UPDATE and DELETE statements while a publication includes such a relation.
IDENTIFYING = """
SELECT c.oid, c.relreplident, CASE WHEN c.relreplident = 'f' AND NOT EXISTS (
    SELECT FROM pg_attribute v WHERE v.attrelid = c.oid AND v.attgenerated = 'v' AND NOT v.attisdropped
) THEN NULL ELSE COALESCE((
    SELECT array_agg(a.attname::text) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
    ARRAY[]::text[]) END
FROM pg_class c WHERE c.oid = ANY(%s::oid[])
"""


def followed(catalog: Catalog, tables: Sequence[Table], publication: str = "") -> list[bool]:
    """Return, for each table, whether the log has the key of every touched row.

    :param publication: the publication through which the log is read. Empty: the run will create its own publication.
    """
    columns = logged_columns(catalog, publication)
    oids = [leaf.oid for table in tables for leaf in leaves(table)]
    identifying = {oid: names for oid, _, names in query(catalog, IDENTIFYING, (oids,))}

    def identifies(table: Table) -> bool:
        key = set(table.key)
        return (
            bool(key)
            and key <= set(columns(table))
            and all((names := identifying.get(leaf.oid, ())) is None or key <= set(names) for leaf in leaves(table))
        )

    return [identifies(table) for table in tables]


def whole_rows(catalog: Catalog, tables: Sequence[Table]) -> list[bool]:
    """Return, for each table, whether the log has all old rows when the table is published.

    The log has all old rows if the replica identity is FULL and the table has no virtual columns.
    """
    oids = [leaf.oid for table in tables for leaf in leaves(table)]
    whole = {oid for oid, _, names in query(catalog, IDENTIFYING, (oids,)) if names is None}
    return [whole.issuperset(leaf.oid for leaf in leaves(table)) for table in tables]


def logged_columns(catalog: Catalog, publication: str = "") -> Callable[[Table], list[str]]:
    """Return a function. Given a table, the function returns the names of the columns that are in the log.

    The log has no virtual columns. The log includes stored generated columns only since PostgreSQL 18.

    :param publication: see `followed`. If the publication does not exist, the run will create it.
    """
    stored = catalog.info.server_version >= _GENERATED_COLUMNS_SINCE
    if stored and publication:
        rows = query(catalog, "SELECT pubgencols = 's' FROM pg_publication WHERE pubname = %s", (publication,))
        stored = all(has for (has,) in rows)
    logged_kinds = (None, "stored") if stored else (None,)
    return lambda table: [column.name for column in table.columns if column.details.get("generated") in logged_kinds]


def no_identity(table: Table) -> str:
    """Return the ALTER TABLE statement that makes the server log a table's keys."""
    name = quote(table.name.schema, table.name.name)
    if table.key:
        return f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT (or FULL; also for each of its partitions)"
    return f"ALTER TABLE {name} ADD PRIMARY KEY (…)"


def needs_log(plan: TablePlan) -> bool:
    """Return whether a run needs the log of a table from the initial position on.

    The run does not need this log in two cases. In the first case, the run is exact at the position of a snapshot, and
    reads the whole table in this snapshot. In the second case, the run rolls the last copy forward to this position.
    """
    return not plan.base and not (plan.at_upper and plan.consistency == "exported")


def identity_problem(table: Table) -> Problem | None:
    """Return the problem of a table whose old rows are not in the log because its replica identity is not FULL."""
    if table.details["kind"] in (VIEW, MATERIALIZED):
        return Problem(
            str(table.name),
            "is a view. The log has no changes of views, so a copy is exact only at the position at which the view "
            "is read",
            "set `Read.consistency` to `auto`, `again` or `exported`",
            str(table.name),
        )
    roots = [table.name] if table.details["kind"] == "p" and table.details["identity"] != "f" else []
    lacking = [leaf.sql for leaf in leaves(table) if leaf.identity != "f"]
    names = [quote(name.schema, name.name) for name in roots] + lacking
    if not names:
        return None
    return Problem(
        str(table.name),
        "the replica identity of the table is not FULL, so the log does not have the old rows of changes",
        "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names),
        str(table.name),
    )


def joining(catalog: Catalog, tables: Sequence[Table]) -> list[Table]:
    """Return the tables that can join the publication. For these tables, the log has whole old rows or the keys of all
    changed rows, and the server does not reject changes because of the publication."""
    followed_tables = followed(catalog, tables)
    whole = whole_rows(catalog, tables)
    return [
        table
        for table, keys, rows in zip(tables, followed_tables, whole, strict=True)
        if (keys or rows) and table.details["kind"] not in (VIEW, MATERIALIZED)
    ]
