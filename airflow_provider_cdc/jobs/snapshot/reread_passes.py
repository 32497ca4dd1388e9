"""Reads touched rows again. This is the last part of the snapshot step for a run that is exact at the end of its reads.

Each chunk was read at its own time. The log has the keys that were touched since the run began. The rows of these keys
are read again. At the end, they are read in one exported snapshot, at an exactly known position. So every row is exact
at that position: untouched rows never changed, touched rows are read in the snapshot, and a touched row that the
snapshot does not have was deleted. The position of the snapshot becomes the position of the run.

To keep the exported snapshot short, however long the run took, *passes* precede it. Each pass reads the log up to its
current end, waits until all of these commits are visible, and reads the current versions of the touched rows. Rows that
are touched later are read again by the next pass or in the snapshot. A pass does not resolve doubts: if the rows of a
key contradict the log, the pass leaves the key to the next pass. In the snapshot, such a key proves an error (for
example, an index that does not find its rows), and stops the run.

Two rules are essential. Once the position of the exported snapshot is fixed, only reads in this snapshot may still
begin. If the snapshot is lost, everything that was read in it is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_provider_cdc.core.parquet.writer import QUICKEST
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run import manifest as plan
from airflow_provider_cdc.core.run.manifest import Manifest, RunTable
from airflow_provider_cdc.core.run.results import Nulled, Skipped, SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import TransientError, ValueNotRepresentable
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.runtime.controller import (
    RunPaused,
    check_interrupts,
    giving_up_when_paused,
    wait_while_paused,
)
from airflow_provider_cdc.jobs.runtime.progress import Progress, ProgressFile, log
from airflow_provider_cdc.jobs.runtime.retry import RetryBudget
from airflow_provider_cdc.jobs.runtime.skipped import add_nulled, reason, table_of
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.snapshot.reread import FoundAgain, ReadAgain
from airflow_provider_cdc.sources.api.source import LogTail, Source
from airflow_provider_cdc.sources.api.window import BUCKETS, TrackedTable, UpperBound

# Reads several ranges of the log as if they were one range. A run takes the keys of touched rows from these ranges.
#
# For tables that are read, the log is followed from the run's initial position. For tables that are rolled forward, the
# log is followed from the position of their copy.


@dataclass(frozen=True)
class Tails:
    """Combines several `LogTail` objects, each with its own tables, into one object with all tables."""

    tails: Sequence[LogTail]

    @property
    def order(self) -> int:
        return max(tail.order for tail in self.tails)

    @property
    def transactions(self) -> int:
        return sum(tail.transactions for tail in self.tails)

    @property
    def row_images(self) -> int:
        return sum(tail.row_images for tail in self.tails)

    def read(self, log_end: LogEnd | None = None) -> Iterator[pa.RecordBatch]:
        for tail in self.tails:
            yield from tail.read(log_end)
        # Order every later change after all changes that any tail has read so far.
        order = self.order
        for tail in self.tails:
            tail.go_on_from(order)


@contextmanager
def open_tails(step: Step, tracked: Sequence[TrackedTable]) -> Iterator[Tails]:
    """Follow the log for the ``tracked`` tables."""
    source, manifest = step.source, step.manifest
    by_start: dict[tuple[str, Position], list[TrackedTable]] = {}
    for tracked_table in tracked:
        by_start.setdefault(_start(manifest, tracked_table), []).append(tracked_table)
    with ExitStack() as stack:
        tails = [
            stack.enter_context(source.follow(start, manifest.all_starts[key].facts, tables))
            for (key, start), tables in (by_start or {(manifest.start, manifest.initial): []}).items()
        ]
        yield Tails(tails)


def _start(manifest: Manifest, one: TrackedTable) -> tuple[str, Position]:
    """Return the start of a table, and the position from which the log is read for it."""
    entry = manifest.tables[one.index]
    return entry.start, manifest.start_of(entry.base) if entry.base else manifest.position_of(entry.start)


FEW_KEYS = plan.FEW_KEYS
"""If at most this many keys are touched, they are looked up in the exported snapshot without another pass."""
MOST_PASSES = 4
KEYS_PER_TASK = 50_000
"""Number of keys per task. A task with fewer keys would cost more than another core saves."""
MOST_KEYS = 1_000_000
"""The maximum number of keys that one task holds in memory. A task holds more keys only if there are not enough
buckets."""
_FIRST = "snapshot: all chunks are read; reading the log for rows that were touched meanwhile"
_NEXT = "snapshot: reading the log for rows that were touched during the pass"
SORT_BYTES = 64 * 2**20
"""Bytes of keys that the driver holds in memory to sort them."""


@dataclass(frozen=True)
class Layer:
    """The files with the rows that one pass read again, by the table's name. The rows of a layer take precedence over
    the chunks and the earlier layers. A key whose last change has an order greater than ``since`` was touched after
    this pass, so its rows are not taken from this layer."""

    since: int
    files: dict[str, tuple[StagedFile, ...]]


@dataclass(frozen=True)
class Again:
    """The record of the touched keys and of the rows that were read again. ``keys`` are files of `NET_SCHEMA`; the last
    change of each key counts."""

    keys: tuple[StagedFile, ...] = ()
    layers: tuple[Layer, ...] = ()
    transactions: int = 0
    row_images: int = 0


@dataclass
class SeenRows:
    """The result of `read_again`: the bound of all reads, the record, and figures for the step's result."""

    bound: UpperBound
    again: Again
    nulled: Nulled
    skipped: Skipped
    keys_in_view: int
    view_seconds: float


