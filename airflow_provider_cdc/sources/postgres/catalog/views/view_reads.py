"""Checks that a database view was read as of the position of the exported snapshot.

A read sees the rows of the snapshot as long as the table still has the same file. After a statement has rewritten a
table, an older snapshot shows no rows of the table. After a refresh has rewritten a materialized view, an older
snapshot shows the new rows. Also, the server uses the definition that the view has at the moment of the read. So each
read checks the relations that its transaction has locked, while the locks are held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import SchemaChanged, SourceUnavailable
from airflow_provider_cdc.sources.postgres.catalog.schema import HINT, Leaf
from airflow_provider_cdc.sources.postgres.catalog.views import view_definitions

# The functions in this query return the present state. The rows of catalog tables show the state as of the exported
# snapshot.
_LOCKED = f"""
SELECT l.relation::text, COALESCE(pg_catalog.pg_relation_filenode(l.relation), 0)::text, COALESCE(c.relkind::text, ''),
    COALESCE(c.relfilenode, 0)::text
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation
WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= {view_definitions.FIRST_OWN_OID}
    AND COALESCE(c.relkind, 'r') NOT IN ('i', 'I', 't')
    AND pg_catalog.pg_index_has_property(l.relation::regclass, 'clusterable') IS NULL
"""
_RETRY = "retry the task"


def check_view_read(ask: Callable[[str], Sequence[Sequence[Any]]], table: Table, leaf: Leaf) -> None:
    """Check that the current transaction has read the rows of a view as of the exported snapshot.

    :param ask: runs a query whose columns are all text, and returns its rows.
    :raises SourceUnavailable: a materialized view was refreshed after the snapshot. A new snapshot will show the new
        rows.
    :raises SchemaChanged: the view reads another relation than before, or a relation that was rewritten.
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
