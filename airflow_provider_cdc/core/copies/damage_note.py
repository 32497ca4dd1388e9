"""Damage notes. A note says that a published copy, or the log after the copy, is damaged. No later run rolls such a
copy forward.

The note is in the folder of the run that made the copy. A file can have the right size and footer, and still have wrong
content. Damage of this kind is noticed only when the file is read. Damaged rows in the log are noticed only when the
log is read. Without the note, each following run would use the same copy and stop at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.names import folder_name
from airflow_provider_cdc.core.tables.table import TableName


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
