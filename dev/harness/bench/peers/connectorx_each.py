"""connectorx: one table of a schema (``schema.*``) after the other, each to a Parquet file, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import connectorx
import pyarrow.parquet as pq

from harness.bench.contender import Address, Order, Work


def prepare(address: Address) -> Work:
    def copy(order: Order) -> dict[str, Any]:
        folder = Path(order.target)
        folder.mkdir()
        schema = order.table.removesuffix(".*")
        sessions = address.sessions()
        with address.cursor() as cursor:
            cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,))
            tables = [name for (name,) in cursor.fetchall()]
        rows = 0
        for table in tables:
            found = connectorx.read_sql(address.url, f"SELECT * FROM {schema}.{table}", return_type="arrow")
            pq.write_table(found, folder / f"{table}.parquet")
            rows += found.num_rows
        return {"rows": rows, "sessions": address.sessions() - sessions - 1}

    return copy
