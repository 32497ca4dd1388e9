"""Makes a snapshot of an Iceberg table that has exactly the data files, and the deleted rows, that a run publishes.

This module uses private classes of PyIceberg 0.12, so ``pyproject.toml`` pins this version.
``tests/sinks/iceberg/test_pyiceberg_members.py`` checks each member that is used.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.manifest import ManifestWriterV2 as _ManifestWriter
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import (
    CHANGED_PARTITION_COUNT_PROP,
    Operation,
    Snapshot,
    Summary,
    UpdateMetrics,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles, _SnapshotProducer
from pyiceberg.typedef import Record

from airflow_provider_cdc.core.parquet.file_stats import FileStats
from airflow_provider_cdc.core.parquet.partitions import decode_partition
from airflow_provider_cdc.core.parquet.position_deletes import PATH_ID
from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage.folder import Storage, entries
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.sinks.base import StrayFile, TableChange
from airflow_provider_cdc.sinks.iceberg.catalog import folder_of
from airflow_provider_cdc.sinks.iceberg.table import DATA, METADATA, recorded_location, recorded_spec_id

# Writes manifests of position-delete files. PyIceberg 0.12 reads such manifests, and cannot write them.


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


_MANIFEST_BYTES = 8 * 2**20


class ReplaceFiles(_OverwriteFiles):
    """Makes one snapshot that removes data files and position deletes from the head of a branch, and adds others.

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

        self._kept_deletes: list[str] = []
        self._added_deletes: list[DataFile] = []
        self._removed_deletes: list[DataFile] = []

    def set_deletes(self, kept: Iterable[str], added: Iterable[DataFile]) -> None:
        """Determine the position-delete files of the snapshot. All others are removed.

        :param kept: the URIs of delete files of the head that stay as they are.
        :param added: the delete files to add. They apply to every data file that they name.
        """
        self._kept_deletes, self._added_deletes = list(kept), list(added)

    def _current_branch_head_id(self) -> int | None:
        # PyIceberg would treat a missing branch as the main branch.
        return None if self._target_branch is None else super()._current_branch_head_id()

    def _existing_manifests(self) -> list[ManifestFile]:
        return [] if self._target_branch is None else super()._existing_manifests()

    def _build_delete_files_partition_predicate(self) -> None:
        # Look for the removed files in all manifests. PyIceberg would choose manifests by predicates on the partitions.
        for spec_id in {file.spec_id for file in self._deleted_data_files}:
            self.partition_filters[spec_id] = AlwaysTrue()

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        merger: _ManifestMergeManager[_OverwriteFiles] = _ManifestMergeManager(_MANIFEST_BYTES, MERGED_AT, True, self)
        merged = merger.merge_manifests(data)
        # Some manifests were written for this snapshot and then merged into others. No snapshot names them.
        named = {manifest.manifest_path for manifest in merged}
        for path in self._written_manifests:
            if path not in named:
                with suppress(Exception):
                    self._io.delete(path)
        return [*merged, *self._delete_manifests()]

    def _delete_manifests(self) -> list[ManifestFile]:
        """Return the manifests of the delete files. Delete files that the copy does not name are removed from the
        snapshot, including delete files of other programs. If they stayed, readers of the snapshot would miss rows."""
        parent = self._parent_snapshot_id
        head = None if parent is None else self._transaction.table_metadata.snapshot_by_id(parent)
        manifests = [] if head is None else head.manifests(self._io)
        entries = delete_entries(self._io, manifests)
        kept = set(self._kept_deletes)
        self._removed_deletes = [
            entry.data_file for files in entries.values() for entry in files if entry.data_file.file_path not in kept
        ]
        return replace_deletes(self, manifests, entries, kept, self._added_deletes)

    def _summary(self, snapshot_properties: Mapping[str, str] = MappingProxyType({})) -> Summary:
        # PyIceberg counts the changed partitions by their names, and it fails to name dates and times outside Python's
        # years 1 to 9999.
        metrics = UpdateMetrics()
        added = [*self._added_data_files, *self._added_deletes]
        removed = [*self._deleted_data_files, *self._removed_deletes]
        for file in added:
            metrics.add_file(file)
        for file in removed:
            metrics.remove_file(file)
        counts = metrics.to_dict()
        if partitions := {(file.spec_id, file.partition) for file in (*added, *removed) if len(file.partition)}:
            counts[CHANGED_PARTITION_COUNT_PROP] = str(len(partitions))
        metadata, parent = self._transaction.table_metadata, self._parent_snapshot_id
        before = None if parent is None else metadata.snapshot_by_id(parent)
        return update_snapshot_summaries(
            Summary(operation=self._operation, **counts, **snapshot_properties), before.summary if before else None
        )

    def produced(self) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        """Write the manifests, and return the updates and requirements to commit.

        If the clock is behind that of an earlier writer, the snapshot gets the time of the last change. Catalogs and
        readers in Java refuse tables whose times go back.
        """
        updates, requirements = self._commit()
        earliest = self._transaction.table_metadata.last_updated_ms
        return tuple(_not_before(update, earliest) for update in updates), requirements


