"""Renders a report and writes it into the run's folder, as HTML and as Markdown.

The HTML is one self-contained page. It loads no external resources, and escapes all names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.timeline import Bar
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.report.facts import DagRunName, Failed, Report, report_of, report_of_failure

if TYPE_CHECKING:
    from jinja2 import Environment


# Computes the timeline of a run. The timeline has a lane for each worker, and a bar for each part that the worker
# read.
#
# The template ``timeline.svg.jinja`` draws the timeline.


LANES = 40
"""The maximum number of lanes. With more lanes, the chart would be unreadable."""
_WIDTH, _LANE, _GAP, _AXIS = 1000, 16, 4, 24
_FINEST = 1 / 2000
"""A bar that is shorter than this fraction of the whole timeline is drawn together with its neighbour."""
_HUES = range(40, 330, 26)
"""Hues in degrees on the colour wheel. Red is left out, because it would look like a failure."""
_LEGEND = 12
"""The number of tables that the legend names. With more tables, colours repeat."""


@dataclass(frozen=True)
class DrawnBar:
    """A bar, in pixels. ``text`` is the tooltip of the bar."""

    x: float
    width: float
    hue: int
    text: str


@dataclass(frozen=True)
class Lane:
    """The bars of one worker. ``top`` is the distance of the lane from the upper edge, in pixels."""

    name: str
    top: int
    bars: tuple[DrawnBar, ...]


@dataclass(frozen=True)
class Tick:
    """A label of the time axis."""

    x: float
    anchor: str
    text: str


@dataclass(frozen=True)
class LegendEntry:
    """A table and its colour."""

    table: str
    hue: int


@dataclass(frozen=True)
class Chart:
    """The picture, in pixels."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    legend: tuple[LegendEntry, ...]
    height: int
    width: int = _WIDTH
    lane_height: int = _LANE


def chart_of(bars: Sequence[Bar]) -> Chart:
    """Return the chart that shows ``bars``.

    :param bars: at least one bar.
    """
    begin = min(bar.began for bar in bars)
    seconds = max(max(bar.began + bar.seconds for bar in bars) - begin, 0.001)
    workers = sorted({bar.lane for bar in bars})[:LANES]
    tables = dict.fromkeys(bar.table for bar in bars)
    hues = {table: _HUES[number % len(_HUES)] for number, table in enumerate(tables)}
    lanes = []
    for row, worker in enumerate(workers):
        merged = _merged([bar for bar in bars if bar.lane == worker], seconds * _FINEST)
        drawn = tuple(
            DrawnBar(
                _WIDTH * (bar.began - begin) / seconds,
                max(1.0, _WIDTH * bar.seconds / seconds),
                hues[bar.table],
                _tooltip(bar, parts, worker),
            )
            for bar, parts in merged
        )
        lanes.append(Lane(worker, row * (_LANE + _GAP), drawn))
    legend = tuple(LegendEntry(table, hue) for table, hue in list(hues.items())[:_LEGEND])
    return Chart(tuple(lanes), tuple(_ticks(seconds)), legend, len(workers) * (_LANE + _GAP) + _AXIS)


def _ticks(seconds: float) -> Iterable[Tick]:
    for number, anchor in enumerate(("start", "middle", "middle", "middle", "end")):
        yield Tick(_WIDTH * number / 4, anchor, f"{seconds * number / 4:,.1f} s")


def _merged(bars: Sequence[Bar], gap: float) -> list[tuple[Bar, int]]:
    """Merge short neighbouring bars of one table. Return each resulting bar with the number of parts that it
    represents."""
    merged: list[tuple[Bar, int]] = []
    for bar in sorted(bars, key=lambda bar: bar.began):
        if merged:
            last, parts = merged[-1]
            end = last.began + last.seconds
            if last.table == bar.table and bar.began - end < gap and bar.seconds < gap:
                seconds = max(end, bar.began + bar.seconds) - last.began
                both = Bar(
                    bar.table, last.part, bar.lane, last.began, seconds, last.rows + bar.rows, last.bytes + bar.bytes
                )
                merged[-1] = both, parts + 1
                continue
        merged.append((bar, 1))
    return merged


def _tooltip(bar: Bar, parts: int, worker: str) -> str:
    what = f"part {bar.part}" if parts == 1 else f"{format_count(parts, 'part')} from part {bar.part} on"
    rows, size = format_count(bar.rows, "row"), f"{bar.bytes / 2**20:,.1f} MiB"
    return f"{bar.table}, {what}: {bar.seconds:,.1f} s, {rows}, {size}, by {worker}"


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


def write_failure(run: Run, dag_run: DagRunName, step: str, error: Exception) -> str:
    """Write the report of a run whose ``step`` has failed, and return the URI of the page. A later report replaces it.

    :raises CdcError: the report could not be written to the store.
    """
    return write_pages(run.folder, report_of_failure(run, dag_run, Failed(step, type(error).__name__, str(error))))


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
