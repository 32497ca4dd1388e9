"""For tests: a DAG as an author would write it, with copies of several sources and a task that uses all of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

with DAG(
    "every_shop",
    schedule=None,
    start_date=datetime(2025, 1, 1),
    params={"tables": ["shop.*"], "target": "file:///nowhere", "plan_only": False},
):

    @task
    def sources() -> list[str]:
        return ["shop_eu", "shop_us"]

    @task
    def refresh(published: list[dict[str, Any]]) -> list[str]:
        return sorted(uri for one in published for uri in one.values())

    shops = SnapshotTaskGroup.partial(
        tables="{{ params.tables }}",
        target="{{ params.target }}/{source}",
        plan_only="{{ params.plan_only }}",
    ).expand(source_conn_id=sources())
    refresh(shops.published)
