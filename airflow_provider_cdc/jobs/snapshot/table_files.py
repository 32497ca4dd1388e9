"""The files with the rows that the snapshot step read, by table."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.jobs.snapshot.survivors import OddRow

FILES = "chunks/files"
"""The prefix of the names of the records with these files."""


@dataclass(frozen=True)
class Unit:
    """A range of a keyless table, and the exact position of its read, as text."""

    within: ValueRange
    upper: str


@dataclass(frozen=True)
class TableFiles:
    """The files with the rows that were read from one table. ``upper`` is the exact position of the read, as text;
    empty: the table does not need an exact position, or its ranges were read at several positions (``units``). ``odd``
    are the rows with values that no Arrow type holds (`survivors`). ``ended`` is an end of the log after the end of the
    read (`ends_of_reads`). Empty: unknown."""

    files: tuple[StagedFile, ...]
    upper: str
    odd: tuple[OddRow, ...] = ()
    units: tuple[Unit, ...] = ()
    ended: str = ""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def read_table_files(run: Run) -> dict[str, TableFiles]:
    """Return the files that the snapshot step read, by table. Reads of earlier manifests that still count are included.

    :raises ManifestError: the step is not done.
    """
    return read_record(run, run.found(SnapshotResult).record)


def read_record(run: Run, name: str) -> dict[str, TableFiles]:
    """Return the files in the record ``name``, by table."""
    return records.read_named(dict[str, TableFiles], run.folder, name)
