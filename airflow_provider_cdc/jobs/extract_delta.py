"""The extract_delta step: reads the log of each window, as one net change.

Tables that were read have one window, from the initial position to the end of the reads. Those that are rolled forward
have the one from their base's position to the initial position. Tables with the same window are read together.

Each segment of the log is one task, which nets what it reads (``core.net_change``: the order of grouping is free). The
net changes of several segments are composed by key, in tasks that take some buckets of all keys each. One segment is
net as it is.

So the shuffle goes through files that the tasks write and read themselves: rows go from Arrow to Arrow and not through
the JVM, and a small window costs no more than one small job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_cdc.core import records
from airflow_provider_cdc.core.manifest import Manifest
from airflow_provider_cdc.core.results import EXTRACT_DELTA, DeltaResult, Skipped, SnapshotResult
from airflow_provider_cdc.core.run import Run
from airflow_provider_cdc.core.staging import StagedFile, Staging
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import ExactnessError, ValueNotRepresentable
from airflow_provider_cdc.jobs import net
from airflow_provider_cdc.jobs.again import read_record as read_again_record
from airflow_provider_cdc.jobs.patience import persist
from airflow_provider_cdc.jobs.progress import Progress, ProgressFile, say
from airflow_provider_cdc.jobs.skipped import reason, say_skipped, table_of
from airflow_provider_cdc.jobs.snapshot import read_table_files
from airflow_provider_cdc.jobs.step import Step, run_step
from airflow_provider_cdc.jobs.tasks import run_tasks
from airflow_provider_cdc.jobs.verify import Checked, require_whole, without_damaged
from airflow_provider_cdc.sources.capabilities import PreparesBeforeWindow, Source, rolling_forward
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.window import DELTA_SCHEMA, LogSegment, SegmentSummary, TrackedTable

PLAN = "delta/plan.json"
DONE = "delta/done"
BACK = "segment"
"""The name of the window of tables that were read."""

SORT_BYTES = 256 * 2**20
"""How many bytes of changes a segment's task holds in memory to sort them."""
COMPOSE_BYTES = 256 * 2**20
"""What one task composes, in bytes of the files it reads."""


