"""The private files of a run. Only the steps of the run read these files.

Tasks on any machine write these files. A task that fails or runs twice may leave files behind, so a file is valid only
if a record names it. When files are published, the sink of the run moves or copies them to their final place.
"""

from __future__ import annotations

import sys
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.splice import SplicedFile
from airflow_provider_cdc.core.parquet.writer import COMPRESSION, ParquetWriter, StagedFile, write_empty
from airflow_provider_cdc.core.storage.filesystems import convert_store_errors
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import PartitionField
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import FileDamaged

__all__ = ["StagedFile", "Staging", "difference"]

_CHECKED_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Staging:
    """The private files of a run, in ``folder``. The object is sent to executors.

    ``compression`` is the codec of the files that may be published (`core.options.lake.LakeOptions.compression`).
    """

    folder: Storage
    compression: str = COMPRESSION

    @contextmanager
    def writer(
        self,
        name: str,
        schema: pa.Schema,
        compression: str = "",
        *,
        one_file: bool = False,
        digests: bool = False,
        key: str = "",
    ) -> Iterator[ParquetWriter]:
        """Write rows to files whose names begin with ``name``. If an error is raised, the written files are not valid.

        :param compression: `QUICKEST` if only the run itself reads the files. Empty: the codec of published files.
        :param one_file: write one file, however large it becomes.
        :param digests: and ``key``: as in `ParquetWriter`.
        """
        most: dict[str, Any] = {"file_bytes": sys.maxsize} if one_file else {}
        codec = compression or self.compression
        writer = ParquetWriter(self.folder, _own(name), schema, **most, compression=codec, digests=digests, key=key)
        yield from _written(self.folder, name, writer)

    @contextmanager
    def partitioned_writer(
        self, name: str, schema: pa.Schema, fields: Sequence[PartitionField], key: str = ""
    ) -> Iterator[ParquetWriter]:
        """Write rows to files, as `writer` does with ``digests``, each with rows of one partition.

        :raises ConfigurationError: the rows belong to too many partitions.
        """
        # Import the compiled kernels late, because readers of a lake import this module, too.
        from airflow_provider_cdc.core.parquet.partitions import PartitionedWriter

        writer = PartitionedWriter(self.folder, _own(name), schema, fields, self.compression, digests=True, key=key)
        yield from _written(self.folder, name, writer)

    @contextmanager
    def spliced(
        self, name: str, schema: pa.Schema, folder: Storage, source: str, key: str = ""
    ) -> Iterator[SplicedFile]:
        """Write a file with most of the content of the file ``source`` in ``folder``. The name of the new file begins
        with ``name``. If an error is raised, the new file is not valid.

        :raises UnknownFooter: the source file cannot be spliced; nothing was written.
        """
        with convert_store_errors(self.folder.uri_of(name)):
            own = f"{_own(name)}-0.parquet"
            file = SplicedFile(self.folder, own, schema, folder, source, key, self.compression)
            try:
                yield file
            except BaseException:
                file.abort()
                raise

    def write_empty(self, name: str, schema: pa.Schema) -> StagedFile:
        """Write a file without rows, which shows the schema of an empty table. The name of the file begins with
        ``name``."""
        return write_empty(self.folder, f"{_own(name)}.parquet", schema, self.compression)

    def difference(self, file: StagedFile) -> str:
        """Read a whole file, and return how it differs from its record. The result is empty if the file does not
        differ."""
        return difference(self.folder, file.name, file)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert the error of a missing file to `FileDamaged`. Files are checked before they are used. So a file that
        is missing later was removed, and a retry cannot help. The file may also be missing because a concurrent attempt
        has published it. The caller must check this.

        :raises FileDamaged: a file is missing.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise FileDamaged(
                f"a file is gone: {error}", where=self.folder.uri, hint="the file was removed: trigger a new run"
            ) from error


def _written(folder: Storage, name: str, writer: ParquetWriter) -> Iterator[ParquetWriter]:
    """Yield a writer, and close it. After an error, abort it."""
    try:
        # The caller may read rows from the source in this context. The source raises CdcErrors. `told` does not convert
        # these errors.
        with convert_store_errors(folder.uri_of(name)):
            yield writer
            writer.close()
    except BaseException:
        writer.abort()
        raise


def _own(name: str) -> str:
    """Return a file name that no other try uses."""
    return f"{name}-{uuid.uuid4().hex[:16]}"


def difference(folder: Storage, name: str, file: StagedFile) -> str:
    """Return how the file ``name`` in ``folder`` differs from its record ``file``. The result is empty if the file does
    not differ."""
    try:
        return _difference(folder, name, file)
    except FileNotFoundError:
        return "it is gone"


def _difference(storage: Storage, name: str, file: StagedFile) -> str:
    crc = size = 0
    with convert_store_errors(storage.uri_of(name)):
        with storage.filesystem.open_input_stream(storage.path(name), buffer_size=0) as stream:
            while block := stream.read(_CHECKED_BYTES):
                crc = zlib.crc32(block, crc)
                size += len(block)
        if size != file.bytes:
            return f"it has {format_count(size, 'byte')}, not {file.bytes:,}"
        if f"{crc:08x}" != file.checksum:
            return f"its checksum is {crc:08x}, not {file.checksum}"
        try:
            rows = pq.read_metadata(storage.path(name), filesystem=storage.filesystem).num_rows
        except pa.ArrowException as error:
            return f"it is not a Parquet file: {error}"
    return "" if rows == file.rows else f"it has {format_count(rows, 'row')}, not {file.rows:,}"
