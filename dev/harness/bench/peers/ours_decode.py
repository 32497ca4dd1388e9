"""This package's reader without Spark and files: rows become Arrow batches, which are discarded. Compare with
`drain`."""

from __future__ import annotations

import time
from multiprocessing import get_context
from typing import Any

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from harness.bench.contender import Address, Order, Work
from harness.bench.recorded import recorded
from harness.bench.spark import CORES

CHUNK_ROWS = 100_000


def prepare(address: Address) -> Work:
    settings = address.settings
    source = open_source(settings)
    pool = get_context("fork").Pool(CORES)

    def read(order: Order) -> dict[str, Any]:
        with recorded(source, order.table) as point:
            (table,) = point.tables
            started = time.perf_counter()
            chunks = source.plan_chunks(table, CHUNK_ROWS)
            # Use as many sessions as `drain`.
            size = -(-len(chunks) // CORES)
            parts = [(settings, table, chunks[at : at + size]) for at in range(0, len(chunks), size)]
            rows = sum(pool.starmap(_decode, parts, chunksize=1))
            return {"rows": rows, "seconds": time.perf_counter() - started}

    return read


def _decode(settings: ConnectionSettings, table: Table, chunks: list[Chunk]) -> int:
    with open_source(settings).reader(table, "watermark", LockPolicy()) as reader:
        return sum(batch.num_rows for chunk in chunks for batch in reader.read(chunk))