@dataclass(frozen=True)
class SegmentRecord:
    """A segment that was read: into which files, for which plan. ``counts`` is what `net.count_by_table` gives.
    ``refused``: why tables cannot be copied, by their names; of these the files may lack changes."""

    plan: str
    segment: int
    files: tuple[StagedFile, ...]
    counts: net.Counts
    pending: int
    summary: SegmentSummary
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NetChange:
    """The files that hold the net change of several segments, or of the whole window, and what is in them."""

    files: tuple[StagedFile, ...]
    counts: net.Counts

    def keys(self, table: int) -> int:
        """How many keys of a table, by its index, the window touches."""
        return self.counts.get(table, net.NONE).keys

    def befores(self, table: int) -> int:
        """How many of them had a row before the window."""
        return self.counts.get(table, net.NONE).befores

    def size(self) -> int:
        """Bytes of the files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Window:
    """A stretch of the log that is applied to some tables: what comes after ``start``, up to what the tables say.

    ``name`` begins the names of its files. ``segments`` gives its segments.
    """

    name: str
    start: str
    tables: tuple[TrackedTable, ...]
    segments: Callable[[], list[LogSegment]]

    @property
    def plan_name(self) -> str:
        return PLAN if self.name == BACK else f"delta/plan-{self.name}.json"

    def record_name(self, segment: LogSegment) -> str:
        return f"{DONE}/{self.name}-{segment.number:06}.json"


@dataclass(frozen=True)
class ReadSegment:
    """What a task that reads a segment of the window ``name`` needs to know. It is sent to executors.

    ``skips``: a table that cannot be copied is left out, and does not stop the step, unless no other is left: ``alone``
    says that the run has none but ``tables``.
    """

    staging: Staging
    plan: str
    source: Source
    name: str
    initial: str
    tables: tuple[TrackedTable, ...]
    skips: bool = False
    alone: bool = True

    def __call__(self, segment: LogSegment) -> SegmentRecord:
        """Write the net change of one segment, and the record that says so."""
        tables, refused = self.tables, dict[str, str]()
        while True:
            try:
                record = replace(self._read(segment, tables), refused=refused)
            except ValueNotRepresentable as error:
                own = table_of(error, (str(tracked.table.name) for tracked in tables)) if self.skips else None
                if own is None or (self.alone and len(tables) == 1):
                    raise
                refused[own] = reason(error)
                tables = tuple(tracked for tracked in tables if str(tracked.table.name) != own)
            else:
                records.write(self.staging.folder, f"{DONE}/{self.name}-{segment.number:06}.json", record)
                return record

    def _read(self, segment: LogSegment, tables: tuple[TrackedTable, ...]) -> SegmentRecord:
        name = f"delta/{self.name}-{segment.number:06}"
        keyless = [tracked.index for tracked in tables if tracked.table.keyless]
        counts: list[net.Counts] = []
        pending = 0
        with (
            self.staging.writer(name, net.NET_SCHEMA) as writer,
            self.source.read_segment(segment, self.initial, tables) as reader,
        ):
            for rows in _gathered(reader):
                rows = net.without_effect_dropped(rows, keyless)
                writer.write(net.in_buckets(rows))
                counts.append(net.count_by_table(rows))
                pending += rows.num_rows - rows["pending"].null_count
            summary = reader.summary
        total = net.add_counts(counts)
        return SegmentRecord(self.plan, segment.number, tuple(writer.files), total, pending, summary)


def _gathered(reader: Any) -> Any:
    """The reader's batches, several of them as one table."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size >= SORT_BYTES:
            yield pa.Table.from_batches(batches, DELTA_SCHEMA)
            batches, size = [], 0
    if batches:
        yield pa.Table.from_batches(batches, DELTA_SCHEMA)


@dataclass(frozen=True)
class ComposeBuckets:
    """What a task that composes segments of the window ``name`` needs to know. It is sent to executors."""

    staging: Staging
    name: str
    segments: tuple[tuple[int, tuple[StagedFile, ...]], ...]
    decisions: net.Decisions
    keyless: tuple[int, ...]

    def __call__(self, buckets: tuple[int, int]) -> NetChange:
        """Compose the changes of all segments in some buckets."""
        with self.staging.reading():
            return self._composed(buckets)

    def _composed(self, buckets: tuple[int, int]) -> NetChange:
        columns = net.NET_SCHEMA.names
        settled = [
            net.settle(
                pa.Table.from_batches(net.read(self.staging.folder, files, columns, buckets=buckets), net.NET_SCHEMA),
                number,
                self.decisions,
            )
            for number, files in self.segments
        ]
        composed = net.compose(pa.concat_tables(settled), self.keyless)
        with self.staging.writer(f"delta/{self.name}-net-{buckets[0]:02}", net.NET_SCHEMA) as writer:
            writer.write(composed.sort_by([("table", "ascending"), ("bucket", "ascending")]))
        return NetChange(tuple(writer.files), net.count_by_table(composed))


@dataclass(frozen=True)
class LastOfBuckets:
    """What a task that composes touched keys needs to know. It is sent to executors."""

    staging: Staging
    files: tuple[StagedFile, ...]

    def __call__(self, buckets: tuple[int, int]) -> NetChange:
        """The last change of each key in some buckets."""
        with self.staging.reading():
            rows = net.last(
                pa.Table.from_batches(
                    net.read(self.staging.folder, self.files, net.NET_SCHEMA.names, buckets=buckets), net.NET_SCHEMA
                )
            )
        with self.staging.writer(f"delta/net-{buckets[0]:02}", net.NET_SCHEMA) as writer:
            writer.write(rows.sort_by([("table", "ascending"), ("bucket", "ascending")]))
        return NetChange(tuple(writer.files), net.count_by_table(rows))


