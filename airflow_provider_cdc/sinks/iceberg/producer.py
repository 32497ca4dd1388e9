"""Makes a snapshot of an Iceberg table that has exactly the data files that a run publishes.

This module uses private classes of PyIceberg 0.12, so ``pyproject.toml`` pins this version.
``tests/sinks/iceberg/test_pyiceberg_members.py`` checks each member that is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import cast

from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles

MERGED_AT = 8
"""The number of small manifests that are merged into one."""
_MANIFEST_BYTES = 8 * 2**20


class ReplaceFiles(_OverwriteFiles):
    """Makes one snapshot that removes data files from the head of a branch, and adds other data files.

    Without a branch, the snapshot has no parent and only the added files.

    :param name: the text that the names of the snapshot's manifests contain.
    """

    def __init__(self, transaction: Transaction, properties: Mapping[str, str], branch: str | None, name: str) -> None:
        has_rows = branch is not None and transaction.table_metadata.snapshot_by_name(branch) is not None
        super().__init__(
            operation=Operation.OVERWRITE if has_rows else Operation.APPEND,
            transaction=transaction,
            io=transaction._table.io,
            # PyIceberg uses this value only as a part of file names.
            commit_uuid=cast(uuid.UUID, name),
            branch=branch,
            snapshot_properties=dict(properties),
        )

    def _current_branch_head_id(self) -> int | None:
        # PyIceberg would treat a missing branch as the main branch.
        return None if self._target_branch is None else super()._current_branch_head_id()

    def _existing_manifests(self) -> list[ManifestFile]:
        return [] if self._target_branch is None else super()._existing_manifests()

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        # Drop the delete files, which other programs wrote: with them, the snapshot would lack some rows of its data
        # files.
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        merger: _ManifestMergeManager[_OverwriteFiles] = _ManifestMergeManager(_MANIFEST_BYTES, MERGED_AT, True, self)
        merged = merger.merge_manifests(data)
        # Some manifests were written for this snapshot and then merged into others. No snapshot names them.
        named = {manifest.manifest_path for manifest in merged}
        for path in self._written_manifests:
            if path not in named:
                with suppress(Exception):
                    self._io.delete(path)
        return merged

    def produced(self) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        """Write the manifests, and return the updates and requirements to commit."""
        updates, requirements = self._commit()
        return updates, requirements


def data_files_of(transaction: Transaction, snapshot: Snapshot | None) -> dict[str, DataFile]:
    """Return the data files of a snapshot, by URI."""
    if snapshot is None:
        return {}
    io = transaction._table.io
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in snapshot.manifests(io)
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
        if entry.data_file.content == DataFileContent.DATA
    }


def replace_files(
    transaction: Transaction,
    properties: Mapping[str, str],
    wanted: Mapping[str, DataFile | None],
    branch: str | None,
    known: Iterable[Snapshot] = (),
    name: str = "",
) -> tuple[int, tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Make a snapshot whose data files are exactly ``wanted``.

    :param wanted: the records of the files, by URI. None: the head of the branch or one of the ``known`` snapshots has
        the record.
    :param branch: the branch whose head the snapshot becomes; None: the snapshot is on no branch, and only a tag names
        it.
    :param name: the prefix of the names of the snapshot's manifests.
    :raises KeyError: the record of a file is in none of the snapshots.
    """
    head = transaction.table_metadata.snapshot_by_name("main") if branch is not None else None
    present = data_files_of(transaction, head)
    missing = [uri for uri, record in wanted.items() if record is None and uri not in present]
    earlier: dict[str, DataFile] = {}
    for snapshot in known if missing else ():
        earlier.update(data_files_of(transaction, snapshot))
    producer = ReplaceFiles(transaction, properties, branch, f"{name}{uuid.uuid4().hex}")
    for uri, record in present.items():
        if uri not in wanted:
            producer.delete_data_file(record)
    for uri, wanted_record in wanted.items():
        if uri not in present:
            producer.append_data_file(wanted_record if wanted_record is not None else earlier[uri])
    updates, requirements = producer.produced()
    return producer.snapshot_id, updates, requirements
