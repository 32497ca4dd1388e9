"""This package: a whole run in a running Spark session. Only the snapshot step counts; the other steps are also
reported."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_cdc.core.options.run import LimitOptions
from airflow_provider_cdc.jobs.runtime.driver import driver_jvm
from harness.bench.contender import Address, Order, Work
from harness.bench.spark import open_spark
from harness.pipeline import Pipeline


def prepare(address: Address) -> Work:
    # Use the same JVM options as the operators.
    os.environ.update(driver_jvm())
    # The parent process removes this folder after the end of this process.
    spark = open_spark(tempfile.mkdtemp(prefix="cdc-bench-spark-"))

    def copy(order: Order) -> dict[str, Any]:
        Path(order.target).mkdir(exist_ok=order.night > 0)
        pipeline = Pipeline(
            spark,
            address.settings,
            order.target,
            order.table.split(","),
            run_id=f"202601{order.night + 1:02}T000000Z-00000000",
            consistency=order.consistency,
            as_of=order.as_of,
            standing_slot=order.standing_slot,
            refresh="changes" if order.night else "full",
            format=order.format,
            limits=LimitOptions(**order.limits or {}),
        )
        with address.cursor() as cursor:
            for statement in order.before:
                cursor.execute(statement)
        steps = {step.__name__: _seconds(step) for step in (pipeline.preflight, pipeline.lock_and_record)}
        with address.cursor() as cursor:
            for statement in order.meanwhile:
                cursor.execute(statement)
        sessions = address.sessions()
        steps["snapshot"] = _seconds(pipeline.snapshot)
        sessions = address.sessions() - sessions - 1
        for step in (pipeline.extract_delta, pipeline.consolidate):
            steps[step.__name__] = _seconds(step)
        found = pipeline.found
        return {
            # On PostgreSQL, rows that move while the table is read are put back by the rewind.
            "rows": sum(found["consolidate"]["rows"].values()),
            "seconds": steps["snapshot"],
            "steps": steps,
            "sessions": sessions,
            "lock_seconds": found["snapshot"]["lock_seconds"],
            "view_seconds": found["snapshot"]["view_seconds"],
            "keys_in_view": found["snapshot"]["keys_again"],
            "rewound": sum(found["consolidate"]["rewound"].values()),
            "files_rewritten": found["consolidate"]["files_rewritten"],
            "files_adopted": found["consolidate"]["files_adopted"],
        }

    return copy


def _seconds(step: Callable[[], Any]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
