"""Read the net change of a run's window from the log.

``spark-submit extract_delta.py --run-uri URI``, with the source's settings in the environment variable ``CDC_SOURCE``.
"""

from __future__ import annotations

from airflow_provider_cdc.core.results import EXTRACT_DELTA
from airflow_provider_cdc.jobs.app import main
from airflow_provider_cdc.jobs.extract_delta import extract_delta

if __name__ == "__main__":
    main(EXTRACT_DELTA, extract_delta)
