"""Renders a report and writes it into the run's folder, as HTML and as Markdown.

The HTML is one self-contained page. It loads no external resources, and escapes all names.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.report.chart import chart_of
from airflow_provider_cdc.report.facts import DagRunName, Failed, Report, report_of, report_of_failure

if TYPE_CHECKING:
    from jinja2 import Environment

HTML, MARKDOWN = "report.html", "report.md"
CERTIFICATES = "certificate.md"
_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+!|~&-])")


def write_report(run: Run, dag_run: DagRunName) -> str:
    """Write the report of a published run, and the summary of its certificates, into the run's folder. Return the URI
    of the report.

    :raises CdcError: the run is not published, or the report could not be written to the store.
    """
    report = report_of(run, dag_run)
    if run.committed:
        # Import PyArrow late, because DAG files are parsed continually.
        from airflow_provider_cdc.report.certificates import certificate_page, certificate_section

        run.folder.write_text(CERTIFICATES, to_markdown(certificate_page(run)))
        report = replace(report, sections=(*report.sections, certificate_section(run)))
    return write_pages(run.folder, report)


def write_failure(run: Run, dag_run: DagRunName, failed: Failed) -> str:
    """Write the report of a run with a failed step, and return the URI of the page. A later report replaces it.

    :raises CdcError: the report could not be written to the store.
    """
    return write_pages(run.folder, report_of_failure(run, dag_run, failed))


def write_pages(folder: Storage, report: Report) -> str:
    """Write a report into a folder, as HTML and as Markdown. Return the URI of the HTML page."""
    folder.write_text(HTML, to_html(report))
    folder.write_text(MARKDOWN, to_markdown(report))
    return folder.uri_of(HTML)


def to_html(report: Report) -> str:
    """Render the page as HTML, for browsers of any width."""
    return _templates().get_template("report.html.jinja").render(report=report, chart_of=chart_of)


def to_markdown(report: Report) -> str:
    """Render the page as Markdown."""
    return _templates().get_template("report.md.jinja").render(report=report)


@cache
def _templates() -> Environment:
    # Jinja2 is imported only here, because only the last step of a run writes a report.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("airflow_provider_cdc", "report"),
        # HTML and SVG templates are escaped automatically. Markdown has its own filter.
        autoescape=lambda name: name is not None and not name.endswith(".md.jinja"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    templates.filters["plain"] = _plain
    return templates


def _plain(text: str) -> str:
    """Escape ``text`` for one cell of a Markdown table."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
