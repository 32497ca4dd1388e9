"""The catalog's readers for tests: each call reads in one new snapshot (`catalog_snapshot.read_catalog`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from airflow_provider_cdc.sources.postgres.catalog import named_tables, replica_identities, schema
from airflow_provider_cdc.sources.postgres.catalog import schema as partition_bounds
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog, read_catalog
from airflow_provider_cdc.sources.postgres.server.session import Connection
from airflow_provider_cdc.sources.postgres.slots import standing_record

P = ParamSpec("P")
T = TypeVar("T")


def _in_snapshot(read: Callable[Concatenate[Catalog, P], T]) -> Callable[Concatenate[Connection, P], T]:
    def of_session(connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return read_catalog(connection, lambda catalog: read(catalog, *args, **kwargs))

    return of_session


followed = _in_snapshot(replica_identities.followed)
frames_of = _in_snapshot(standing_record.frames_of)
read_tables = _in_snapshot(schema.read_tables)
resolve = _in_snapshot(named_tables.resolve)
states_of = _in_snapshot(standing_record.states_of)
without_room = _in_snapshot(partition_bounds.without_room)
