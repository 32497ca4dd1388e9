"""Copies of MySQL and PostgreSQL tables, every night, exact as of the end of the run's interval (PostgreSQL: with a
`standing_slot`; else as of the run).

What is copied stands in a YAML file: that of Airflow's setting `nightly` in the section `cdc`
(`AIRFLOW__CDC__NIGHTLY`), or `nightly.yaml` beside this file. Without one there is no such DAG. A mistake in it is an
import error of this file that names the line and the key.

One run at a time. Airflow's Backfill over past intervals rebuilds each past day, as far back as the source's log
reaches. A task that fails for good is told with its hint, the position and the run's folder.
"""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

from airflow.configuration import conf
from airflow.sdk import DAG

from airflow_provider_cdc.nightly import read_nightly
from airflow_provider_cdc.notifications.failure import FailureNotifier
from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

named = conf.get("cdc", "nightly", fallback="")
file = Path(named) if named else Path(__file__).with_name("nightly.yaml")

if named or file.exists():
    nightly = read_nightly(file)
    deadlines = {}
    if nightly.deadline_minutes is not None:
        from airflow_provider_cdc.notifications.deadline import deadline

        deadlines["deadline"] = deadline(nightly.deadline_minutes)
    with DAG(
        "nightly",
        description="Tables in the lake, as they were at the end of each day",
        doc_md=__doc__,
        schedule=nightly.schedule,
        start_date=nightly.start_date.replace(tzinfo=ZoneInfo(nightly.timezone)),
        catchup=False,
        max_active_runs=1,
        default_args={"on_failure_callback": FailureNotifier()},
        tags=["cdc"],
        **deadlines,
    ):
        for source in nightly.sources:
            SnapshotTaskGroup(group_id=source.name, prefix_group_id=True, **source.options)
