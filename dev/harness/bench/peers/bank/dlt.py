"""dlt's source ``sql_database`` into DuckDB. The later nights merge the rows with a new value of the cursor column."""

from __future__ import annotations

import os
from pathlib import Path

from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import Files, from_duckdb, timed

# dlt reads these variables when it is imported.
os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
os.environ["RUNTIME__LOG_LEVEL"] = "ERROR"

import dlt
from dlt.sources.sql_database import sql_database


def prepare(address: Address) -> Work:
    place, mysql = f"{address.user}@{address.host}:{address.port}", address.kind == "mysql"
    url = f"mysql+pymysql://{place}/{SCHEMA}" if mysql else f"postgresql+psycopg://{place}/{address.database}"

    def copy(order: Order, folder: Path) -> None:
        pipeline = dlt.pipeline(
            pipeline_name="bench_truth",
            pipelines_dir=str(folder / "state"),
            destination=dlt.destinations.duckdb(str(folder / "lake.duckdb")),
            dataset_name=SCHEMA,
        )
        backend = order.way if order.way == "pyarrow" else "sqlalchemy"
        source = sql_database(url, schema=SCHEMA, table_names=list(TABLES), backend=backend)
        for table in TABLES:
            source.resources[table].apply_hints(
                primary_key="id", write_disposition="merge", incremental=dlt.sources.incremental("updated")
            )
        pipeline.run(source)

    def files(folder: Path) -> Files:
        return from_duckdb(folder / "lake.duckdb")

    return timed(copy, files)
