"""Records beside copies: removals in progress, removed copies, and noted damage"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.errors import ManifestError

# Marks copies that are being removed. The marks of a copy are in the folder of the run that made the copy.
#
# A mark belongs to one manifest. If a run is recreated with the same id, the new manifest has new copies, and earlier
# marks do not apply to them.


MARKS = "removed"
_MARK = "mark.json"
_DIGITS = 16


@dataclass(frozen=True)
class RemovalMark:
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
        records.write(run.folder, name, RemovalMark(str(table), by, since))


def marked_since(run: Run, table: TableName) -> datetime:
    """Return the time at which a run's copy of a table was marked.

    :raises ManifestError: the copy is not marked.
    """
    name = f"{_marks_of(run)}/{folder_name(table)}/{_MARK}"
    return datetime.fromisoformat(records.read(RemovalMark, run.folder, name).since)


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
                hint="trigger a new run; if you still need older copies, increase `Retention.copies`",
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


# Records the older copies and runs that a run removed. The record is in the run's folder; the run's report and XComs
# use it.


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


# Damage notes. A note says that a published copy, or the log after the copy, is damaged. No later run rolls such a
# copy forward.
#
# The note is in the folder of the run that made the copy. A file can have the right size and footer, and still have
# wrong content. Damage of this kind is noticed only when the file is read. Damaged rows in the log are noticed only
# when the log is read. Without the note, each following run would use the same copy and stop at the same place.


@dataclass(frozen=True)
class Damage:
    """The damage of a table's copy: a description, and the URI of the file or the place in the log."""

    table: str
    what: str
    file: str


def note_damage(folder: Storage, table: TableName, what: str, file: str) -> None:
    """Write a damage note in the folder of a run. The note says that a file of the run's copy, or the log after the
    copy, is damaged."""
    records.write(folder, _name(table), Damage(str(table), what, file))


def damage_of(folder: Storage, table: TableName) -> str:
    """Return the known damage of a table's copy from the run in ``folder``; empty: no damage is known.

    :raises ManifestError: the note itself is damaged.
    """
    if not folder.exists(_name(table)):
        return ""
    note = records.read(Damage, folder, _name(table))
    return f"{note.what} ({note.file})"


def _name(table: TableName) -> str:
    # Use a folder for each table, because the longest table name plus a file extension is too long for a file name.
    return f"damaged/{folder_name(table)}/note.json"
