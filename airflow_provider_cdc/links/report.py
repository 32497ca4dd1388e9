"""The link from a task to the run's report."""

from __future__ import annotations

from typing import Any

from airflow.configuration import conf
from airflow.providers.common.compat.sdk import BaseOperatorLink


class ReportLink(BaseOperatorLink):
    """Link to the report of a run. The report is in the lake, so the reader needs access to the lake.

    Airflow's UI shows only links that a browser can follow over the web. If the lake is readable over the web, map its
    folders to URLs in Airflow's setting ``report_urls``, section ``cdc``:
    ``s3://lake/raw=https://files.example.com/raw``. Separate several mappings by blanks or commas. Without a mapping,
    find the URI of the report in the log of the task.
    """

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        uri = str(getattr(operator, "report_uri", ""))
        for pair in conf.get("cdc", "report_urls", fallback="").replace(",", " ").split():
            folder, _, url = pair.partition("=")
            if uri.startswith(f"{folder.rstrip('/')}/"):
                return f"{url.rstrip('/')}{uri[len(folder.rstrip('/')) :]}"
        return uri
