"""Where a run's report lies."""

from __future__ import annotations

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.report.facts import Failed, Report, report_of, report_of_failure
from airflow_provider_cdc.report.page import to_html, to_markdown

HTML, MARKDOWN = "report.html", "report.md"


def write_report(run: Run) -> str:
    """Write the report of a published run into its folder, and return the URI of the page.

    :raises CdcError: it is not published, or the store did not take it.
    """
    return _write(run, report_of(run))


def write_failure(run: Run, failed: Failed) -> str:
    """Write the report of a run one of whose steps failed, and return the URI of the page. A later one replaces it.

    :raises CdcError: the store did not take it.
    """
    return _write(run, report_of_failure(run, failed))


def _write(run: Run, report: Report) -> str:
    run.folder.write_text(HTML, to_html(report))
    run.folder.write_text(MARKDOWN, to_markdown(report))
    return run.folder.uri_of(HTML)
