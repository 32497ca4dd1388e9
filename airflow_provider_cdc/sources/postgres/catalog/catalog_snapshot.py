"""Reads the catalog in one snapshot, so that several queries describe the same moment.

In autocommit, each query sees the commits up to its own start. Between two queries, another session may rename a column
or drop a type, and the second result then contradicts the first. So every function that combines queries of the catalog
takes a `Catalog`, which exists only inside of one snapshot: a read-only transaction of the level REPEATABLE READ.

Some functions of the server, such as ``pg_get_expr`` and ``format_type``, read the present catalog in every snapshot.
If an object was dropped or renamed since the snapshot, such a function raises an error or returns NULL. Then
`read_catalog` reads everything again in a new snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NewType, TypeVar

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
