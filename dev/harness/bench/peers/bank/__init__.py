"""The contenders of `bench truth`: each copies all tables of the bank (`harness.bench.bank`), in the way `Order.way`.

A contender returns ``files``: the Parquet files of each table. What it writes otherwise is converted after the measured
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Order, Work

Files = Mapping[str, list[str]]


def timed(copy: Callable[[Order, Path], Any], files: Callable[[Path], Files]) -> Work:
    """Return the work of a contender. Only ``copy`` is measured; ``files`` finds or makes the files of each table."""

    def work(order: Order) -> dict[str, Any]:
        folder = Path(order.target)
        folder.mkdir(exist_ok=order.night > 0)
        started = time.perf_counter()
        copy(order, folder)
        seconds = time.perf_counter() - started
        return {"rows": order.rows, "seconds": seconds, "files": files(folder)}

    return work


def parquet_files(folder: Path) -> Files:
    """Return the files of tables that are folders or files with their names."""
    return {
        table: [str(file) for file in [*folder.glob(f"{table}/**/*.parquet"), *folder.glob(f"{table}.parquet")]]
        for table in TABLES
    }


def from_duckdb(database: Path, schema: str = SCHEMA) -> Files:
    """Write the tables of a DuckDB database to Parquet files."""
    found = {}
    with duckdb.connect(str(database), read_only=True) as connection:
        for table, columns in TABLES.items():
            file = database.with_name(f"{table}.parquet")
            connection.execute(f"COPY (SELECT {', '.join(columns)} FROM {schema}.{table}) TO '{file}' (FORMAT parquet)")
            found[table] = [str(file)]
    return found


def write_rows(folder: Path, rows: Mapping[str, Iterable[tuple[Any, ...]]]) -> Files:
    """Write rows to one Parquet file for each table."""
    found = {}
    for table, columns in TABLES.items():
        values = list(zip(*rows[table], strict=True)) or [()] * len(columns)
        file = folder / f"{table}.parquet"
        pq.write_table(pa.table(dict(zip(columns, map(list, values), strict=True))), file)
        found[table] = [str(file)]
    return found
