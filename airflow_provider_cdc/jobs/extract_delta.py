"""The extract_delta step: reads the log from the initial position to the end of the reads, as one net change.

Each segment of the log is one task, which nets what it reads (``core.net_change``: the order of grouping is free). The
net changes of several segments are composed by key, in tasks that take some buckets of all keys each. One segment is
net as it is.

So the shuffle goes through files that the tasks write and read themselves: rows go from Arrow to Arrow and not through
the JVM, and a small window costs no more than one small job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.records import decode, decoding, read_named, write_named
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import ExactnessError
from airflow_provider_cdc.jobs import net
from airflow_provider_cdc.jobs.patience import persist
from airflow_provider_cdc.jobs.progress import Progress, say
from airflow_provider_cdc.jobs.snapshot import TASK_ID as SNAPSHOT
from airflow_provider_cdc.jobs.snapshot import read_table_files
from airflow_provider_cdc.jobs.step import Step, run_step
from airflow_provider_cdc.jobs.tasks import run_tasks
from airflow_provider_cdc.jobs.verify import without_damaged
from airflow_provider_cdc.sinks.base import Sink, StagedFile, gone_is_damaged
from airflow_provider_cdc.sinks.parquet import token
from airflow_provider_cdc.sources.capabilities import PreparesBeforeWindow, Source
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.window import DELTA_SCHEMA, LogSegment, SegmentSummary, TrackedTable

TASK_ID = "extract_delta"
PLAN = "delta/plan.json"
DONE = "delta/done"

SORT_BYTES = 256 * 2**20
"""What a segment's task holds of its changes to sort them."""
COMPOSE_BYTES = 256 * 2**20
"""What one task composes, in bytes of the files it reads."""


@dataclass(frozen=True)
class SegmentRecord:
    """A segment that was read: into which files, for which plan. ``counts`` is what `net.count_by_table` gives."""

    plan: str
    segment: int
    files: tuple[StagedFile, ...]
    counts: dict[str, list[int]]
    pending: int
    summary: SegmentSummary


@dataclass(frozen=True)
class NetRecord:
    """The net change of several segments, or of all of them."""

    files: tuple[StagedFile, ...]
    counts: dict[str, list[int]]


@dataclass(frozen=True)
class ReadSegment:
    """What a task that reads a segment needs to know. It is sent to executors."""

    run: Storage
    plan: str
    source: Source
    sink: Sink
    initial: str
    tables: tuple[TrackedTable, ...]

    def __call__(self, segment: LogSegment) -> SegmentRecord:
        """Write the net change of one segment, and the record that says so."""
        name = f"delta/segment-{segment.number:06}"
        keyless = [tracked.index for tracked in self.tables if tracked.table.keyless]
        counts: list[dict[int, list[int]]] = []
        pending = 0
        with (
            self.sink.writer(self.run, f"{name}-{token()}", net.NET_SCHEMA) as writer,
            self.source.read_segment(segment, self.initial, self.tables) as reader,
        ):
            for rows in _gathered(reader):
                rows = net.without_effect_dropped(rows, keyless)
                writer.write(net.in_buckets(rows))
                counts.append(net.count_by_table(rows))
                pending += rows.num_rows - rows["pending"].null_count
            summary = reader.summary
        total = _by_name(net.add_counts(counts))
        record = SegmentRecord(self.plan, segment.number, tuple(writer.files), total, pending, summary)
        self.run.write_json(_record_name(segment), asdict(record))
        return record


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
    """What a task that composes segments needs to know. It is sent to executors."""

    run: Storage
    sink: Sink
    segments: tuple[tuple[int, tuple[StagedFile, ...]], ...]
    decisions: net.Decisions
    keyless: tuple[int, ...]

    def __call__(self, buckets: tuple[int, int]) -> NetRecord:
        """Compose the changes of all segments in some buckets."""
        with gone_is_damaged(self.run):
            return self._composed(buckets)

    def _composed(self, buckets: tuple[int, int]) -> NetRecord:
        columns = net.NET_SCHEMA.names
        settled = [
            net.settle(
                pa.Table.from_batches(net.read(self.run, files, columns, buckets=buckets), net.NET_SCHEMA),
                number,
                self.decisions,
            )
            for number, files in self.segments
        ]
        composed = net.compose(pa.concat_tables(settled), self.keyless)
        name = f"delta/net-{buckets[0]:02}-{token()}"
        with self.sink.writer(self.run, name, net.NET_SCHEMA) as writer:
            writer.write(composed.sort_by([("table", "ascending"), ("bucket", "ascending")]))
        return NetRecord(tuple(writer.files), _by_name(net.count_by_table(composed)))


@dataclass(frozen=True)
class NetChange:
    """The files that hold the net change of the window, and per table how many keys it touches and restores."""

    files: tuple[StagedFile, ...]
    keys: dict[int, int]
    befores: dict[int, int]


def extract_delta(spark: SparkSession, run: Storage, settings: ConnectionSettings) -> dict[str, Any]:
    """Read the window's log, and leave its net change in the run's folder.

    Returns what the manifest records: ``transactions``, ``row_images``, ``keys`` (touched, by table), ``segments``,
    ``record``, which `read_net_change` takes; ``seconds``.

    :raises ExactnessError: something in the window broke what the proof rests on.
    """
    return run_step(TASK_ID, spark, run, settings, _extract_delta)


