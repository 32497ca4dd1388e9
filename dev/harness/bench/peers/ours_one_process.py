"""Our reader in a process that has not used it yet, as each new Spark worker is: what first use costs."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.core.chunk import partition
from airflow_provider_cdc.core.table import TableName
from airflow_provider_cdc.sources import open_source
from airflow_provider_cdc.sources.base import LockPolicy, TablePlan
from harness.bench.contender import Address, Order, Work


def prepare(address: Address) -> Work:
    source = open_source(address.settings)

    def read(order: Order) -> dict[str, Any]:
        plan = TablePlan(TableName.parse(order.table), "watermark", "it has a key")
        (table,) = source.record_initial([plan], LockPolicy()).tables
        (everything,) = partition([])
        with source.reader(table, "watermark", LockPolicy()) as reader:
            return {"rows": sum(batch.num_rows for batch in reader.read(everything))}

    return read
