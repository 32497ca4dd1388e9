"""The record of a table as in a run, for contenders that read without a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.api.source import Source

RUN_ID = "bench"


@contextmanager
def recorded(source: Source, table: str) -> Iterator[InitialPoint]:
    """Yield the initial point of a run that copies one table. Afterwards, release it on the server."""
    plan = TablePlan(TableName.parse(table), "watermark", "it has a key")
    point = source.record_initial([plan], LockPolicy(), RUN_ID)
    try:
        yield point
    finally:
        source.release(RUN_ID)
