"""Writes the timeline of the reads, which the report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from airflow_provider_cdc.core.run.timeline import Bar, write_timeline
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.parts import Part
from airflow_provider_cdc.jobs.snapshot.read_part import PartRecord


def note_timeline(step: Step, parts: Sequence[Part], done: Mapping[int, PartRecord]) -> None:
    """Write one bar for each part that was read."""
    read = ((str(step.tables[part.table].table.name), part, done[part.number]) for part in parts if part.number in done)
    bars = [
        Bar(name, part.number, record.lane, record.began, record.seconds, record.rows, record.bytes)
        for name, part, record in read
        if record.began
    ]
    # The timeline is only for the report, so a failure to write it does not fail the step.
    with suppress(CdcError, OSError):
        write_timeline(step.folder, bars)
