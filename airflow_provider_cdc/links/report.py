"""From the task that published a run to the run's report."""

from __future__ import annotations

from typing import Any

from airflow.configuration import conf
from airflow.providers.common.compat.sdk import BaseOperatorLink


class ReportLink(BaseOperatorLink):
    """The page that tells what the run did. It lies in the lake, so what opens it must be able to read there.

    Airflow's UI shows only links that a browser can follow over the web. Where the lake can be read so, Airflow's
    setting ``report_urls`` in the section ``cdc`` says how: ``s3://lake/raw=https://files.example.com/raw``, several of
    them separated by blanks or commas. Others are in the log of the task.
    """

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        uri = str(getattr(operator, "report_uri", ""))
        for pair in conf.get("cdc", "report_urls", fallback="").replace(",", " ").split():
            folder, _, url = pair.partition("=")
            if uri.startswith(f"{folder.rstrip('/')}/"):
                return f"{url.rstrip('/')}{uri[len(folder.rstrip('/')) :]}"
        return uri