def extract_delta(spark: SparkSession, folder: Storage, settings: ConnectionSettings) -> DeltaResult:
    """Read the window's log, and leave its net change in ``folder``, the run's.

    Returns what the run records. `read_net_change` has the files.

    :raises ExactnessError: something in the window broke what the proof rests on.
    """
    return run_step(EXTRACT_DELTA, spark, folder, settings, _extract_delta)


def _extract_delta(step: Step) -> DeltaResult:
    if step.manifest.at_upper:
        return _extract_again(step)
    skipped = dict(step.run.found(SnapshotResult).skipped)
    read: list[SegmentRecord] = []
    changes = []
    for window in _windows(step):
        own, decisions = _read_window(step, window)
        changes.append(_compose(step, window, own, decisions))
        read += own
    for one in read:
        skipped |= one.refused

    change = NetChange(tuple(file for one in changes for file in one.files), net.add_counts(c.counts for c in changes))
    transactions, row_images = (
        sum(getattr(one.summary, what) for one in read) for what in ("transactions", "row_images")
    )
    return _result(step, change, transactions, row_images, len(read), skipped)


def _extract_again(step: Step) -> DeltaResult:
    """The log was read while rows were read again: what is left is one net change of what it said."""
    again = read_again_record(step.run)
    require_whole(step, [Checked(file, "the keys that were touched") for file in again.keys])
    tasks = min(net.BUCKETS, 1 + sum(file.bytes for file in again.keys) // COMPOSE_BYTES)
    composed: list[NetChange] = []
    if again.keys:
        work = LastOfBuckets(step.staging, again.keys)
        composed = run_tasks(step.spark, "compose the touched keys", net.bucket_ranges(tasks), work)
    files = tuple(file for one in composed for file in one.files)
    change = NetChange(files, net.add_counts(one.counts for one in composed))
    skipped = dict(step.run.found(SnapshotResult).skipped)
    return _result(step, change, again.transactions, again.row_images, len(again.layers), skipped)


def _result(
    step: Step, change: NetChange, transactions: int, row_images: int, segments: int, skipped: Skipped
) -> DeltaResult:
    names = [str(entry.table.name) for entry in step.tables]
    keys = {name: change.keys(index) for index, name in enumerate(names) if name not in skipped}
    found = DeltaResult(
        transactions=transactions,
        row_images=row_images,
        keys=keys,
        segments=segments,
        record=records.write_named(step.folder, "delta/net", change),
        skipped=skipped,
    )
    say_skipped(skipped)
    say(
        f"extract_delta: {found.transactions:,} transactions, {found.row_images:,} row images, "
        f"{sum(keys.values()):,} keys touched"
    )
    return found


def _windows(step: Step) -> list[Window]:
    """The windows of the run, each with its tables."""
    manifest, source = step.manifest, step.source
    found = step.run.found(SnapshotResult)
    windows = []
    for number, (run_id, base) in enumerate(sorted(manifest.bases.items())):
        if tables := rolled_forward(manifest, run_id):
            # Settings that the log does not show must not have changed since the base's position either.
            rolls = rolling_forward(source)
            check = partial(source.check_identity, base.identity, base.position)
            persist("extract_delta: check the source since the copy before", check)
            segments = partial(rolls.segments_between, base.position, manifest.initial_position, base.identity)
            windows.append(Window(f"forward-{number}", base.position, tables, segments))
    read = read_table_files(step.run)
    tracked = tuple(
        TrackedTable(index, entry.table, read[str(entry.table.name)].upper)
        for index, entry in enumerate(step.tables)
        if not entry.base and str(entry.table.name) not in found.skipped
    )
    if tracked:
        segments = partial(source.log_segments, manifest.initial_position, found.log_end, manifest.identity)
        windows.append(Window(BACK, manifest.initial_position, tracked, segments))
    return windows


def rolled_forward(manifest: Manifest, run_id: str) -> tuple[TrackedTable, ...]:
    """The tables that are rolled forward from the copies of a run."""
    return tuple(
        TrackedTable(index, entry.table, manifest.initial_position, forward=True)
        for index, entry in enumerate(manifest.tables)
        if entry.base == run_id
    )


def _read_window(step: Step, window: Window) -> tuple[list[SegmentRecord], net.Decisions]:
    """The records of a window's segments, and what became of transactions that were prepared in one of them."""
    source = step.source
    read = _read(step, window, window.plan_name, window.segments)
    decisions, unmatched_commits = net.decide([record.summary for record in read])
    while unmatched_commits:
        first = read[0].summary.segment
        earlier: list[SegmentRecord] = []
        if isinstance(source, PreparesBeforeWindow):
            name = f"delta/before{'' if window.name == BACK else f'-{window.name}'}-{-first.number}.json"
            earlier = _read(step, window, name, partial(source.segments_before, first, step.slots))
        if not earlier:
            raise _prepared_nowhere(unmatched_commits)
        read = earlier + read
        decisions, unmatched_commits = net.decide([record.summary for record in read])
    return read, decisions


def _read(step: Step, window: Window, name: str, segments: Callable[[], list[LogSegment]]) -> list[SegmentRecord]:
    """The records of segments, in log order; those that no earlier try of this plan has are read.

    :param name: of the plan.
    """
    plan = step.plan(name, LogSegment, lambda: persist(f"plan {name}", segments))
    planned = plan.orders
    done = step.finished(plan, SegmentRecord, {segment.number: window.record_name(segment) for segment in planned})
    kept = {number: record.files for number, record in done.items()}
    whole = without_damaged(step, kept, "extract_delta: segment")
    done = {number: record for number, record in done.items() if number in whole}
    missing = [segment for segment in planned if segment.number not in done]
    what = "log segments" if name == window.plan_name else "earlier log segments, for what was prepared there"
    say(f"extract_delta: {len(planned)} {what}" + (f", {len(done)} kept" if done else ""))
    note = ProgressFile(step.folder).note
    progress = Progress("extract_delta", "segments", len(missing), len(missing), note=note)
    skips, alone = step.manifest.options.skips, len(window.tables) == len(step.tables)
    read = run_tasks(
        step.spark,
        "read the log",
        missing,
        ReadSegment(step.staging, plan.id, step.source, window.name, window.start, window.tables, skips, alone),
        lambda record: progress.add(1, record.summary.row_images, 1),
        meanwhile=progress.tick,
    )
    done.update((record.segment, record) for record in read)
    return [done[segment.number] for segment in planned]


def _prepared_nowhere(unmatched_commits: Mapping[str, str]) -> ExactnessError:
    xid, segment = next(iter(unmatched_commits.items()))
    return ExactnessError(
        f"the prepared transaction {xid} is committed here, and the log does not reach back to where it was prepared",
        where=segment,
        hint="trigger a new run; let prepared transactions end before it begins (XA RECOVER lists them)",
    )


def _compose(step: Step, window: Window, read: Sequence[SegmentRecord], decisions: net.Decisions) -> NetChange:
    segments = [(record.segment, record.files) for record in read if record.files]
    pending = any(record.pending for record in read)
    parts = any(record.summary.parts > 1 for record in read)
    composed: Sequence[SegmentRecord | NetChange] = read
    if segments and (len(segments) > 1 or pending or parts):
        size = sum(file.bytes for _, files in segments for file in files)
        tasks = min(net.BUCKETS, -(-size // COMPOSE_BYTES)) or 1
        keyless = tuple(index for index, entry in enumerate(step.tables) if entry.table.keyless)
        composed = run_tasks(
            step.spark,
            "compose the net change",
            net.bucket_ranges(tasks),
            ComposeBuckets(step.staging, window.name, tuple(segments), decisions, keyless),
        )
    files = tuple(file for one in composed for file in one.files)
    return NetChange(files, net.add_counts(one.counts for one in composed))


def read_net_change(run: Run) -> NetChange:
    """What the extract_delta step left.

    :raises ManifestError: it is not done.
    """
    return records.read_named(NetChange, run.folder, run.found(DeltaResult).record)
