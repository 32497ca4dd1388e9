"""Orders for tasks that roll copies forward."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.jobs.consolidate.rewind import Rewind
from airflow_provider_cdc.jobs.roll_forward.key_ranges import Range


@dataclass(frozen=True)
class Target:
    """Where rows go: into ``file`` of the copy before (None: into a new one) those in ``range``; None: none."""

    file: StagedFile | None
    range: Range | None


@dataclass(frozen=True)
class Roll:
    """An order: take the touched rows out of these files of one table's copy, and put in the rows that go there: those
    of ``layers``, the lowest first, if touched rows were read again (None: they were not)."""

    table: int
    targets: tuple[Target, ...]
    layers: tuple[Rewind, ...] | None = None

    @property
    def bytes(self) -> int:
        return sum(target.file.bytes for target in self.targets if target.file is not None)
