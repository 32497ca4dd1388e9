"""Finds the files that a table's snapshots name, and deletes files that no snapshot names."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.sinks.iceberg.catalog import folder_of

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
