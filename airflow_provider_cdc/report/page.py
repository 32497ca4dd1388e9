"""Renders a report as one self-contained page: it loads nothing from elsewhere, and treats no name as markup."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from airflow_provider_cdc.report.chart import chart_of
from airflow_provider_cdc.report.facts import Report

if TYPE_CHECKING:
    from jinja2 import Environment

_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+!|~&-])")


def to_html(report: Report) -> str:
    """Render the page as HTML, for browsers of any width."""
    return _templates().get_template("report.html.jinja").render(report=report, chart_of=chart_of)


def to_markdown(report: Report) -> str:
    """Render the page as Markdown."""
    return _templates().get_template("report.md.jinja").render(report=report)


@cache
def _templates() -> Environment:
    # Imported late: only the last step of a run writes a report.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("airflow_provider_cdc", "report"),
        # By the name of the template: HTML and SVG are escaped, Markdown has a filter of its own.
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
