"""Read every chunk of every table of a run.

``spark-submit snapshot.py --run-uri URI``, with the source's settings in the environment variable ``CDC_SOURCE``.
"""

from __future__ import annotations

from airflow_provider_cdc.core.run.results import SNAPSHOT
from airflow_provider_cdc.jobs.runtime.app import main
from airflow_provider_cdc.jobs.snapshot.step import snapshot

if __name__ == "__main__":
    main(SNAPSHOT, snapshot)