def _extract_delta(step: Step) -> dict[str, Any]:
    run, source = step.manifest, step.source
    log_end = step.found(SNAPSHOT)["log_end"]
    records = _read(step, PLAN, lambda: source.log_segments(run.initial_position, log_end, run.identity))
    decisions, strangers = net.decide([record.summary for record in records])
    while strangers:
        first = records[0].summary.segment
        earlier: list[SegmentRecord] = []
        if isinstance(source, PreparesBeforeWindow):
            before = partial(source.segments_before, first, step.slots)
            earlier = _read(step, f"delta/before-{-first.number}.json", before)
        if not earlier:
            raise _prepared_nowhere(strangers)
        records = earlier + records
        decisions, strangers = net.decide([record.summary for record in records])
    summaries = [record.summary for record in records]

    files, counts = _compose(step, records, decisions)
    record = write_named(step.run, "delta/net", asdict(NetRecord(tuple(files), _by_name(counts))))
    keys = {str(entry.table.name): counts.get(index, [0, 0])[0] for index, entry in enumerate(step.tables)}
    found = {
        "transactions": sum(summary.transactions for summary in summaries),
        "row_images": sum(summary.row_images for summary in summaries),
        "keys": keys,
        "segments": len(records),
        "record": record,
    }
    say(
        f"extract_delta: {found['transactions']:,} transactions, {found['row_images']:,} row images, "
        f"{sum(keys.values()):,} keys touched"
    )
    return found


def _read(step: Step, name: str, segments: Callable[[], list[LogSegment]]) -> list[SegmentRecord]:
    """The records of segments, in log order; those that no earlier try of this plan has are read.

    :param name: of the plan.
    """
    plan = step.plan(name, lambda: [asdict(one) for one in persist(f"plan {name}", segments)])
    planned = [decode(LogSegment, order, step.run.uri_of(name)) for order in plan.orders]
    records = step.finished(plan, SegmentRecord, {segment.number: _record_name(segment) for segment in planned})
    kept = {number: record.files for number, record in records.items()}
    whole = without_damaged(step, kept, "extract_delta: segment")
    records = {number: record for number, record in records.items() if number in whole}
    missing = [segment for segment in planned if segment.number not in records]
    what = "log segments" if name == PLAN else "earlier log segments, for what was prepared there"
    say(f"extract_delta: {len(planned)} {what}" + (f", {len(records)} kept" if records else ""))
    progress = Progress("extract_delta", "segments", len(missing), len(missing))
    read = run_tasks(
        step.spark,
        "read the log",
        missing,
        ReadSegment(step.run, plan.id, step.source, step.sink, step.manifest.initial_position, _tracked(step)),
        lambda record: progress.add(1, record.summary.row_images, 1),
    )
    records.update((record.segment, record) for record in read)
    return [records[segment.number] for segment in planned]


def _prepared_nowhere(strangers: Mapping[str, str]) -> ExactnessError:
    xid, segment = next(iter(strangers.items()))
    return ExactnessError(
        f"the prepared transaction {xid} is committed here, and the log does not reach back to where it was prepared",
        where=segment,
        hint="trigger a new run; let prepared transactions end before it begins (XA RECOVER lists them)",
    )


def _tracked(step: Step) -> tuple[TrackedTable, ...]:
    read = read_table_files(step.run, step.found(SNAPSHOT)["record"])
    return tuple(
        TrackedTable(index, entry.table, read[str(entry.table.name)].upper) for index, entry in enumerate(step.tables)
    )


def _record_name(segment: LogSegment) -> str:
    return f"{DONE}/segment-{segment.number:06}.json"


def _by_name(counts: Mapping[int, list[int]]) -> dict[str, list[int]]:
    """As JSON has them."""
    return {str(index): own for index, own in counts.items()}


def _compose(
    step: Step, records: Sequence[SegmentRecord], decisions: net.Decisions
) -> tuple[list[StagedFile], dict[int, list[int]]]:
    segments = [(record.segment, record.files) for record in records if record.files]
    pending = any(record.pending for record in records)
    parts = any(record.summary.parts > 1 for record in records)
    composed: Sequence[SegmentRecord | NetRecord] = records
    if segments and (len(segments) > 1 or pending or parts):
        size = sum(file.bytes for _, files in segments for file in files)
        tasks = min(net.BUCKETS, -(-size // COMPOSE_BYTES)) or 1
        keyless = tuple(index for index, entry in enumerate(step.tables) if entry.table.keyless)
        composed = run_tasks(
            step.spark,
            "compose the net change",
            net.bucket_ranges(tasks),
            ComposeBuckets(step.run, step.sink, tuple(segments), decisions, keyless),
        )
    return [file for record in composed for file in record.files], net.add_counts(record.counts for record in composed)


def read_net_change(run: Storage, record: str) -> NetChange:
    """What the extract_delta step left."""
    data = decode(NetRecord, read_named(run, record), run.uri_of(record))
    with decoding(run.uri_of(record)):
        counts = {int(index): (keys, befores) for index, (keys, befores) in data.counts.items()}
    return NetChange(
        data.files,
        {index: keys for index, (keys, _) in counts.items()},
        {index: befores for index, (_, befores) in counts.items()},
    )
