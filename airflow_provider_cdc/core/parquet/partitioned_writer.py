"""Writes rows of a partitioned table: each file has rows of one partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_provider_cdc.core.parquet.file_stats import FileStats
from airflow_provider_cdc.core.parquet.partitions import PartitionValue, described, divided, encode_partition
from airflow_provider_cdc.core.parquet.writer import ROW_GROUP_BYTES, ParquetWriter, StagedFile
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.layout import PartitionField
from airflow_provider_cdc.errors import ConfigurationError

MOST_PARTITIONS = 200
"""The maximum number of partitions whose rows one task writes. Each has an open file."""
PENDING_BYTES = 2 * ROW_GROUP_BYTES
"""The maximum size, in Arrow bytes, of the rows that are not written yet, in all partitions together."""


class PartitionedWriter(ParquetWriter):
    """A `ParquetWriter` that writes the rows of each partition to separate files.

    :param run: the folder that ``name`` is relative to.
    :param name: the prefix of the names of the files.
    :param schema: the schema of the files.
    :param fields: the partitioning, by columns of ``schema``.
    :param digests: and ``key``: as in `ParquetWriter`.
    """

    def __init__(
        self,
        run: Storage,
        name: str,
        schema: pa.Schema,
        fields: Sequence[PartitionField],
        *,
        digests: bool = False,
        key: str = "",
    ) -> None:
        super().__init__(run, name, schema, digests=digests, key=key)
        self._fields = fields
        self._writers: dict[tuple[PartitionValue, ...], ParquetWriter] = {}

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        for values, part in divided(rows.cast(self._schema), self._fields):
            self._writer(values).write(part)
            while sum(writer.pending_bytes for writer in self._writers.values()) > PENDING_BYTES:
                max(self._writers.values(), key=lambda writer: writer.pending_bytes).flush()

    def _writer(self, values: tuple[PartitionValue, ...]) -> ParquetWriter:
        if values not in self._writers:
            if len(self._writers) == MOST_PARTITIONS:
                raise ConfigurationError(
                    f"a task has rows of more than {MOST_PARTITIONS} partitions (partition_by: "
                    f"{described(self._fields)}), and each needs a file",
                    where=self._run.uri,
                    hint="choose fewer partitions: month(…) or year(…) in place of day(…), or fewer buckets",
                )
            name = f"{self._name}-p{len(self._writers)}"
            self._writers[values] = ParquetWriter(
                self._run, name, self._schema, self._file_bytes, digests=self._digests, key=self._key
            )
        return self._writers[values]

    def close(self) -> None:
        for values, writer in self._writers.items():
            writer.close()
            self.files += [_in_partition(file, values) for file in writer.files]

    def abort(self) -> None:
        for writer in self._writers.values():
            writer.abort()


def _in_partition(file: StagedFile, values: Sequence[PartitionValue]) -> StagedFile:
    stats = FileStats.decoded(file.stats)
    return replace(file, stats=replace(stats, partition=encode_partition(values)).encoded())
