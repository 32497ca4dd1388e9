"""That a published copy, or the log that leads on from it, was found to be damaged: a note in the folder of the run
that made it, which no copy is rolled forward from any more.

A file can have its size and its footer, and still not be what was written: that shows only when it is read, and so do
damaged rows in the log. Without the note the next run would take the same copy, and stop in the same place, night after
night.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.names import folder_name
from airflow_provider_cdc.core.tables.table import TableName


@dataclass(frozen=True)
class Damage:
    """What is wrong with the copy of a table, and in which file (its URI), or where in the log."""

    table: str
    what: str
    file: str


def note_damage(folder: Storage, table: TableName, what: str, file: str) -> None:
    """Leave in a run's folder that a file of the copy that it made, or the log from there on, is damaged."""
    records.write(folder, _name(table), Damage(str(table), what, file))


def damage_of(folder: Storage, table: TableName) -> str:
    """What is known to be wrong with the copy that the run in ``folder`` made of a table; empty: nothing.

    :raises ManifestError: the note is damaged itself.
    """
    if not folder.exists(_name(table)):
        return ""
    note = records.read(Damage, folder, _name(table))
    return f"{note.what} ({note.file})"


def _name(table: TableName) -> str:
    # A folder for each table: with an ending, the longest name of a table would be too long for a file.
    return f"damaged/{folder_name(table)}/note.json"
