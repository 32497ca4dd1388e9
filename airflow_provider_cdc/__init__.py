"""Copies of MySQL and PostgreSQL tables, exact at one committed point, with Airflow and Spark.

DAGs import the task groups and the objects of their arguments from here::

    from airflow_provider_cdc import Lake, SnapshotTaskGroup, Table
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_cdc.core.options.copied import Iceberg, Lake, Merge, Retention, Table
    from airflow_provider_cdc.core.options.running import Allow, Limits, On, Read, Refresh, Spark
    from airflow_provider_cdc.task_groups.merged import MergedSnapshotTaskGroup
    from airflow_provider_cdc.task_groups.snapshot import SnapshotTaskGroup

__version__ = "0.2.0"

__all__ = [
    "Allow",
    "Iceberg",
    "Lake",
    "Limits",
    "Merge",
    "MergedSnapshotTaskGroup",
    "On",
    "Read",
    "Refresh",
    "Retention",
    "SnapshotTaskGroup",
    "Spark",
    "Table",
]

_MODULES = {
    "core.options.copied": ("Iceberg", "Lake", "Merge", "Retention", "Table"),
    "core.options.running": ("Allow", "Limits", "On", "Read", "Refresh", "Spark"),
    "task_groups.merged": ("MergedSnapshotTaskGroup",),
    "task_groups.snapshot": ("SnapshotTaskGroup",),
}


def __getattr__(name: str) -> Any:
    # Import on first use, because Spark's executors import the package where Airflow is not installed.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
