"""Makes Iceberg's records of data files. The tasks recorded all facts when they wrote the files, so publishing opens no
file."""

from __future__ import annotations

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from airflow_provider_cdc.core.parquet.file_stats import FileStats
from airflow_provider_cdc.core.parquet.partitions import decode_partition
from airflow_provider_cdc.core.parquet.position_deletes import PATH_ID
from airflow_provider_cdc.core.run.staging import StagedFile


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
