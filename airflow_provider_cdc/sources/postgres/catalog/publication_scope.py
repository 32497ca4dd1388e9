"""What makes a publication include or omit a table although nobody alters the publication.

One of whole schemas includes whatever lies in them at the time of the change. One that reports partitions as their root
reports a table under another's name while it is a partition. Either may last for a moment within a transaction, and
leaves no trace but new versions of catalog rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_cdc.sources.postgres.server.session import Connection, query

# Nothing but a move to another schema makes another version of a relation's dependency on its schema.
_VERSIONS = """
SELECT c.oid, c.xmin::text, d.xmin::text FROM pg_class c LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass
    AND d.objid = c.oid AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass
WHERE c.oid = ANY(%s::oid[])
"""


def read_versions(connection: Connection, oids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """The versions of relations' rows in the catalog, and of what says which schema they lie in, by their OIDs."""
    return {
        oid: (relation_version, schema or "")
        for oid, relation_version, schema in query(connection, _VERSIONS, (list(oids),))
    }


def described(versions: Mapping[int, tuple[str, str]], table: int, leaves: Sequence[int]) -> dict[str, Any]:
    """What `moved` compares, for a table's details: ``version`` of the table, ``placed`` of it and its leaves."""
    oids = [oid for oid in {table, *leaves} if oid in versions]
    return {
        "version": versions[table][0] if table in versions else "",
        "placed": {str(oid): versions[oid][1] for oid in sorted(oids)},
    }


def moved(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What happened since that may have kept changes out of the log, in words, given a table's details."""
    before: Mapping[str, str] = recorded.get("placed", {})
    # What is no part of the table any more is for others to tell.
    if any(now["placed"].get(oid, version) != version for oid, version in before.items()):
        return "it, or a partition of it, was moved to another schema"
    if recorded.get("via_root") and recorded["version"] != now["version"]:
        return "it was altered, and may have been a partition, of which the publication tells as of its root"
    return ""
