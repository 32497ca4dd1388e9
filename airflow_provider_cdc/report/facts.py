"""What there is to tell of a run that was published, in sections of plain text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from airflow_provider_cdc.core.removed import Removed, read_removed
from airflow_provider_cdc.core.results import ConsolidateResult, DeltaResult, SnapshotResult
from airflow_provider_cdc.core.run import Run

Rows: TypeAlias = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A heading and a table beneath it; ``note`` says what is not in the table."""

    title: str
    header: tuple[str, ...]
    rows: Rows
    note: str = ""


@dataclass(frozen=True)
class Report:
    """A page."""

    title: str
    sections: tuple[Section, ...]


def report_of(run: Run) -> Report:
    """The report of a run.

    :raises ManifestError: it is not published.
    """
    read, delta, done = run.found(SnapshotResult), run.found(DeltaResult), run.found(ConsolidateResult)
    sections = [_run(run, done), _tables(run, read, delta, done), _steps(read, delta, done)]
    if done.skipped:
        why = tuple(sorted(done.skipped.items()))
        sections.append(Section("Left out", ("table", "why"), why, "Their folders keep the copies that they had."))
    if run.manifest.options.keep:
        sections.append(_removed(read_removed(run.folder), run.manifest.options.keep))
    if nulls := _nulls(read, done):
        note = "Values that no Arrow type holds, which became null because `unrepresentable` is `null`."
        sections.append(Section("Null instead of a value", ("table", "column", "values"), nulls, note))
    return Report(f"Copy of {len(done.published):,} tables, run {run.run_id}", tuple(sections))


def _run(run: Run, done: ConsolidateResult) -> Section:
    manifest = run.manifest
    rows = [
        ("exact at", run.position),
        ("asked for", manifest.options.as_of or "the present of the run"),
        *((f"source: {name}", value) for name, value in manifest.source.items()),
        ("recorded at", manifest.created_at),
        ("published at", done.published_at),
        ("target", manifest.lake),
        (
            "begun",
            "once" if run.generation == 1 else f"{run.generation} times: the source lost what an earlier one had",
        ),
    ]
    return Section("The run", ("", ""), tuple(rows))


def _tables(run: Run, read: SnapshotResult, delta: DeltaResult, done: ConsolidateResult) -> Section:
    rows = []
    for entry in run.manifest.tables:
        name = str(entry.table.name)
        if name not in done.published:
            continue
        own = read.tables.get(name)
        rows.append(
            (
                name,
                f"{done.rows[name]:,}",
                f"{own.bytes / 2**20:,.1f}" if own else "",
                f"{own.chunks:,}" if own else "",
                f"{delta.keys.get(name, 0):,}",
                f"{done.rewound.get(name, 0):,}",
                f"{entry.consistency}: {entry.reason}",
                done.published[name],
            )
        )
    header = ("table", "rows", "MiB read", "chunks", "keys in the window", "keys put back", "how it was read", "copy")
    return Section("Tables", header, tuple(rows))


def _steps(read: SnapshotResult, delta: DeltaResult, done: ConsolidateResult) -> Section:
    size = sum(own.bytes for own in read.tables.values())
    rate = f", {read.rows / read.seconds:,.0f} rows/s" if read.seconds > 0 else ""
    rows = (
        (
            "snapshot",
            f"{read.seconds:,.1f}",
            f"{read.rows:,} rows, {size / 2**20:,.1f} MiB{rate}; longest lock {read.lock_seconds * 1000:,.0f} ms",
        ),
        (
            "extract_delta",
            f"{delta.seconds:,.1f}",
            f"{delta.transactions:,} transactions, {delta.row_images:,} row images in {delta.segments:,} segments",
        ),
        (
            "consolidate",
            f"{done.seconds:,.1f}",
            f"{done.files_rewritten:,} files rewritten, {done.files_adopted:,} adopted as they were",
        ),
    )
    return Section("Steps", ("step", "seconds", "what it did"), rows, "Without the time that Spark took to start.")


def _removed(removed: Removed, keep: int) -> Section:
    rows = [(name, uri, "removed") for name, uris in removed.copies.items() for uri in uris]
    rows += [("", f"run {run_id}", "its folder was removed") for run_id in removed.runs]
    rows += [("", uri, f"stays: {why}") for uri, why in sorted(removed.left.items())]
    note = f"Of each table the newest {keep:,} stay." if keep > 1 else "Of each table the newest one stays."
    return Section("Older copies", ("table", "copy", "what became of it"), tuple(rows), note)


def _nulls(read: SnapshotResult, done: ConsolidateResult) -> Rows:
    counts: dict[tuple[str, str], int] = {}
    for nulled in (read.nulled, done.nulled):
        for table, columns in nulled.items():
            for column, count in columns.items():
                counts[table, column] = counts.get((table, column), 0) + count
    return tuple((table, column, f"{count:,}") for (table, column), count in sorted(counts.items()))
