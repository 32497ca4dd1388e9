"""Files of Iceberg tables: their records, their names in snapshots, and the removal of files that no snapshot names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
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
