"""Orders for tasks that roll copies forward."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.jobs.apply.key_ranges import Range
from airflow_provider_cdc.jobs.apply.rewind import Rewind


@dataclass(frozen=True)
class Target:
    """A file into which rows are written. ``file`` is a file of the base copy, or None for a new file. The added rows
    whose keys are in ``range`` are written into this file. If ``range`` is None, no rows are added."""

    file: StagedFile | None
    range: Range | None


@dataclass(frozen=True)
class Roll:
    """An order: remove the touched rows from the target files of one table, and add the rows that belong in these
    files.

    If touched rows were read again, the added rows come from ``layers``, the lowest layer first. Otherwise, ``layers``
    is None."""

    table: int
    targets: tuple[Target, ...]
    layers: tuple[Rewind, ...] | None = None

    @property
    def bytes(self) -> int:
        return sum(target.file.bytes for target in self.targets if target.file is not None)
