"""connectorx with PyArrow's Parquet writer. By default, one query reads a table. With ``partitioned``, four do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import connectorx
import pyarrow.parquet as pq

from harness.bench.bank import TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import parquet_files, timed

PARTITIONS = 4


def prepare(address: Address) -> Work:
    def copy(order: Order, folder: Path) -> None:
        more: dict[str, Any] = {}
        if order.way == "partitioned":
            more = {"partition_on": "id", "partition_num": PARTITIONS}
        for table in TABLES:
            query = f"SELECT * FROM {order.table.replace('*', table)}"
            found = connectorx.read_sql(address.url, query, return_type="arrow", **more)
            pq.write_table(found, folder / f"{table}.parquet")

    return timed(copy, parquet_files)