@dataclass
class _Keys:
    """The files with the touched keys that were found so far. ``waiting`` has the files with keys that no pass has
    looked up yet."""

    files: list[StagedFile] = field(default_factory=list)
    waiting: list[StagedFile] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    nulled: list[tuple[str, dict[str, int]]] = field(default_factory=list)

    def add(self, files: Iterable[StagedFile]) -> None:
        new = list(files)
        self.files += new
        self.waiting += new

    @property
    def count(self) -> int:
        """Return the largest possible number of keys whose rows must still be read again."""
        return sum(file.rows for file in self.waiting)


def read_again(
    step: Step, incarnations: Callable[[], set[str]], in_view: Callable[[Source], None], meanwhile: Callable[[], None]
) -> SeenRows | None:
    """Read touched rows again. Return None if the server was restarted meanwhile, because no read counts after a
    restart.

    :param incarnations: returns the incarnations of the server for all parts that were read.
    :param in_view: a function that reads, in the exported snapshot, all tables that must be read in full in this
        snapshot.
    :param meanwhile: is called from time to time.
    """
    patience = RetryBudget("snapshot: read touched rows again")
    tracked, skipped = followed(step), dict[str, str]()
    while True:
        wait_while_paused()
        try:
            with giving_up_when_paused():
                seen = _read_again(step, tracked, incarnations, in_view, meanwhile)
        except RunPaused:
            log("snapshot: the rows that were read again so far are dropped, because the run is paused")
        except TransientError as error:
            patience.wait(error)
        except ValueNotRepresentable as error:
            # For some time, a key had a value that cannot be represented. The table cannot be copied, because its keys
            # must identify its rows.
            failed_table = (
                table_of(error, (str(tracked_table.table.name) for tracked_table in tracked))
                if step.manifest.options.skips
                else None
            )
            if failed_table is None:
                raise
            skipped[failed_table] = reason(error)
            tracked = [tracked_table for tracked_table in tracked if str(tracked_table.table.name) != failed_table]
        else:
            if seen is not None:
                seen.skipped |= skipped
            return seen


def _read_again(
    step: Step,
    tracked: Sequence[TrackedTable],
    incarnations: Callable[[], set[str]],
    in_view: Callable[[Source], None],
    meanwhile: Callable[[], None],
) -> SeenRows | None:
    source = step.source
    lock, keys = step.manifest.options.lock, _Keys()
    passed: set[str] = set()
    with open_tails(step, tracked) as tail:
        for number in range(1, MOST_PASSES + 1):
            log(_FIRST if number == 1 else _NEXT)
            keys.add(_touched(step, tail))
            if keys.count <= FEW_KEYS:
                break
            log(
                f"snapshot: pass {number} of at most {MOST_PASSES}: {format_count(keys.count, 'key')} were touched "
                "meanwhile. When these changes are visible, the run reads the rows of these keys again"
            )
            source.wait_until_visible(lock)
            passed |= _pass(step, tail, keys, meanwhile)
            if len(incarnations() | passed) > 1:
                return None
        log("snapshot: exporting a snapshot to read the last touched rows: waiting for open write transactions")
        with source.share_reads(lock) as shared:
            opened = time.monotonic()
            bound = shared.bound_view([entry.table for entry in step.tables if _is_copied(step, entry)])
            if (incarnations() | passed) - {bound.incarnation}:
                return None
            keys.add(_touched(step, tail, bound.log_end))
            looked_up = keys.count
            seen_keys = _look_up(step, shared, keys.waiting, bound, 0, meanwhile)
            in_view(shared)
            seconds = time.monotonic() - opened
        # If none of the tables of a task can be copied, the task reports no incarnation of the server.
        if (incarnations() | {seen_key.incarnation for seen_key in seen_keys if seen_key.incarnation}) - {
            bound.incarnation
        }:
            return None
        keys.layers.append(_layer(step, tail.order, seen_keys))
        keys.nulled += _nulled(step, seen_keys)
        log(
            f"snapshot: {format_count(looked_up, 'key')} read again at {bound.upper}, in an exported snapshot that was "
            f"open for {seconds:.1f} s"
        )
        again = Again(tuple(keys.files), tuple(keys.layers), tail.transactions, tail.row_images)
    refused = {
        str(step.tables[table].table.name): why for seen_key in seen_keys for table, why in seen_key.refused.items()
    }
    return SeenRows(bound, again, add_nulled(keys.nulled), refused, looked_up, round(seconds, 3))


