"""Whether a view was read as it was at the position of the shared view of the data.

The rows of a table are as the shared view has them, as long as the table has the file that it had then: a statement
that writes it anew leaves an older view nothing, or, where it is a materialized view, the new rows. And what a view
reads is what the catalog says at the moment of the read. So the read looks, while its locks are held, at what it has
locked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import SchemaChanged, SourceUnavailable
from airflow_provider_cdc.sources.postgres.catalog import view_definitions
from airflow_provider_cdc.sources.postgres.catalog.schema import HINT, Leaf

# The functions look at what is there now, and the catalog's rows are those of the shared view.
_LOCKED = f"""
SELECT l.relation::text, COALESCE(pg_catalog.pg_relation_filenode(l.relation), 0)::text, COALESCE(c.relkind::text, ''),
    COALESCE(c.relfilenode, 0)::text
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= {view_definitions.FIRST_OWN_OID}
    AND COALESCE(c.relkind, 'r') NOT IN ('i', 'I', 't')
    AND pg_catalog.pg_index_has_property(l.relation::regclass, 'clusterable') IS NULL
"""
_RETRY = "the task can be retried as it is"


def check_view_read(ask: Callable[[str], Sequence[Sequence[Any]]], table: Table, leaf: Leaf) -> None:
    """Make sure that what was read of a view, in the transaction at hand, is what it was in the shared view.

    :param ask: returns the rows of a query whose columns are all text.
    :raises SourceUnavailable: a materialized view was refreshed after the shared view: another one shows its new rows.
    :raises SchemaChanged: the view reads another relation than it did, or one that was written anew.
    """
    known = view_definitions.files(table.details.get("reads", ()))
    for oid, now, kind, then in ask(_LOCKED):
        if kind == view_definitions.MATERIALIZED:
            if now != then:
                raise SourceUnavailable(
                    "a materialized view was refreshed between the snapshot and its read",
                    where=f"{table.name}, relation {oid}",
                    hint=_RETRY,
                )
        elif table.details["kind"] == view_definitions.VIEW and (
            int(oid) not in known or now != then or known[int(oid)] not in (0, int(now))
        ):
            what = f"the relation {oid}, which the view reads, is new, or was truncated or rewritten"
            raise SchemaChanged(what, where=f"{table.name}, {leaf.sql}", hint=HINT)
