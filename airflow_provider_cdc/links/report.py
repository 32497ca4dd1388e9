"""From the task that published a run to the run's report."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import BaseOperatorLink


class ReportLink(BaseOperatorLink):
    """The page that tells what the run did. It lies in the lake, so what opens it must be able to read there."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return str(getattr(operator, "report_uri", ""))
