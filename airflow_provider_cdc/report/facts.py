"""The contents of the report on a published or failed run, in sections of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from airflow_provider_cdc.core.control import acts as events
from airflow_provider_cdc.core.control.acts import Acts
from airflow_provider_cdc.core.copies.removal import Removed, read_removed
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.manifest import Restart
from airflow_provider_cdc.core.run.results import RESULTS, ConsolidateResult, DeltaResult, SnapshotResult, StepResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.timeline import Bar, read_timeline
from airflow_provider_cdc.core.shards.copy_tables import copies_of
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.counted import duration, format_count
from airflow_provider_cdc.errors import CdcError, ConfigurationError

# Code snippets that read a copy with common libraries. The snippets contain the real path of the copy.


@dataclass(frozen=True)
class Snippet:
    """Code that the reader can copy and paste. ``title`` names the language. A line break in a name does not add a line
    to ``code``."""

    title: str
    code: str


def snippets_of(table: Table, lake: str, copy: str) -> Iterator[Snippet]:
    """Yield snippets that read the latest copy of a table, and then snippets that read the given copy.

    :param lake: the URI of the target, which has the copies of all tables.
    :param copy: the URI of the folder of the given copy.
    """
    part = table.selection
    arguments = [repr(lake), repr(str(table.lake_name))]
    arguments += [f"where={part.condition!r}"] if part.condition else []
    arguments += [f"columns={list(part.columns)!r}"] if part.columns else []
    yield Snippet(
        "The latest copy, published by any run (Python, with this package)",
        "from airflow_provider_cdc.lake import open_dataset, read_latest\n\n"
        f"rows = open_dataset(read_latest({', '.join(arguments)})).to_table()",
    )
    uri = LakeUri.parse(copy)
    try:
        plain = uri.plain
    except ConfigurationError:
        # Show no more snippets, because their libraries would interpret this path as a pattern.
        return
    if not plain.isprintable():
        return
    local = uri.scheme in ("", "file")
    path = plain.removeprefix("file://") if local else plain
    # Without ``hive_partitioning = false``, DuckDB would parse the name of the copy's folder and add a column.
    quoted = path.replace("'", "''")
    yield Snippet(
        "This copy, with DuckDB (SQL)", f"SELECT * FROM read_parquet('{quoted}/*.parquet', hive_partitioning = false);"
    )
    yield Snippet("This copy, with Spark (Python)", f"rows = spark.read.parquet({plain!r})")
    # PyArrow decodes percent-encoded characters in a URI, but not in a path.
    place = path if local else copy
    yield Snippet("This copy, with pandas (Python)", f"import pandas\n\nrows = pandas.read_parquet({place!r})")
    yield Snippet(
        "This copy, with PyArrow (Python)",
        f"import pyarrow.dataset\n\nrows = pyarrow.dataset.dataset({place!r}, format='parquet').to_table()",
    )


Rows: TypeAlias = tuple[tuple[str, ...], ...]

SLOWEST = 10


@dataclass(frozen=True)
class Section:
    """A heading with a table.

    ``note`` is a sentence about the table. ``bars`` are drawn as a chart in the HTML report. ``snippets`` are shown
    after all other content.
    """

    title: str
    header: tuple[str, ...]
    rows: Rows
    note: str = ""
    bars: tuple[Bar, ...] = ()
    snippets: tuple[Snippet, ...] = ()


@dataclass(frozen=True)
class DagRunName:
    """The DAG run that a run belongs to, as Airflow names it."""

    dag_id: str
    run_id: str


@dataclass(frozen=True)
class Failed:
    """The reason why a step failed: the name of the error's class, and the error's text with the hint."""

    step: str
    error: str
    message: str


@dataclass(frozen=True)
class Report:
    """A page."""

    title: str
    sections: tuple[Section, ...]


def report_of(run: Run, dag_run: DagRunName) -> Report:
    """Return the report of a published run.

    :raises ManifestError: the run is not published.
    """
    read, delta, done = run.result_of(SnapshotResult), run.result_of(DeltaResult), run.result_of(ConsolidateResult)
    sections = [
        _run(run, dag_run, done),
        _tables(run, read, delta, done),
        *_reading(run, done),
        _steps(run.steps.values()),
        *_control(run),
        *_timeline(run),
    ]
    if done.skipped:
        why = tuple(sorted(done.skipped.items()))
        sections.append(
            Section("Left out", ("table", "reason"), why, "The folders of these tables keep the earlier copies.")
        )
    if done.feed_gaps:
        note = "No changes lead to these copies. Readers of changes load the copies, and go on from there."
        gaps = tuple((name, gap.described(done.position)) for name, gap in sorted(done.feed_gaps.items()))
        sections.append(Section("Changes that begin anew", ("table", "where and why"), gaps, note))
    if run.manifest.options.keep:
        sections.append(_removed(read_removed(run.folder), run.manifest.options))
    if nulls := _nulls(read, done):
        note = "Values that no Arrow type can hold. They became null because `On.unrepresentable` is `null`."
        sections.append(Section("Null instead of a value", ("table", "column", "values"), nulls, note))
    return Report(f"Copy of {format_count(len(done.published), 'table')}, run {run.run_id}", tuple(sections))


def report_of_failure(run: Run, dag_run: DagRunName, failed: Failed) -> Report:
    """Return the report of a run with a failed step. The report shows the error and the completed steps."""
    message, _, hint = failed.message.partition("\n  Hint: ")
    why = (("step", failed.step), ("error", failed.error), ("what", message), *((("hint", hint),) if hint else ()))
    note = (
        "Nothing of this run is published, and the last copies are unchanged. The rows that it read are kept for a "
        "retry."
    )
    tables = tuple(
        (str(entry.table.name), f"{entry.table.rows:,}", f"{entry.consistency}: {entry.reason}")
        for entry in run.manifest.tables
    )
    sections = [
        Section("What went wrong", ("", ""), why, "" if run.committed else note),
        _run(run, dag_run, None),
        Section("Tables", ("table", "rows (about)", "how it is read"), tables),
        *([_steps(run.steps.values())] if run.steps else []),
        *_control(run),
        *_timeline(run),
    ]
    return Report(f"{failed.step} failed, run {run.run_id}", tuple(sections))


def _run(run: Run, dag_run: DagRunName, done: ConsolidateResult | None) -> Section:
    manifest = run.manifest
    began = datetime.fromisoformat(manifest.created_at)
    ended = datetime.fromisoformat(done.published_at) if done else datetime.now(UTC)
    took = duration(max(0.0, (ended - began).total_seconds()))
    rows = [
        ("DAG", dag_run.dag_id),
        ("DAG run", dag_run.run_id),
        ("took", f"{took}, from the recording of the position to the {'publication' if done else 'failure'}"),
        ("exact at", run.position_text) if done else (manifest.position_key, manifest.initial_position),
        ("asked for", manifest.missed_as_of or manifest.options.as_of or "the present of the run"),
        *((("NOT MET", f"the present was copied: {missed.why}"),) if (missed := manifest.missed_past) else ()),
        *((f"source: {name}", value) for name, value in manifest.source.items()),
        *([("log read from", server)] if (server := manifest.identity.log_server) else []),
        ("recorded at", manifest.created_at),
        *((("published at", done.published_at),) if done else ()),
        ("target", manifest.lake),
        (
            "begun",
            "once"
            if run.generation == 1
            else f"{format_count(run.generation, 'time')}: it could not go on from its earlier initial position",
        ),
        *((f"read again at {restart.at}", why) for restart in manifest.restarts for why in _restarted(restart)),
        *((f"not read again at {restart.at}", why) for restart in manifest.restarts for why in _carried(restart)),
    ]
    return Section("The run", ("", ""), tuple(rows))


def _restarted(restart: Restart) -> Iterator[str]:
    """Describe each table that was read again because it was altered during the run."""
    for name, why in restart.tables.items():
        yield f"{name}: {why}; the position until then was {restart.position}"


def _carried(restart: Restart) -> Iterator[str]:
    """Describe each table that was altered during the run, and whose rows are carried over the change."""
    for name, why in restart.carried.items():
        yield f"{name}: its rows are carried over the change: {why}; the position until then was {restart.position}"


def _tables(run: Run, read: SnapshotResult, delta: DeltaResult, done: ConsolidateResult) -> Section:
    rows = []
    for copy in copies_of(run.manifest.tables):
        name = str(copy.name)
        if name not in done.published:
            continue
        if copy.merged:
            merged = f"merged from {format_count(len(copy.tables), 'shard')}"
            counts = f"{done.rows[name]:,}", "", "", "", f"{done.rewound.get(name, 0):,}"
            rows.append((name, *counts, merged, done.published[name]))
        for entry in copy.tables:
            own = str(entry.table.name)
            table_result = read.tables.get(own)
            rows.append(
                (
                    f"└ {own}" if copy.merged else own,
                    f"{done.shards[name][own] if copy.merged else done.rows[name]:,}",
                    f"{table_result.bytes / 2**20:,.1f}" if table_result else "",
                    f"{table_result.chunks:,}" if table_result else "",
                    f"{delta.keys.get(own, 0):,}",
                    "" if copy.merged else f"{done.rewound.get(own, 0):,}",
                    f"{entry.consistency}: {entry.reason}",
                    "" if copy.merged else done.published[own],
                )
            )
    header = ("table", "rows", "MiB read", "chunks", "keys in the window", "keys put back", "how it was read", "copy")
    return Section("Tables", header, tuple(rows))


def _reading(run: Run, done: ConsolidateResult) -> Iterator[Section]:
    """Yield a section that shows how to read the published copies."""
    table = next((entry.table for entry in run.manifest.tables if str(entry.table.lake_name) in done.published), None)
    if table is None:
        return
    name = str(table.lake_name)
    others = ", and the files of the other tables never change either" if len(done.published) > 1 else ""
    yield Section(
        f"Reading {name}",
        (),
        (),
        f"The files of a copy never change{others}. The folder of this copy is {done.published[name]}.",
        snippets=tuple(snippets_of(table, run.manifest.lake, done.published[name])),
    )


def _steps(found: Iterable[StepResult]) -> Section:
    rows = tuple((_name(step_result), f"{step_result.seconds:,.1f}", _did(step_result)) for step_result in found)
    return Section("Steps", ("step", "seconds", "what it did"), rows, "The time to start Spark is not included.")


def _removed(removed: Removed, options: StepOptions) -> Section:
    rows = [(name, uri, "removed") for name, uris in removed.copies.items() for uri in uris]
    rows += [("", f"run {run_id}", "its folder was removed") for run_id in removed.runs]
    rows += [("", uri, f"kept: {why}") for uri, why in sorted(removed.left.items())]
    many = f"the newest {options.keep:,} copies are kept" if options.keep > 1 else "the newest copy is kept"
    days = f", and all copies of the last {format_count(options.keep_days, 'day')}" if options.keep_days else ""
    note = f"For each table, {many}{days}."
    return Section("Older copies", ("table", "copy", "result"), tuple(rows), note)


def _name(found: StepResult) -> str:
    return next(name for name, kind in RESULTS.items() if isinstance(found, kind))


def _did(found: StepResult) -> str:
    if isinstance(found, SnapshotResult):
        size = sum(table_result.bytes for table_result in found.tables.values())
        rate = f", {found.rows / found.seconds:,.0f} rows/s" if found.seconds > 0 else ""
        lock = f"longest lock {found.lock_seconds * 1000:,.0f} ms"
        return f"{format_count(found.rows, 'row')}, {size / 2**20:,.1f} MiB{rate}; {lock}"
    if isinstance(found, DeltaResult):
        images = f"{format_count(found.row_images, 'row image')} in {format_count(found.segments, 'segment')}"
        return f"{format_count(found.transactions, 'transaction')}, {images}"
    return f"{format_count(found.files_rewritten, 'file')} rewritten, {found.files_adopted:,} kept as written"


def _control(run: Run) -> Iterator[Section]:
    """Yield a section with the acts of operators, and with what the run did because of them and of the governor."""
    log = events.read(run.folder)
    acts = []
    # The section is only for display, so a damaged record does not matter.
    with suppress(CdcError, OSError):
        acts = [(act.at, "", f"{act.verb} {act.limits}".strip(), f"by {act}") for act in Acts(run.folder).read()]
    happened = [(event.at, event.step, event.what, event.why) for event in log.events]
    if acts or happened:
        note = (
            f"The run was paused for {duration(log.paused_seconds)}. The governor slowed or paused it for "
            f"{duration(log.slowed_seconds)}."
        )
        # A stable sort keeps an act before what the run did in the same second.
        rows = tuple(sorted([*acts, *happened], key=lambda row: row[0]))
        yield Section("Control", ("at", "step", "what", "why"), rows, note)


def _timeline(run: Run) -> Iterator[Section]:
    """Yield the section that shows the timeline of the workers and the parts that took longest."""
    bars = read_timeline(run.folder)
    if not bars:
        return
    slowest = sorted(bars, key=lambda bar: -bar.seconds)[:SLOWEST]
    rows = tuple(
        (bar.table, f"{bar.part}", f"{bar.seconds:,.1f}", f"{bar.rows:,}", f"{bar.bytes / 2**20:,.1f}", bar.lane)
        for bar in slowest
    )
    lanes = len({bar.lane for bar in bars})
    note = (
        f"{format_count(len(bars), 'part')}, read by {format_count(lanes, 'worker')}. The table lists the slowest "
        "parts."
    )
    yield Section("Timeline", ("table", "part", "seconds", "rows", "MiB", "worker"), rows, note, tuple(bars))


def _nulls(read: SnapshotResult, done: ConsolidateResult) -> Rows:
    counts: dict[tuple[str, str], int] = {}
    for nulled in (read.nulled, done.nulled):
        for table, columns in nulled.items():
            for column, count in columns.items():
                counts[table, column] = counts.get((table, column), 0) + count
    return tuple((table, column, f"{count:,}") for (table, column), count in sorted(counts.items()))
