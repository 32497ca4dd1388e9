"""Writes manifests of position-delete files. PyIceberg 0.12 reads such manifests, and cannot write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.manifest import ManifestWriterV2 as _ManifestWriter
from pyiceberg.table.update.snapshot import _SnapshotProducer

MERGED_AT = 8
"""The number of small manifests that are merged into one."""


class DeleteManifestWriter(_ManifestWriter):
    """Writes one manifest of position-delete files, for tables of format version 2."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_entries(io: FileIO, manifests: Iterable[ManifestFile]) -> dict[str, list[ManifestEntry]]:
    """Return the delete files that manifests name, by the path of the manifest. Manifests of data files are left
    out."""
    return {
        manifest.manifest_path: manifest.fetch_manifest_entry(io, discard_deleted=True)
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
    }


def replace_deletes(
    producer: _SnapshotProducer[Any],
    manifests: Sequence[ManifestFile],
    entries: Mapping[str, Sequence[ManifestEntry]],
    kept: Iterable[str],
    added: Sequence[DataFile],
) -> list[ManifestFile]:
    """Return the delete manifests of a new snapshot: those of its parent, without the removed delete files, and with
    the added ones.

    :param manifests: the manifests of the parent.
    :param entries: the result of `delete_entries` for ``manifests``.
    :param kept: the URIs of the delete files that stay as they are. These files also keep their sequence numbers.
    :param added: the delete files to add. Their sequence number is higher than that of all data files of the parent.
    """
    kept = set(kept)
    unchanged: list[ManifestFile] = []
    remaining: list[ManifestEntry] = []
    removed: list[ManifestEntry] = []
    present = [manifest for manifest in manifests if manifest.content == ManifestContent.DELETES]
    for manifest in present:
        files = entries[manifest.manifest_path]
        stays = [entry for entry in files if entry.data_file.file_path in kept]
        if files and len(stays) == len(files) and len(present) < MERGED_AT:
            unchanged.append(manifest)
            continue
        remaining += stays
        removed += [entry for entry in files if entry.data_file.file_path not in kept]
    # If a file is removed and added again, only its sequence number changes. Some programs delete the files of removed
    # entries. They must not delete this file.
    spec_id = producer._transaction.table_metadata.default_spec_id
    again = {record.file_path for record in added}
    changes = [
        *(_entry(producer, ManifestEntryStatus.EXISTING, entry) for entry in remaining),
        *(
            _entry(producer, ManifestEntryStatus.DELETED, entry)
            for entry in removed
            if entry.data_file.file_path not in again and entry.data_file.spec_id == spec_id
        ),
        *(_added(producer, record) for record in added),
    ]
    return [*unchanged, *([_written(producer, changes)] if changes else [])]


def _written(producer: _SnapshotProducer[Any], changes: Sequence[ManifestEntry]) -> ManifestFile:
    metadata = producer._transaction.table_metadata
    with DeleteManifestWriter(
        metadata.spec(),
        metadata.schema(),
        producer.new_manifest_output(),
        producer.snapshot_id,
        producer._compression,
    ) as writer:
        for entry in changes:
            writer.add_entry(entry)
    return writer.to_manifest_file()


def _entry(producer: _SnapshotProducer[Any], status: ManifestEntryStatus, entry: ManifestEntry) -> ManifestEntry:
    is_deleted = status == ManifestEntryStatus.DELETED
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=producer.snapshot_id if is_deleted else entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _added(producer: _SnapshotProducer[Any], record: DataFile) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=producer.snapshot_id,
        # The catalog assigns the sequence number of the snapshot.
        sequence_number=None,
        file_sequence_number=None,
        data_file=record,
    )
