"""The stretches of the log from which a run takes the keys of touched rows, followed as one.

Tables that are read have theirs since the run's initial position. Those whose copies are rolled forward have it since
the position of the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.rereading import LogTail, ReadsAgain
from airflow_provider_cdc.sources.api.window import TrackedTable


@dataclass(frozen=True)
class Tails:
    """Several `LogTail`, each of other tables, as one of all of them."""

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

    def read(self, stop: str = "") -> Iterator[pa.RecordBatch]:
        for tail in self.tails:
            yield from tail.read(stop)
        # What any of them reads next is later than what all have read so far.
        order = self.order
        for tail in self.tails:
            tail.go_on_from(order)


@contextmanager
def open_tails(step: Step, tracked: Sequence[TrackedTable]) -> Iterator[Tails]:
    """Follow the log of ``tracked``."""
    source, manifest = step.source, step.manifest
    assert isinstance(source, ReadsAgain)
    by_start: dict[str, list[TrackedTable]] = {}
    for one in tracked:
        by_start.setdefault(_base_position(manifest, one), []).append(one)
    with ExitStack() as stack:
        tails = [
            stack.enter_context(source.follow(start or manifest.initial_position, manifest.identity, own))
            for start, own in (by_start or {"": []}).items()
        ]
        yield Tails(tails)


def _base_position(manifest: Manifest, one: TrackedTable) -> str:
    base = manifest.tables[one.index].base
    return manifest.bases[base].position if base else ""
