"""For a test: a DAG that copies each interval as of its end, whenever the run is made. An environment variable sets the
time at which the intervals begin.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Refresh, SnapshotTaskGroup

BEGIN = datetime.fromisoformat(os.environ["TEST_BEGIN"])
INTERVAL = timedelta(seconds=10)

with DAG(
    "every_ten_seconds",
    schedule=INTERVAL,
    start_date=BEGIN,
    # The end date is past, so the scheduler creates no runs itself.
    end_date=BEGIN + 5 * INTERVAL,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
):
    SnapshotTaskGroup(
        source_conn_id=os.environ["TEST_CONNECTION"],
        tables=[os.environ["TEST_SCHEMA"] + ".*"],
        target=os.environ["TEST_TARGET"],
        as_of="{{ data_interval_end }}",
        refresh=Refresh(standing_slot=os.environ["TEST_STANDING_SLOT"]),
    )
