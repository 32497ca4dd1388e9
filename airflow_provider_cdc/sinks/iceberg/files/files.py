"""Lists and removes the files of Iceberg tables"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from airflow_provider_cdc.core.storage.folder import Storage, entries
from airflow_provider_cdc.sinks.base import StrayFile
from airflow_provider_cdc.sinks.iceberg.catalog import folder_of
from airflow_provider_cdc.sinks.iceberg.tables.table import DATA, METADATA

# Finds the files that a table's snapshots name, and deletes files that no snapshot names.


_DELETERS = 8


class NamedFiles:
    """Finds the files in a table's folder that the table's snapshots name. Each manifest is read once."""

    def __init__(self) -> None:
        self._manifests: dict[str, frozenset[str]] = {}

    def of(self, table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
        """Return the names of the manifest lists, the manifests, and the files that these manifests name. Names are
        relative to the table's folder."""
        uris: set[str] = set()
        for snapshot in snapshots:
            uris.add(str(snapshot.manifest_list))
            for manifest in snapshot.manifests(table.io):
                uris.add(manifest.manifest_path)
                if manifest.manifest_path not in self._manifests:
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    self._manifests[manifest.manifest_path] = frozenset(entry.data_file.file_path for entry in entries)
                uris |= self._manifests[manifest.manifest_path]
        prefix = f"{str(table.location()).rstrip('/')}/"
        return {uri.removeprefix(prefix) for uri in uris if uri.startswith(prefix)}


def delete_unnamed(table: Table, names: Iterable[str], named: NamedFiles | None = None) -> None:
    """Delete files in the table's folder, except files that a snapshot names. Files that no longer exist are
    ignored."""
    candidates, named = set(names), named or NamedFiles()
    # The newest snapshot usually names most of the candidates, and then no other snapshot has to be read.
    for snapshot in reversed(table.metadata.snapshots):
        if not candidates:
            return
        candidates -= named.of(table, [snapshot])
    folder = folder_of(table)
    with ThreadPoolExecutor(_DELETERS) as deleters:
        list(deleters.map(lambda name: _delete(folder, name), sorted(candidates)))


def _delete(folder: Storage, name: str) -> None:
    # Another attempt may delete the file at the same time.
    with suppress(FileNotFoundError):
        folder.delete_file(name)


# Finds the files of runs in a table's folder that no snapshot of the table names.
#
# Examples are the data files of a failed run, the manifests of an attempt whose commit was rejected, and the file
# without rows of an empty table. The name of such a file contains the id of its run. Files with other names are never
# listed.


_RUN = r"(?P<run>\d{8}T\d{6}Z-[0-9a-f]{8})"
_NAMES = {
    # `core.run.table_files` and `core.run.staging` name data files, `sinks.iceberg.files.producer` names metadata
    # files.
    DATA: re.compile(rf"part-[0-9a-z-]+-{_RUN}-[0-9a-f]{{16}}[-0-9p]*\.parquet"),
    METADATA: re.compile(rf"(?:snap-\d+-\d+-)?cdc-{_RUN}-[0-9a-f]{{32}}[-0-9a-z]*\.avro"),
}


def stray_files(table: Table) -> list[StrayFile]:
    """Return the files of runs in the folder of ``table`` that no snapshot names.

    :param table: the table in its present state. Files that a later commit names may be in the result.
    """
    folder = folder_of(table)
    files = [
        StrayFile(file.name, folder.uri_of(file.name), file.bytes, file.written, match["run"])
        for name, pattern in _NAMES.items()
        for file in entries(folder, name)
        if (match := pattern.fullmatch(file.name.rpartition("/")[2])) is not None
    ]
    named = NamedFiles().of(table, table.metadata.snapshots) if files else set()
    return [file for file in files if file.name not in named]
