"""Records the older copies and runs that a run removed. The record is in the run's folder; the run's report and XComs
use it."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage

_RECORD = "retention.json"


@dataclass(frozen=True)
class Removed:
    """The copies and runs that a run removed: ``copies`` has URIs by the table's name, ``runs`` the ids of the runs.
    ``left`` says why old copies were kept, by their URIs."""

    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)


def note_removed(run: Run, removed: Removed) -> None:
    """Add the copies and runs that this try removed to the record of earlier tries."""
    before = read_removed(run.folder)
    tables = before.copies.keys() | removed.copies.keys()
    copies = {name: (*before.copies.get(name, ()), *removed.copies.get(name, ())) for name in sorted(tables)}
    records.write(run.folder, _RECORD, Removed(copies, (*before.runs, *removed.runs), removed.left))


def read_removed(folder: Storage) -> Removed:
    """Return the copies and runs that the run in ``folder`` removed.

    :raises ManifestError: the record is damaged.
    """
    return records.read(Removed, folder, _RECORD) if folder.exists(_RECORD) else Removed()
