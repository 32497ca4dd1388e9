"""Checks that new partitions of a table are empty in an exported snapshot.

A partition is new if it was added after the table was recorded. The log does not report the rows of a new partition,
and no task reads the partition. If the partition is empty in the snapshot, all of its rows were added after the
snapshot's position. So the copy at the snapshot's position misses no row.
"""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import catalog_at
from airflow_provider_cdc.sources.postgres.server.session import Connection, may_pass, query, quote, said

_RELATIONS = """
SELECT c.oid, c.relkind::text, c.relfilenode, n.nspname, c.relname FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid
"""
# A relation that was truncated after the snapshot looks empty in the snapshot. So check that the relation still has the
# same file. The catalog functions in this query return the present file, even in an older snapshot.
_SAME_FILE = """
SELECT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation = %(oid)s)
    AND pg_relation_filenode(%(oid)s::oid) = %(filenode)s
"""


def why_not_empty(connection: Connection, snapshot: str, partitions: Collection[int]) -> str:
    """Return the reason why a partition may have rows in an exported snapshot. Empty: no partition has rows.

    :param partitions: the OIDs of relations that exist in the snapshot.
    """
    with catalog_at(connection, snapshot) as catalog:
        for oid, kind, filenode, schema, name in query(catalog, _RELATIONS, (list(partitions),)):
            if kind == "p":
                continue
            relation = quote(schema, name)
            if kind != "r":
                return f"the new partition {relation} is not a plain table"
            try:
                with catalog.transaction():
                    ((has_rows,),) = query(catalog, f"SELECT EXISTS (SELECT FROM ONLY {relation})")
                    # The transaction still holds the lock on the relation, so the name still refers to this relation.
                    ((same,),) = query(catalog, _SAME_FILE, {"oid": oid, "filenode": filenode})
            except psycopg.Error as error:
                if may_pass(error.sqlstate or ""):
                    raise
                return f"cannot read whether the new partition {relation} has rows in the snapshot: {said(error)}"
            if has_rows:
                return f"the new partition {relation} has rows in the snapshot that are not in the log"
            if not same:
                return f"the new partition {relation} was renamed, truncated or rewritten since"
    return ""
