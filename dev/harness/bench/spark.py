"""The Spark session of the Spark contenders: local, with both cores, the same for all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.environment import spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2


def open_spark(scratch: str, **conf: str) -> SparkSession:
    """Open a session with the settings ``conf`` (with underscores instead of dots)."""
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("airflow-provider-cdc bench")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", scratch)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .config("spark.ui.enabled", "false")
    )
    for name, value in conf.items():
        builder = builder.config(name.replace("_", "."), value)
    session: SparkSession = builder.getOrCreate()
    return session
