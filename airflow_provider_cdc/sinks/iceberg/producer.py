"""One snapshot of an Iceberg table whose data files are exactly those that a run publishes.

It builds on private classes of PyIceberg 0.12, which ``pyproject.toml`` pins for that reason;
``tests/sinks/iceberg/test_pyiceberg_members.py`` has each member that is used.
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
"""So many small manifests become one."""
_MANIFEST_BYTES = 8 * 2**20


class ReplaceFiles(_OverwriteFiles):
    """Drops data files of the head of a branch, and adds others, in one snapshot.

    Without a branch, the snapshot has no parent, and only the added files.

    :param name: that the names of its manifests contain.
    """

    def __init__(self, transaction: Transaction, properties: Mapping[str, str], branch: str | None, name: str) -> None:
        has_rows = branch is not None and transaction.table_metadata.snapshot_by_name(branch) is not None
        super().__init__(
            operation=Operation.OVERWRITE if has_rows else Operation.APPEND,
            transaction=transaction,
            io=transaction._table.io,
            # PyIceberg only ever puts it into names.
            commit_uuid=cast(uuid.UUID, name),
            branch=branch,
            snapshot_properties=dict(properties),
        )

    def _current_branch_head_id(self) -> int | None:
        # PyIceberg takes no branch for the main one.
        return None if self._target_branch is None else super()._current_branch_head_id()

    def _existing_manifests(self) -> list[ManifestFile]:
        return [] if self._target_branch is None else super()._existing_manifests()

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        # Delete files are foreign ones: with them, the rows would not be exactly those of the data files.
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        merger: _ManifestMergeManager[_OverwriteFiles] = _ManifestMergeManager(_MANIFEST_BYTES, MERGED_AT, True, self)
        merged = merger.merge_manifests(data)
        # No snapshot names the manifests that were written for this snapshot and merged at once.
        named = {manifest.manifest_path for manifest in merged}
        for path in self._written_manifests:
            if path not in named:
                with suppress(Exception):
                    self._io.delete(path)
        return merged

    def produced(self) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        """Write the manifests, and return what a catalog commits."""
        updates, requirements = self._commit()
        return updates, requirements


def data_files_of(transaction: Transaction, snapshot: Snapshot | None) -> dict[str, DataFile]:
    """The data files of a snapshot, by their URI."""
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

    :param wanted: by URI; None: the file's record is in the head of the branch or in one of the ``known`` snapshots.
    :param branch: that it becomes the head of; None: of none, so that only a tag names it.
    :param name: begins the names of its manifests.
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
