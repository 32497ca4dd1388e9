"""Detects tables that entered or left a publication although the publication itself was not altered.

A publication of whole schemas includes a table while the table is in one of these schemas. A publication with
``publish_via_partition_root`` publishes a table under the root's name while the table is a partition. Both situations
may last only for a moment within a transaction. In that case, new versions of catalog rows are their only traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.server.session import query

# The pg_depend row for a relation's schema gets a new version only when the relation is moved to another schema.
_VERSIONS = """
SELECT c.oid, c.xmin::text, d.xmin::text FROM pg_class c LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass
    AND d.objid = c.oid AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass
WHERE c.oid = ANY(%s::oid[])
"""


def read_versions(catalog: Catalog, oids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return the versions of relations' rows in pg_class, and of their dependencies on their schemas, by OID."""
    return {
        oid: (relation_version, schema or "")
        for oid, relation_version, schema in query(catalog, _VERSIONS, (list(oids),))
    }


def described(versions: Mapping[int, tuple[str, str]], table: int, leaves: Sequence[int]) -> dict[str, Any]:
    """Return the entries of a table's details that `moved` compares.

    ``version`` is the version of the table's row in pg_class. ``placed`` has the versions of the dependencies on
    schemas, for the table and for its leaves.
    """
    oids = [oid for oid in {table, *leaves} if oid in versions]
    return {
        "version": versions[table][0] if table in versions else "",
        "placed": {str(oid): versions[oid][1] for oid in sorted(oids)},
    }


def moved(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe a change of the table because of which the log may lack row changes. Empty: there was no such change.

    :param recorded: the recorded details of the table.
    :param now: the present details.
    """
    before: Mapping[str, str] = recorded.get("placed", {})
    # Other checks report relations that no longer belong to the table.
    if any(now["placed"].get(oid, version) != version for oid, version in before.items()):
        return "it, or a partition of it, was moved to another schema"
    if recorded.get("via_root") and recorded["version"] != now["version"]:
        return "it was altered, and may have been a partition, whose changes the publication reports under its root"
    return ""
