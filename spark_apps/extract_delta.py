"""Read the net change of a run's window from the log.

``spark-submit extract_delta.py --run-uri URI``, with the source's settings in the environment variable ``CDC_SOURCE``.
"""

from __future__ import annotations

from airflow_provider_cdc.core.run.results import EXTRACT_DELTA
from airflow_provider_cdc.jobs.extract_delta.step import extract_delta
from airflow_provider_cdc.jobs.runtime.app import main

if __name__ == "__main__":
    main(EXTRACT_DELTA, extract_delta)
