"""A Spark app that does one small step. For tests of what spark-submit, the JVM and the executors do with a task's
surroundings."""

from __future__ import annotations

import sys
from typing import Any

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.runtime.app import main
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from tests.runs import snapshot_result


def write(order: tuple[str, str]) -> str:
    """Runs in an executor: write a file, and return the place from which the package was loaded."""
    import airflow_provider_cdc

    uri, name = order
    Storage(uri).write_json(f"{name}.json", {"name": name})
    return str(airflow_provider_cdc.__file__)


def step(spark: Any, run: Storage, settings: Any) -> Any:
    begun = Run.load(run)
    orders = [(begun.manifest.lake, str(table.table.name)) for table in begun.manifest.tables]
    (place,) = run_tasks(spark, "probe", orders, write)
    run.write_json("probe.json", {"package": place, "user": spark.sparkContext.sparkUser(), "argv": sys.argv})
    result = snapshot_result(rows=3)
    begun.finish_step("snapshot", result)
    return result


if __name__ == "__main__":
    main("snapshot", step)
