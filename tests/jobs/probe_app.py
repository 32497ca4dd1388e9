"""A Spark app that reports what its executors run: from where they load this package, and what else is loaded."""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow_provider_cdc.jobs.runtime.session import open_session
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks


def probe(number: int) -> dict[str, Any]:
    import pyarrow as pa

    import airflow_provider_cdc
    from airflow_provider_cdc.core.tables import row_bytes
    from airflow_provider_cdc.sources.mysql.decode import images, rows
    from airflow_provider_cdc.sources.mysql.log import segments as log

    kernel: Any = row_bytes._append_fixed
    row_bytes.encode(pa.record_batch({"k": [1, 2]}), ["k"])
    return {
        "package": list(airflow_provider_cdc.__path__),
        "init": airflow_provider_cdc.__file__,
        "modules": [module.__file__ for module in (row_bytes, rows, images, log)],
        "airflow": [name for name in sys.modules if name == "airflow" or name.startswith("airflow.")],
        "hits": sum(kernel.stats.cache_hits.values()),
        "misses": sum(kernel.stats.cache_misses.values()),
    }


if __name__ == "__main__":
    spark = open_session("probe")
    print(json.dumps(run_tasks(spark, "probe", [1], probe)[0]))
    spark.stop()
