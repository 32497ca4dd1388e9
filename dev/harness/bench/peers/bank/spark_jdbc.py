"""Spark's JDBC reader, to Parquet. By default, one query reads a table. With ``partitioned``, eight queries do."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.bench.bank import TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import parquet_files, timed
from harness.bench.peers.spark_jdbc import DRIVERS, PARTITIONS, driver_jar
from harness.bench.spark import open_spark


def prepare(address: Address) -> Work:
    # The parent process removes this folder after the end of this process.
    scratch = tempfile.mkdtemp(prefix="cdc-bench-spark-")
    spark = open_spark(scratch, spark_jars=str(driver_jar(address.kind)))
    _, driver, options = DRIVERS[address.kind]
    url = f"jdbc:{address.url.replace(f'{address.user}@', '')}?{options}"

    def copy(order: Order, folder: Path) -> None:
        for table in TABLES:
            name = order.table.replace("*", table)
            reader = spark.read.format("jdbc").option("url", url).option("driver", driver).option("dbtable", name)
            reader = reader.option("user", address.user).option("password", "")
            if order.way == "partitioned":
                with address.cursor() as cursor:
                    cursor.execute(f"SELECT MIN(id), MAX(id) FROM {name}")
                    first, last = cursor.fetchall()[0]
                reader = reader.option("partitionColumn", "id").option("lowerBound", str(first))
                reader = reader.option("upperBound", str(last + 1)).option("numPartitions", str(PARTITIONS))
            reader.load().write.parquet(str(folder / table))

    return timed(copy, parquet_files)