def followed(step: Step) -> list[TrackedTable]:
    """Return the tables whose touched rows are read again."""
    return [
        TrackedTable(index, entry.table, keys_only=True, forward=bool(entry.base))
        for index, entry in enumerate(step.tables)
        if entry.consistency == "again" and _is_copied(step, entry)
    ]


def _is_copied(step: Step, entry: RunTable) -> bool:
    """Whether the run has not left the table out, and does not leave it out now, because it was altered."""
    return not entry.left_out and str(entry.table.name) not in step.altered


def _touched(step: Step, tail: Tails, log_end: LogEnd | None = None) -> list[StagedFile]:
    """Write files with the keys that were touched since the last call, and return these files."""
    with step.staging.writer("delta/touched", net_change_files.NET_SCHEMA, QUICKEST) as writer:
        for rows in net_change_files.gathered(_interruptible(tail.read(log_end)), SORT_BYTES):
            writer.write(net_change_files.in_buckets(net_change_files.last(rows)))
    return list(writer.files)


def _interruptible(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and raise an error between them if the step must pause or stop."""
    for batch in batches:
        check_interrupts()
        yield batch


def _pass(step: Step, tail: Tails, keys: _Keys, meanwhile: Callable[[], None]) -> set[str]:
    """Read the current rows of the waiting keys. Return the incarnations of the server during these reads."""
    seen_keys = _look_up(step, step.source, keys.waiting, None, tail.order, meanwhile)
    keys.layers.append(_layer(step, tail.order - 1, seen_keys))
    keys.nulled += _nulled(step, seen_keys)
    keys.waiting = []
    keys.add(file for seen_key in seen_keys for file in seen_key.doubtful)
    return {seen_key.incarnation for seen_key in seen_keys if seen_key.incarnation}


def _look_up(
    step: Step,
    source: Source,
    waiting: Sequence[StagedFile],
    view: UpperBound | None,
    order: int,
    meanwhile: Callable[[], None],
) -> list[FoundAgain]:
    if not waiting:
        return []
    count = sum(file.rows for file in waiting)
    # A few tasks may not have enough memory for all changes since the last copy.
    tasks = max(1, min(BUCKETS, max(min(step.slots * 4, count // KEYS_PER_TASK), count // MOST_KEYS)))
    work = ReadAgain(
        step.staging,
        source,
        step.tables,
        tuple(waiting),
        view.incarnation if view else "",
        order,
        step.manifest.options.skips,
    )
    ranges = net_change_files.bucket_ranges(tasks)
    progress = Progress("snapshot, read again", "task", len(ranges), len(ranges), note=ProgressFile(step.folder).note)

    def found(one: FoundAgain) -> None:
        progress.add(1, sum(file.rows for files in one.files.values() for file in files), 1)

    def between() -> None:
        meanwhile()
        progress.tick()

    return run_tasks(step.spark, "read again", ranges, work, found, meanwhile=between, brief=view is not None)


def _layer(step: Step, since: int, found: Sequence[FoundAgain]) -> Layer:
    files: dict[str, list[StagedFile]] = {}
    for portion in found:
        for table, table_files in portion.files.items():
            files.setdefault(str(step.tables[table].table.name), []).extend(table_files)
    return Layer(since, {name: tuple(table_files) for name, table_files in files.items()})


def _nulled(step: Step, found: Sequence[FoundAgain]) -> list[tuple[str, dict[str, int]]]:
    return [
        (str(step.tables[table].table.name), nulled_columns)
        for portion in found
        for table, nulled_columns in portion.nulled.items()
    ]


def write_again(run: Run, again: Again) -> str:
    """Record the rows that were read again. Return the name of the record."""
    return records.write_named(run.folder, "chunks/again", again)


def read_record(run: Run) -> Again:
    """Return the record of the rows that the snapshot step read again.

    :raises ManifestError: the step is not done.
    """
    return records.read_named(Again, run.folder, run.result_of(SnapshotResult).again)
