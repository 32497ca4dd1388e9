"""Copies MySQL and PostgreSQL tables every night, exact as of the end of the run's interval (on PostgreSQL with a
`standing_slot`; without one, as of the run).

A YAML file lists the tables: the file that Airflow's setting `nightly` in the section `cdc` names
(`AIRFLOW__CDC__NIGHTLY`), or `nightly.yaml` in the folder of this file. Without such a file, there is no DAG. A mistake
in it is an import error of this file, which names the line and the key.

Only one run is active at a time. Airflow's Backfill over past intervals rebuilds each past day, as far back as the
source's log reaches. If a task fails for good, its error is logged with the hint, the position and the run's folder.
"""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

from airflow.configuration import conf
from airflow.sdk import DAG

from airflow_provider_cdc import Allow, SnapshotTaskGroup
from airflow_provider_cdc.nightly import read_nightly
from airflow_provider_cdc.notifications.failure import FailureNotifier

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
        description="Copies tables into the lake, as of the end of each day",
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
            SnapshotTaskGroup.of_options(source.options, Allow(), group_id=source.name, prefix_group_id=True)