def _not_before(update: TableUpdate, earliest: int) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms >= earliest:
        return update
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"timestamp_ms": earliest}))


@dataclass(frozen=True)
class SnapshotFiles:
    """The data files and the delete files of a snapshot, by URI."""

    data: Mapping[str, ManifestEntry]
    deletes: Mapping[str, ManifestEntry]


def files_of(transaction: Transaction, snapshot: Snapshot | None) -> SnapshotFiles:
    """Return the files of a snapshot. If ``snapshot`` is None, there are no files."""
    io = transaction._table.io
    files: dict[ManifestContent, dict[str, ManifestEntry]] = {ManifestContent.DATA: {}, ManifestContent.DELETES: {}}
    for manifest in snapshot.manifests(io) if snapshot is not None else ():
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
            files[manifest.content][entry.data_file.file_path] = entry
    return SnapshotFiles(files[ManifestContent.DATA], files[ManifestContent.DELETES])


def replace_files(
    transaction: Transaction,
    properties: Mapping[str, str],
    wanted: Mapping[str, DataFile | None],
    branch: str | None,
    known: Iterable[Snapshot] = (),
    name: str = "",
    deletes: Mapping[str, DataFile] = MappingProxyType({}),
) -> tuple[int, tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
    """Make a snapshot whose data files are exactly ``wanted``, and whose delete files are exactly ``deletes``.

    A delete file applies to a data file only if the sequence number of the delete file is not less than the sequence
    number of the data file. If the head lost a data file, the data file is added again with a new sequence number. Then
    its delete file also needs a new sequence number. So a delete file stays unchanged only if the delete file and its
    data file are both in the head, and the delete file applies to the data file. Otherwise, the delete file is added
    again.

    :param wanted: the records of the files, by URI. If a record is None, it is read from the head of the branch or from
        one of the ``known`` snapshots.
    :param branch: the branch to which the snapshot is added as the new head. If it is None, the snapshot is on no
        branch, and only a tag names the snapshot.
    :param name: the prefix of the names of the snapshot's manifests.
    :param deletes: the records of the position-delete files, by the URI of the data file.
    :raises KeyError: the record of a file is in none of the snapshots.
    """
    head = transaction.table_metadata.snapshot_by_name("main") if branch is not None else None
    has_readable_head = True
    try:
        files = files_of(transaction, head)
    except FileNotFoundError:
        # The catalog was set back to a snapshot that was removed since, so the head cannot be read: do not build on
        # its manifests.
        has_readable_head, files = False, SnapshotFiles({}, {})
    present = files.data
    missing = [uri for uri, record in wanted.items() if record is None and uri not in present]
    earlier: dict[str, ManifestEntry] = {}
    for snapshot in known if missing else ():
        with suppress(FileNotFoundError):
            earlier.update(files_of(transaction, snapshot).data)
    parent = branch if has_readable_head else None
    producer = ReplaceFiles(transaction, properties, parent, f"{name}{uuid.uuid4().hex}")
    for uri, entry in present.items():
        if uri not in wanted:
            producer.delete_data_file(entry.data_file)
    for uri, wanted_record in wanted.items():
        if uri not in present:
            producer.append_data_file(wanted_record if wanted_record is not None else earlier[uri].data_file)
    kept = {record.file_path for uri, record in deletes.items() if _applies(files, uri, record.file_path)}
    producer.set_deletes(kept, [record for record in deletes.values() if record.file_path not in kept])
    updates, requirements = producer.produced()
    if head is not None and parent != branch:
        ref = {"ref-name": branch, "type": "branch", "snapshot-id": producer.snapshot_id}
        updates += (SetSnapshotRefUpdate.model_validate(ref),)
        requirements += (AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": head.snapshot_id}),)
    return producer.snapshot_id, updates, requirements


def _applies(files: SnapshotFiles, data_file: str, delete_file: str) -> bool:
    """Return whether a delete file of a snapshot applies to a data file of the snapshot."""
    data, deletes = files.data.get(data_file), files.deletes.get(delete_file)
    if data is None or deletes is None or data.sequence_number is None or deletes.sequence_number is None:
        return False
    return deletes.sequence_number >= data.sequence_number


# Files of Iceberg tables: their records, their names in snapshots, and the removal of files that no snapshot names.


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
    # `core.run.table_files` and `core.run.staging` name data files, `sinks.iceberg.producer` names metadata files.
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


# Makes Iceberg's records of data files. The tasks recorded all facts when they wrote the files, so publishing opens no
# file.


_DAMAGED = "something else than this provider changed it, or the storage lost it: trigger a new run"


def data_file(uri: str, file: StagedFile, spec_id: int = 0) -> DataFile:
    """Return Iceberg's record of the data file at ``uri``.

    :param spec_id: the id of the table's partition spec.
    """
    return _record(uri, file, FileStats.decoded(file.stats), DataFileContent.DATA, spec_id)


def delete_file(uri: str, file: StagedFile, of: str) -> DataFile:
    """Return Iceberg's record of a position-delete file. The table is not partitioned.

    :param of: the URI of the data file whose rows are deleted. Both bounds of ``file_path`` are the whole URI, so
        readers of other data files skip the delete file.
    """
    stats = FileStats.decoded(file.stats)
    stats.lower[PATH_ID] = stats.upper[PATH_ID] = of.encode()
    return _record(uri, file, stats, DataFileContent.POSITION_DELETES)


def _record(uri: str, file: StagedFile, stats: FileStats, content: DataFileContent, spec_id: int = 0) -> DataFile:
    record = DataFile.from_args(
        content=content,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=Record(*decode_partition(stats.partition)),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
        column_sizes=stats.sizes,
        value_counts=stats.values,
        null_value_counts=stats.nulls,
        nan_value_counts=None,
        lower_bounds=stats.lower,
        upper_bounds=stats.upper,
        key_metadata=None,
        split_offsets=stats.splits,
        equality_ids=None,
        sort_order_id=None,
    )
    record.spec_id = spec_id
    return record


def named_data_files(place: Place, change: TableChange) -> tuple[dict[str, DataFile | None], dict[str, DataFile]]:
    """Return the data files of a copy, and the delete files of these data files, by the URI of the data file.

    A file that the copy shares with its base has no entry of its own (None), because the table already has one.

    :raises FileDamaged: a file is missing, or has another size than its record.
    """
    folder = Storage(place.folder)
    present = folder.sizes()
    for file in (part for data in (*change.added, *change.kept) for part in data.parts):
        size = present.get(file.base_name)
        if size != file.bytes:
            # A program that removes orphan files may have deleted files of a run that waited for days.
            what = "is gone" if size is None else f"has {format_count(size, 'byte')}, not {file.bytes:,}"
            raise FileDamaged(f"the file {file.base_name} of this copy {what}", where=folder.uri, hint=_DAMAGED)
    location = recorded_location(place)
    wanted: dict[str, DataFile | None] = {f"{location}/{file.base_name}": None for file in change.kept if file.rows}
    for file in change.added:
        # Plain Parquet needs a file without rows to show the schema. An Iceberg table has the schema in its metadata.
        if file.rows:
            uri = f"{location}/{file.base_name}"
            wanted[uri] = data_file(uri, file, recorded_spec_id(place))
    deletes = {
        uri: delete_file(f"{location}/{file.deletes.base_name}", file.deletes, uri)
        for file in (*change.added, *change.kept)
        if file.deletes is not None and (uri := f"{location}/{file.base_name}") in wanted
    }
    return wanted, deletes
