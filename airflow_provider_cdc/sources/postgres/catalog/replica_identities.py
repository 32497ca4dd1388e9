"""Replica identities: of which tables the log tells the keys of all rows that were touched.

A row's key is known from the log if every relation that holds rows of the table identifies old rows by it: by its
primary key (REPLICA IDENTITY DEFAULT), by an index (USING INDEX), or by the whole row (FULL). Then an INSERT tells the
new row, a DELETE the old key, and an UPDATE the new row, and the old key if any byte of it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.catalog.schema import leaves
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote

FULL = "f"
_GENERATED_COLUMNS_SINCE = 180_000

# The columns that identify old rows; all of them (null) with FULL, and none (empty) without an identity. A virtual
# column makes FULL none: while a publication has such a table, the server refuses the application's UPDATE and DELETE.
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


def followed(connection: Connection, tables: Sequence[Table], publication: str = "") -> list[bool]:
    """Of each table, whether the log tells the key of every row that is touched.

    :param publication: the one that the log is read through; empty: one that is made for the run.
    """
    columns = logged_columns(connection, publication)
    oids = [leaf.oid for table in tables for leaf in leaves(table)]
    identifying = {oid: names for oid, _, names in query(connection, IDENTIFYING, (oids,))}

    def tells(table: Table) -> bool:
        key = set(table.key)
        return (
            bool(key)
            and key <= set(columns(table))
            and all((names := identifying.get(leaf.oid, ())) is None or key <= set(names) for leaf in leaves(table))
        )

    return [tells(table) for table in tables]


def whole_rows(connection: Connection, tables: Sequence[Table]) -> list[bool]:
    """Of each table, whether the log tells what every row that is touched was before, as a publication may have it."""
    oids = [leaf.oid for table in tables for leaf in leaves(table)]
    whole = {oid for oid, _, names in query(connection, IDENTIFYING, (oids,)) if names is None}
    return [whole.issuperset(leaf.oid for leaf in leaves(table)) for table in tables]


def logged_columns(connection: Connection, publication: str = "") -> Callable[[Table], list[str]]:
    """Tells the names of a table's columns that the log has: no virtual ones, and stored ones only since PostgreSQL 18.

    :param publication: see `followed`. One that does not exist is yet to be made for the run.
    """
    stored = connection.info.server_version >= _GENERATED_COLUMNS_SINCE
    if stored and publication:
        rows = query(connection, "SELECT pubgencols = 's' FROM pg_publication WHERE pubname = %s", (publication,))
        stored = all(has for (has,) in rows)
    logged_kinds = (None, "stored") if stored else (None,)
    return lambda table: [column.name for column in table.columns if column.details.get("generated") in logged_kinds]


def no_identity(table: Table) -> str:
    """The statement that makes the log tell a table's keys."""
    name = quote(table.name.schema, table.name.name)
    if table.key:
        return f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT (or FULL; likewise each of its partitions)"
    return f"ALTER TABLE {name} ADD PRIMARY KEY (…)"


def needs_log(plan: TablePlan) -> bool:
    """Whether a run needs the log of a table from its own position on: not if all of it is read in the view at which
    the run is exact, or if its last copy is rolled forward to that position."""
    return not plan.base and not (plan.at_upper and plan.consistency == "exported")


def identity_problem(table: Table) -> Problem | None:
    """What is wrong with a table's replica identity: without FULL the log lacks what a row was before."""
    if table.details["kind"] in (VIEW, MATERIALIZED):
        return Problem(
            str(table.name),
            "is a view, of which the log does not tell: it is exact only at the position where it is read",
            "choose consistency auto, again or exported",
            str(table.name),
        )
    roots = [table.name] if table.details["kind"] == "p" and table.details["identity"] != "f" else []
    lacking = [leaf.sql for leaf in leaves(table) if leaf.identity != "f"]
    names = [quote(name.schema, name.name) for name in roots] + lacking
    if not names:
        return None
    return Problem(
        str(table.name),
        "the log does not tell what a changed row was before: its replica identity is not FULL",
        "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names),
        str(table.name),
    )
