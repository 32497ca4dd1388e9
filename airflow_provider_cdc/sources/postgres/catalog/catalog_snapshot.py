"""Reads the catalog in one snapshot, so that several queries describe the same moment.

In autocommit, each query sees the commits up to its own start. Between two queries, another session may rename a column
or drop a type, and the second result then contradicts the first. So every function that combines queries of the catalog
takes a `Catalog`, which exists only inside of one snapshot: a read-only transaction of the level REPEATABLE READ.

Some functions of the server, such as ``pg_get_expr`` and ``format_type``, read the present catalog in every snapshot.
If an object was dropped or renamed since the snapshot, such a function raises an error or returns NULL. Then
`read_catalog` reads everything again in a new snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NewType, TypeVar

import psycopg

from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.sources.postgres.server.session import Connection, error_text, literal, query

Catalog = NewType("Catalog", Connection)
"""A session whose queries all see the catalog at the same moment. Only `read_catalog` and `catalog_at` create one."""

_TRIES = 10
# An object is gone or has another name: https://www.postgresql.org/docs/current/errcodes-appendix.html. XX000 is "cache
# lookup failed".
_CHANGED = frozenset({"42P01", "42703", "42704", "42883", "3D000", "3F000", "XX000"})

T = TypeVar("T")


class CatalogChanged(Exception):
    """A function of the server described another moment than the snapshot."""


def read_catalog(connection: Connection, read: Callable[[Catalog], T]) -> T:
    """Call ``read`` in one new snapshot, and return its result.

    The snapshot keeps the server from removing dead rows. So ``read`` only queries the catalog: it reads neither tables
    nor the log, and does not wait. It may be called several times.

    :raises TransientError: the catalog kept changing while it was read.
    """
    for _ in range(_TRIES):
        try:
            with catalog_at(connection) as catalog:
                return read(catalog)
        except CatalogChanged as error:
            last = str(error)
        except psycopg.Error as error:
            if error.sqlstate not in _CHANGED:
                raise
            last = error_text(error)
    raise TransientError(
        f"in each of {_TRIES} tries, definitions were changed while they were read: {last}",
        where="catalog",
        hint="wait until the DDL has ended, then retry the task",
    )


@contextmanager
def catalog_at(connection: Connection, snapshot: str = "") -> Iterator[Catalog]:
    """Open a read-only transaction in one snapshot, and end it with the block.

    :param snapshot: the name of an exported snapshot. Empty: a new snapshot.
    """
    connection.isolation_level, connection.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
    try:
        with connection.transaction():
            if snapshot:
                query(connection, f"SET TRANSACTION SNAPSHOT {literal(snapshot)}")
            yield Catalog(connection)
    finally:
        if not connection.closed:
            connection.isolation_level, connection.read_only = None, None


# Detects tables that entered or left a publication although the publication itself was not altered.
#
# A publication of whole schemas includes a table while the table is in one of these schemas. A publication with
# ``publish_via_partition_root`` publishes a table under the root's name while the table is a partition. Both situations
# may last only for a moment within a transaction. In that case, new versions of catalog rows are their only traces.


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
