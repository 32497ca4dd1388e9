"""dlt with its connectorx backend, to Parquet files in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Order, Work

# dlt reads this variable when it is imported.
os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
os.environ["RUNTIME__LOG_LEVEL"] = "ERROR"

import dlt
from dlt.sources.sql_database import sql_table


def prepare(address: Address) -> Work:
    place, mysql = f"{address.user}@{address.host}:{address.port}", address.kind == "mysql"

    def copy(order: Order) -> dict[str, Any]:
        schema, name = order.table.split(".")
        folder = Path(order.target)
        pipeline = dlt.pipeline(
            pipeline_name=f"bench_{folder.name}",
            pipelines_dir=str(folder / "state"),
            destination=dlt.destinations.filesystem(bucket_url=str(folder / "lake")),
            dataset_name="bench",
        )
        table = sql_table(
            f"mysql+pymysql://{place}/{schema}" if mysql else f"postgresql+psycopg://{place}/{address.database}",
            table=name,
            schema=schema,
            backend="connectorx",
            backend_kwargs={"conn": f"mysql://{place}/{schema}" if mysql else address.url},
        )
        pipeline.run(table, loader_file_format="parquet")
        rows = pipeline.last_trace.last_normalize_info.row_counts[name]
        return {"rows": rows}

    return copy
