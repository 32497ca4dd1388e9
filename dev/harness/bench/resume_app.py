"""The Spark app of `bench resume`: the snapshot step of one run after the other, in a process that can be killed."""

from __future__ import annotations

import json
import sys

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.snapshot import parts, step
from harness.bench.contender import Address
from harness.bench.spark import open_spark


def main() -> None:
    """Read orders from the standard input. For each of them, print a line before the step, and a line after it."""
    with open_spark(sys.argv[1]) as spark:
        spark.range(1).count()
        print("ready", flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            # The tables are small, but they have as many parts as the tables of a large database.
            parts.__dict__.update(SMALLEST_PART_BYTES=order["part_bytes"], FILE_BYTES=order["part_bytes"])
            print("reading", flush=True)
            found = step.snapshot(spark, Storage(order["run"]), Address(**order["address"]).settings)
            print("done", found.rows, flush=True)


if __name__ == "__main__":
    main()
