"""Reads the missing parts of the tables, and bounds the reads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice

from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, CopyMismatch, TerminalError, TransientError
from airflow_provider_cdc.jobs.restart.altered import may_restart, note_altered
from airflow_provider_cdc.jobs.runtime import controller
from airflow_provider_cdc.jobs.runtime.progress import (
    PARTS,
    PartPiece,
    PieceWatch,
    Progress,
    ProgressFile,
    forget,
    log,
)
from airflow_provider_cdc.jobs.runtime.retry import RetryBudget, retry
from airflow_provider_cdc.jobs.runtime.skipped import check_some_left
from airflow_provider_cdc.jobs.runtime.source_watch import SourceWatch
from airflow_provider_cdc.jobs.runtime.step import Plan, Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.snapshot.parts import Part, bundle, piece_of_part
from airflow_provider_cdc.jobs.snapshot.read_part import (
    PartRecord,
    ReadPart,
    drop_half_read,
)
from airflow_provider_cdc.jobs.snapshot.reread_passes import SeenRows, read_again
from airflow_provider_cdc.jobs.spool import pause_spool
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import UpperBound

# Notes where the log ends when the last part of a table has been read.
#
# A schema change that lies in the log after this end comes after the read. So the rows of the read can be carried
# over it (`jobs.restart.altered`). It does not matter how late the end is noted: a later end only makes fewer schema
# changes fit.


POLL_SECONDS = 10.0


class EndsOfReads:
    """Notes the ends in ``step.ends``.

    :param missing: the parts that are to be read now. No other parts are missing.
    :param done: the parts that were read, by number. It grows.
    """

    def __init__(self, step: Step, missing: Sequence[Part], done: Mapping[int, object]) -> None:
        self._step, self._done = step, done
        self._tables = {str(entry.table.name): entry.table for entry in step.tables if entry.is_read}
        self._missing: dict[str, set[int]] = {name: set() for name in self._tables}
        self._last = -POLL_SECONDS
        for part in missing:
            name = str(step.tables[part.table].table.name)
            self._missing[name].add(part.number)
            # The table is read again, so what was noted does not count.
            step.ends.pop(name, None)

    def poll(self, *, now: bool = False) -> None:
        """Note the ends of the tables that were read since the last call, unless this call was a moment ago."""
        step = self._step
        if not (now or time.monotonic() - self._last >= POLL_SECONDS):
            return
        # The reads end first, and then the log is asked for its end.
        names = [name for name, left in self._missing.items() if name not in step.ends and left <= self._done.keys()]
        if names:
            self._last = time.monotonic()
            # Without its end, a table that is altered is read again.
            with suppress(CdcError):
                ends = step.source.ends_of_reads([self._tables[name] for name in names])
                step.ends |= {str(name): str(end) for name, end in ends.items()}


def stale_parts(done: Mapping[int, PartRecord], bound: UpperBound) -> list[int]:
    """Return the parts that were read before the server was restarted."""
    return [number for number, record in done.items() if record.incarnation != bound.incarnation and not record.refused]


def read_all(step: Step, plan: Plan[Part], done: dict[int, PartRecord]) -> UpperBound:
    """Read the parts that have no record, except the parts that must be read in the exported snapshot of the run's
    position. Return the bound of all reads so far."""
    drop_read_in_view(step, plan.orders, done)
    _read(step, plan, done)
    pause_spool(step)
    return retry("snapshot: bound the reads", step.source.bound_reads)


def read_again_in_view(step: Step, plan: Plan[Part], done: dict[int, PartRecord]) -> SeenRows | None:
    """Read touched rows again. Return None if the server was restarted meanwhile, or if the run moves, because a table
    was altered."""
    watch = SourceWatch(step)
    patience = RetryBudget("snapshot: read in one exported snapshot")

    def incarnations() -> set[str]:
        return {record.incarnation for record in done.values() if not record.refused}

    def in_view(shared: Source) -> None:
        drop_read_in_view(step, plan.orders, done)
        missing = [part for part in plan.orders if part.number not in done and name_of(step, part) not in step.altered]
        if missing:
            _read_missing(step, plan.id, missing, shared, done, watch, patience, brief=True)

    while True:
        left = [str(entry.table.name) for entry in step.tables if not entry.left_out]
        check_some_left([name for name in left if name not in step.altered], step.altered)
        try:
            return read_again(step, incarnations, in_view, watch.poll)
        except TerminalError as error:
            if not note_altered(step, error):
                if isinstance(error, CopyMismatch):
                    # If the publication was altered meanwhile, the log lacks changes, and this error names the cause.
                    step.source.check_identity(step.run.expected_identity(), step.manifest.initial)
                raise
            drop_read_in_view(step, plan.orders, done)
            if may_restart(step):
                return None


def drop_read_in_view(step: Step, parts: Sequence[Part], done: dict[int, PartRecord]) -> None:
    """Drop the records of the parts that are read at the run's position, because each try has another position."""
    for part in parts:
        if _waits_for_view(step, part):
            done.pop(part.number, None)


