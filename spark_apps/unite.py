"""Publish merged tables whose shards are in several sources.

``spark-submit unite.py --run-uri URI``. The folder at the URI has the request.
"""

from __future__ import annotations

from airflow_provider_cdc.jobs.runtime.app import main
from airflow_provider_cdc.jobs.shards.unite import unite

if __name__ == "__main__":
    main("unite", unite)
