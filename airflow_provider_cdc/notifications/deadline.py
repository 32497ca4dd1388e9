"""An Airflow deadline that reports runs that take too long."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

try:
    from airflow.sdk import AsyncCallback
except ImportError:
    # Airflow 3.1
    from airflow.sdk.definitions.deadline import AsyncCallback

_log = logging.getLogger(__name__)


def deadline(minutes: int) -> DeadlineAlert:
    """Return the value for a DAG's argument ``deadline``.

    Airflow calls `tell_late` if a DAG run has not ended ``minutes`` minutes after it was queued. The DAG run continues.
    """
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(minutes=minutes),
        callback=AsyncCallback(tell_late, {"minutes": minutes}),
    )


async def tell_late(*, minutes: int, context: Mapping[str, Any] | None = None, **more: Any) -> None:
    """Write to the triggerer's log that a run is late."""
    run = (context or {}).get("dag_run") or {}
    _log.error(
        "%s: the run %s is not done %d minutes after it was queued, and continues. The log of its running task shows "
        "the progress.",
        run.get("dag_id", "a DAG"),
        run.get("dag_run_id") or run.get("run_id", "unknown"),
        minutes,
    )
