"""Rewind or roll forward the rows that the window touched, and publish all tables of a run.

``spark-submit consolidate.py --run-uri URI``, with the source's settings in the environment variable ``CDC_SOURCE``.
"""

from __future__ import annotations

from airflow_provider_cdc.core.run.results import CONSOLIDATE
from airflow_provider_cdc.jobs.consolidate.step import consolidate
from airflow_provider_cdc.jobs.runtime.app import main

if __name__ == "__main__":
    main(CONSOLIDATE, consolidate)
