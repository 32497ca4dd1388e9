"""Reads several ranges of the log as if they were one range. A run takes the keys of touched rows from these ranges.

For tables that are read, the log is followed from the run's initial position. For tables that are rolled forward, the
log is followed from the position of their copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.log import LogTail
from airflow_provider_cdc.sources.api.window import TrackedTable


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
