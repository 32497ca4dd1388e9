"""Partitions that came since a table was recorded: whether they hold no row of it at the position of a shared view.

The log does not tell of such a partition, and nobody reads it. Where it is empty in the view, all of its rows came
after the view's position, and the copy at that position misses none.
"""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from airflow_provider_cdc.sources.postgres.server.session import Connection, literal, may_pass, query, quote, said

_RELATIONS = """
SELECT c.oid, c.relkind::text, c.relfilenode, n.nspname, c.relname FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid
"""
# The functions look at the relation as it is now: what was truncated since the view looks empty in it.
_SAME_FILE = """
SELECT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation = %(oid)s)
    AND pg_relation_filenode(%(oid)s::oid) = %(filenode)s
"""


def why_not_empty(connection: Connection, snapshot: str, partitions: Collection[int]) -> str:
    """Why partitions are not known to be empty in an exported snapshot, in words; empty if they are.

    :param partitions: OIDs of relations that the snapshot shows.
    """
    with connection.transaction():
        query(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        query(connection, f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
        for oid, kind, filenode, schema, name in query(connection, _RELATIONS, (list(partitions),)):
            if kind == "p":
                continue
            relation = quote(schema, name)
            if kind != "r":
                return f"the new partition {relation} is no plain table"
            try:
                with connection.transaction():
                    ((has_rows,),) = query(connection, f"SELECT EXISTS (SELECT FROM ONLY {relation})")
                    # The lock is held, so the name stands for what was read.
                    ((same,),) = query(connection, _SAME_FILE, {"oid": oid, "filenode": filenode})
            except psycopg.Error as error:
                if may_pass(error.sqlstate or ""):
                    raise
                return f"whether the new partition {relation} has rows there cannot be seen: {said(error)}"
            if has_rows:
                return f"the new partition {relation} has rows there, of which the log does not tell"
            if not same:
                return f"the new partition {relation} was renamed, truncated or rewritten since"
    return ""
