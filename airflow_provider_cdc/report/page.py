"""Renders a report and writes it into the run's folder, as HTML and as Markdown.

The HTML is one self-contained page. It loads no external resources, and escapes all names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.certificate.certificate import Certificate, certificate_of_copy
from airflow_provider_cdc.core.certificate.totals import NAME, Derivation
from airflow_provider_cdc.core.run.commit_record import Decision, decision_of
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.timeline import Bar
from airflow_provider_cdc.core.shards.union import published_copies
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.report.facts import DagRunName, Failed, Report, Section, report_of, report_of_failure

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


# The summary of a run's certificates, as Markdown, and the section about them in the report.


UNKNOWN = "not known"
_FILES = 100
"""The most files of a table that the summary lists. The certificate has all of them."""


def certificates_of(run: Run) -> list[Certificate]:
    """Return the certificates of the copies that a run published.

    :raises ManifestError: the record of the copies is damaged.
    """
    decision: Decision = decision_of(run)
    return [certificate_of_copy(run, decision, copy) for copy in published_copies(run.manifest, decision)]


def certificate_section(run: Run) -> Section:
    """Return the section of the report with the totals of all copies."""
    rows = tuple(
        (one.table, f"{one.rows:,}", one.digest or UNKNOWN, derived(one), f"{len(one.files):,}", f"{one.scrubbed:,}")
        for one in certificates_of(run)
    )
    header = ("table", "rows", "digest", "checked against", "files", "unchanged files read again")
    note = f"Digests of whole rows, by the definition {NAME}. The certificates of the copies have those of each file."
    return Section("Certificates", header, rows, note)


def derived(certificate: Certificate) -> str:
    """Say what the total of a copy was checked against."""
    if certificate.shards:
        return "; ".join(sorted({_derived(part.derivation) for part in certificate.shards}))
    return _derived(certificate.derivation)


def _derived(derivation: Derivation | None) -> str:
    if derivation is None:
        return "its files: the table was read"
    if derivation.impossible:
        return f"its files: {derivation.impossible}"
    return "the last copy and the log"


def certificate_page(run: Run) -> Report:
    """Return the summary of the certificates of a published run."""
    certificates = certificates_of(run)
    manifest = run.manifest
    about = (
        ("run", run.run_id),
        *((f"source: {name}", value) for name, value in manifest.source.items()),
        (manifest.position_key, run.position_text),
        ("position recorded at", manifest.created_at),
        *((("requested", manifest.options.as_of),) if manifest.options.as_of else ()),
        *((("published at", certificates[0].published_at),) if certificates else ()),
        *((f"version: {name}", value) for name, value in (certificates[0].versions.items() if certificates else ())),
        *((f"left out: {name}", why) for name, why in manifest.skipped.items()),
    )
    note = "All copies are exact at the position. A digest is a sum over whole rows, modulo 2^128."
    sections = [Section("The run", ("", ""), about, note), certificate_section(run)]
    for one in certificates:
        sections += [_made(one), _files(one)]
    return Report(
        f"Certificates of {format_count(len(certificates), 'copy', 'copies')}, run {run.run_id}", tuple(sections)
    )


def _made(one: Certificate) -> Section:
    made, derivation = one.made, one.derivation
    if one.shards:
        return _merged_certificate(one)
    rows = [
        ("rows", f"{one.rows:,}"),
        ("digest", one.digest or UNKNOWN),
        ("key", ", ".join(one.key) or "none"),
        ("made by", f"{made.mode} ({made.consistency}: {made.why})"),
        ("log", f"{made.direction}, {made.window_from} to {made.window_to}"),
        *((("rows where", one.where),) if one.where else ()),
        *((policy, str(value)) for policy, value in one.policies.items() if policy != "tables_left_out"),
    ]
    if derivation is not None and derivation.base and derivation.removed and derivation.added:
        for what, part in (("base", derivation.base), ("removed", derivation.removed), ("added", derivation.added)):
            rows.append((f"derivation: {what}", f"{format_count(part.rows, 'row')}, {part.digest}"))
    return Section(one.table, ("", ""), tuple(rows))


def _merged_certificate(one: Certificate) -> Section:
    rows = [
        ("rows", f"{one.rows:,}"),
        ("digest", one.digest or UNKNOWN),
        ("key", ", ".join(one.key)),
        ("made by", one.made.why),
        *((("rows where", one.where),) if one.where else ()),
    ]
    for part in one.shards:
        made = f"{part.made.mode} ({part.made.consistency}: {part.made.why})"
        log = f"{part.made.direction}, {part.made.window_from} to {part.made.window_to}"
        rows.append(
            (f"shard {part.shard}", f"{format_count(part.rows, 'row')}, {part.digest or UNKNOWN}; {made}; {log}")
        )
        rows += [(f"shard {part.shard}: {policy}", str(value)) for policy, value in part.policies.items()]
    return Section(one.table, ("", ""), tuple(rows))


def _files(one: Certificate) -> Section:
    rows = tuple(
        (
            file.name,
            f"{file.rows - file.deleted_rows:,}",
            " to ".join(file.keys),
            file.digest or UNKNOWN,
            file.checksum,
            file.whole_at if file.kept else "written by this run",
        )
        for file in one.files[:_FILES]
    )
    more = len(one.files) - _FILES
    note = f"{format_count(more, 'more file')}: see the certificate." if more > 0 else ""
    header = ("file", "rows", one.key[0] if one.key else "key", "digest", "CRC-32", "last known to be whole")
    return Section(f"Files of {one.table}", header, rows, note)