def _waits_for_view(step: Step, part: Part) -> bool:
    entry = step.tables[part.table]
    return entry.at_upper and entry.consistency == "exported"


def _read(step: Step, plan: Plan[Part], done: dict[int, PartRecord]) -> None:
    """Read the parts that have no record, except the parts that must be read in the exported snapshot of the run's
    position. Add the new records to ``done``."""
    patience = RetryBudget("snapshot: read in one exported snapshot")
    watch = SourceWatch(step)
    while True:
        drop_half_read(step.tables, plan.orders, done)
        missing = [
            part
            for part in plan.orders
            if part.number not in done and not _waits_for_view(step, part) and name_of(step, part) not in step.altered
        ]
        shared = {step.tables[part.table].consistency for part in missing}
        brief, lock = "exported" in shared, step.manifest.options.lock
        controller.wait_while_paused()
        try:
            with controller.giving_up_when_paused(brief), step.source.shared_reads(shared, lock) as source:
                return _read_missing(step, plan.id, missing, source, done, watch, patience, brief=brief)
        except controller.RunPaused:
            log("snapshot: the exported snapshot is closed, because the run is paused")
        except TransientError as error:
            # Each separate read has already been retried. But if the exported snapshot is lost, another snapshot must
            # be exported.
            if not brief:
                raise
            patience.wait(error)
        except TerminalError as error:
            # Read the tables that were not altered, so that the run has to read as little as possible again.
            if not note_altered(step, error):
                raise
            for part in plan.orders:
                if name_of(step, part) in step.altered and name_of(step, part) not in step.ends:
                    done.pop(part.number, None)


def _read_missing(
    step: Step,
    plan: str,
    missing: Sequence[Part],
    source: Source,
    done: dict[int, PartRecord],
    watch: SourceWatch,
    patience: RetryBudget,
    *,
    brief: bool,
) -> None:
    chunks = sum(len(part.chunks) for part in missing)
    kept_text = f", {len(done):,} kept" if done else ""
    live = format_count(sum(entry.is_read for entry in step.tables), "table")
    log(f"snapshot: {live}, {format_count(chunks, 'chunk')} in {format_count(len(missing), 'part')}{kept_text}")

    weights = {part.number: part.weight for part in missing}

    def at_work() -> list[Part]:
        # Spark starts the parts in the order of this list.
        return list(islice((part for part in missing if part.number not in done), step.slots))

    def left() -> list[PartPiece]:
        return [piece_of_part(part, step.tables) for part in missing if part.number not in done]

    watched = PieceWatch(step.folder, PARTS, left)
    forget(step.folder, PARTS)
    note = ProgressFile(step.folder).note
    progress = Progress(
        "snapshot",
        "chunk",
        chunks,
        sum(weights.values()),
        at_work=lambda: list(dict.fromkeys(name_of(step, part) for part in at_work())),
        backlog=lambda: watch.backlog,
        under_way=watched.poll,
        waiting=lambda: f"{format_count(watched.all_read, 'part')} to be written" if watched.all_read else "",
        then="touched rows are read again" if step.manifest.at_upper and not brief else "",
        paused=controller.paused_seconds,
        note=note,
    )
    options = step.manifest.options
    lock, pause = options.lock, options.chunk_pause

    def finished(record: PartRecord) -> None:
        done[record.part] = record
        patience.succeeded()
        progress.add(record.chunks, record.rows, weights[record.part], sum(file.bytes for file in record.files))

    ends = EndsOfReads(step, missing, done)

    def meanwhile() -> None:
        watch.poll(progress.seconds_left)
        ends.poll()
        progress.tick()

    run_tasks(
        step.spark,
        "read chunks",
        missing,
        ReadPart(step.staging, plan, source, tuple(step.tables), lock, pause, options.skips),
        finished,
        meanwhile=meanwhile,
        bundle=lambda parts: bundle(parts, step.tables, step.slots),
        brief=brief,
    )
    ends.poll(now=True)


def name_of(step: Step, part: Part) -> str:
    return str(step.tables[part.table].table.name)
