"""The stretches of log that a run spools: one for the present manifest, and one for each earlier manifest with reads
that still count.

The present manifest needs the log from its position up to the end of the reads. The earlier reads need no more log at
this position. But the run may move to a later position once more, and then they need the log up to there. So their
log is recorded, too, from the position of the present manifest on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_cdc.core.kinds import parse_position
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.spool_chain import Chain, Link, reaching
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.spool.kept_pieces import chain_of, pieces_of
from airflow_provider_cdc.jobs.spool.piece import tracked_for, tracked_table
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import TrackedTable


@dataclass
class Line:
    """A stretch of log that is spooled, and its pieces.

    ``source`` is the source as of the manifest of the reads, which has the position ``initial``. ``begins`` is the
    piece after which the chain begins; None: the chain begins at ``initial``. ``identity`` returns what the checks of
    the source expect. ``tracked`` returns the tables of a piece with this bound. ``last`` is the time of the last
    piece. ``obstacle`` is the reason why the log cannot be read now.
    """

    chain: Chain
    source: Source
    initial: Position
    begins: Link | None
    identity: Callable[[], dict[str, str]]
    tracked: Callable[[Position], tuple[TrackedTable, ...]]
    last: float = field(default_factory=time.monotonic)
    obstacle: str = ""

    def refresh(self) -> Link | None:
        """Return the last recorded piece; None: there is none."""
        links = self.chain.refresh()
        return links[-1] if links else self.begins


def present_line(step: Step) -> Line:
    """Return the line of the tables that are read under the present manifest."""
    return Line(
        Chain(step.folder, step.run.digest),
        step.source,
        step.manifest.initial,
        None,
        step.run.expected_identity,
        lambda upper: tracked_for(step.manifest, upper),
    )


def earlier_lines(step: Step) -> list[Line]:
    """Return the lines of the tables that were read under earlier manifests, if their log was recorded so far."""
    return [line for key in sorted(step.manifest.earlier_reads) if (line := _earlier_line(step, key)) is not None]


def _earlier_line(step: Step, key: str) -> Line | None:
    reads = step.manifest.earlier_reads[key]
    pieces = pieces_of(step, reads)
    if pieces is None:
        return None
    chain, initial = chain_of(step, key), parse_position(step.manifest.kind, reads.position)
    tables = [entry.table for entry in step.tables if entry.read_in == key]

    def identity() -> dict[str, str]:
        return reaching(reads.identity, chain.last() or pieces.links[-1])

    def tracked(upper: Position) -> tuple[TrackedTable, ...]:
        return tuple(tracked_table(pieces.tables[str(table.name)], table, upper) for table in tables)

    return Line(chain, step.source.of_run(identity(), initial), initial, pieces.links[-1], identity, tracked)
