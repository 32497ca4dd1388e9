"""The cost of the first use: this package's reader in a new process, like each new Spark worker."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.sources.api.registry import open_source
from harness.bench.contender import Address, Order, Work
from harness.bench.recorded import recorded


def prepare(address: Address) -> Work:
    source = open_source(address.settings)

    def read(order: Order) -> dict[str, Any]:
        with recorded(source, order.table) as point:
            (table,) = point.tables
            chunks = source.plan_chunks(table, order.rows)
            with source.reader(table, "watermark", LockPolicy()) as reader:
                return {"rows": sum(batch.num_rows for chunk in chunks for batch in reader.read(chunk))}

    return read
