"""Verify copies.

``spark-submit verify.py --run-uri URI``, with the source's settings in the environment variable ``CDC_SOURCE``. The
folder at the URI has the request.
"""

from __future__ import annotations

from airflow_provider_cdc.jobs.runtime.app import main
from airflow_provider_cdc.jobs.verify.step import verify

if __name__ == "__main__":
    main("verify", verify)
