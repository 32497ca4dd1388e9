"""The files with the rows that the snapshot step read, by table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.jobs.reads.unrepresentable_rows import OddRow
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.window import UpperBound

_RECORD = "chunks/files"
"""The prefix of the names of the records with these files."""


@dataclass(frozen=True)
class Unit:
    """A range of a keyless table, and the exact position of its read, as text."""

    within: ValueRange
    upper: str


@dataclass(frozen=True)
class ReadFiles:
    """The files with the rows that were read from one table. ``upper`` is the exact position of the read, as text;
    empty: the table does not need an exact position, or its ranges were read at several positions (``units``). ``odd``
    are the rows with values that no Arrow type holds (`unrepresentable_rows`). ``ended`` is an end of the log after the
    end of the read (`EndsOfReads`). Empty: unknown."""

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


def read_table_files(run: Run) -> dict[str, ReadFiles]:
    """Return the files of the tables that were read, by table.

    :raises ManifestError: the step is not done.
    """
    return read_record(run, run.result_of(SnapshotResult).record)


def write_record(run: Run, files: Mapping[str, ReadFiles]) -> str:
    """Record the files of tables, by name. Return the name of the record."""
    return records.write_named(run.folder, _RECORD, dict(files))


def read_record(run: Run, name: str) -> dict[str, ReadFiles]:
    """Return the files in the record ``name``, by table."""
    return records.read_named(dict[str, ReadFiles], run.folder, name)


# The finished reads of tables that the run has kept when it moved.


def files_of_bases(step: Step) -> dict[str, ReadFiles]:
    """Return the files of the tables that were read before the run moved to its present position."""
    bases = {str(entry.table.name): entry.basis for entry in step.tables if entry.basis is not None}
    read = {name: read_record(step.run, name) for name in {basis.record for basis in bases.values()}}
    return {name: read[basis.record][name] for name, basis in bases.items()}


def nulled_of_bases(step: Step) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the number of values of each column that these reads turned into null, by table."""
    yield from ((str(entry.table.name), entry.basis.nulled) for entry in step.tables if entry.basis is not None)


def undone(step: Step, bound: UpperBound | None = None) -> dict[str, str]:
    """Return the tables whose finished reads a restart of the server may have undone, each with the reason.

    :param bound: the bound of the reads under the present manifest. None: nothing was read under this manifest.
    """
    bases = {str(entry.table.name): entry.basis for entry in step.tables if entry.basis is not None}
    if not bases:
        return {}
    bound = bound or retry("snapshot: check the earlier reads", step.source.bound_reads)
    lost = [name for name, basis in bases.items() if basis.incarnation != bound.incarnation]
    return dict.fromkeys(lost, "the server restarted after the table was read")


def with_ends(step: Step, read: Mapping[str, ReadFiles]) -> dict[str, ReadFiles]:
    """Return the files of the tables, by name, each with the noted end."""
    return {name: replace(files, ended=step.ends.get(name, "")) for name, files in read.items()}
