"""Marks copies that are being removed. The marks of a copy are in the folder of the run that made the copy.

A mark belongs to one manifest. If a run is recreated with the same id, the new manifest has new copies, and earlier
marks do not apply to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.names import folder_name
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ManifestError

MARKS = "removed"
_MARK = "mark.json"
_DIGITS = 16


@dataclass(frozen=True)
class Mark:
    """A mark says that the run with the id ``by`` removes a copy. ``since`` is the time of the mark (ISO 8601)."""

    table: str
    by: str
    since: str


def mark(run: Run, table: TableName, by: str) -> None:
    """Mark a run's copy of a table permanently as removed."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    # Use a folder for each table, because the longest table name plus a file extension is too long for a file name.
    name = f"{_marks_of(run)}/{folder_name(table)}/{_MARK}"
    # The first mark counts, because no new reader has been directed to the copy since the time of the first mark.
    if not run.folder.exists(name):
        records.write(run.folder, name, Mark(str(table), by, since))


def marked_since(run: Run, table: TableName) -> datetime:
    """Return the time at which a run's copy of a table was marked.

    :raises ManifestError: the copy is not marked.
    """
    name = f"{_marks_of(run)}/{folder_name(table)}/{_MARK}"
    return datetime.fromisoformat(records.read(Mark, run.folder, name).since)


def check_not_removed(run: Run, tables: Iterable[TableName]) -> None:
    """Check that a run's copies of ``tables`` are not marked as removed.

    :raises ManifestError: a copy is being removed, or was removed.
    """
    marked = marked_folders(run)
    for table in tables:
        if folder_name(table) in marked:
            raise ManifestError(
                f"the copy of {table} was removed: a later run keeps only the newest copies",
                where=run.folder.uri,
                hint="trigger a new run; if you still need older copies, increase the option `keep`",
            )


def _marks_of(run: Run) -> str:
    return f"{MARKS}/{run.digest[:_DIGITS]}"


def marked_folders(run: Run) -> set[str]:
    """Return the folder names of the tables whose copies are marked as removed."""
    # Earlier versions of this package wrote marks to a path that does not contain the manifest's digest.
    names = [name for place in (_marks_of(run), MARKS) for name in run.folder.folders(place)]
    return {name.rpartition("/")[2] for name in names if _is_mark(run.folder, name)}


def has_marks(folder: Storage) -> bool:
    """Return whether a folder has any mark. The folder may be the remainder of a run's folder."""
    return any(
        _is_mark(folder, name) or any(_is_mark(folder, subfolder) for subfolder in folder.folders(name))
        for name in folder.folders(MARKS)
    )


def _is_mark(folder: Storage, name: str) -> bool:
    # Some object stores still list folders that are empty.
    return folder.exists(f"{name}/{_MARK}")
