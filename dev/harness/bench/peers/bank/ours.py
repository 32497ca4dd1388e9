"""This package: a whole run in a running Spark session."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.runtime.driver import driver_jvm
from harness.bench.bank import SCHEMA, TABLES
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.bank import Files, timed
from harness.bench.spark import open_spark
from harness.pipeline import Pipeline


def prepare(address: Address) -> Work:
    os.environ.update(driver_jvm())
    # The parent process removes this folder after the end of this process.
    spark = open_spark(tempfile.mkdtemp(prefix="cdc-bench-spark-"))

    def copy(order: Order, folder: Path) -> None:
        pipeline = Pipeline(
            spark,
            address.settings,
            str(folder),
            [order.table],
            run_id=f"202601{order.night + 1:02}T000000Z-00000000",
            refresh="changes" if order.night else "full",
            standing_slot="truth" if address.kind == "postgres" else "",
        )
        pipeline.record()
        pipeline.finish()

    return timed(copy, _files)


def _files(folder: Path) -> Files:
    lake = Storage(str(folder))
    found = {}
    for table in TABLES:
        copied = lake.at(lake.read_json(f"{SCHEMA}.{table}/_latest.json")["path"])
        found[table] = [copied.path(name) for name in copied.files()]
    return found
