"""connectorx with PyArrow's Parquet writer, batch by batch, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import connectorx
import pyarrow.parquet as pq

from harness.bench.contender import Address, Order, Work

BATCH_ROWS = 65_536


def prepare(address: Address) -> Work:
    def copy(order: Order) -> dict[str, Any]:
        folder = Path(order.target)
        folder.mkdir()
        rows = 0
        batches = connectorx.read_sql(
            address.url, f"SELECT * FROM {order.table}", return_type="arrow_stream", batch_size=BATCH_ROWS
        )
        with pq.ParquetWriter(folder / "part-0.parquet", batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        return {"rows": rows}

    return copy
