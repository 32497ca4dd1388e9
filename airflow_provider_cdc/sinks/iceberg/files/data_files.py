"""Makes Iceberg's records of data files. The tasks recorded all facts when they wrote the files, so publishing opens no
file."""

from __future__ import annotations

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from airflow_provider_cdc.core.parquet.file_stats import FileStats
from airflow_provider_cdc.core.parquet.partitions import decode_partition
from airflow_provider_cdc.core.parquet.position_deletes import PATH_ID
from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.sinks.base import TableChange
from airflow_provider_cdc.sinks.iceberg.tables.table import recorded_location, recorded_spec_id

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
