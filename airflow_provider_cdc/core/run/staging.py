"""The private files of a run: what its steps leave for each other, and nobody else reads.

Tasks on any machine write them, and a task that fails or runs twice leaves files behind that nobody names: a file
counts only once a record names it. A sink takes over those that are published.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.splice import SplicedFile
from airflow_provider_cdc.core.parquet.writer import COMPRESSION, ParquetWriter, StagedFile, write_empty
from airflow_provider_cdc.core.storage.errors import told
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import FileDamaged

__all__ = ["StagedFile", "Staging", "difference"]

_CHECKED_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Staging:
    """The private files in ``folder``, the run's own. It is sent to executors."""

    folder: Storage

    @contextmanager
    def writer(self, name: str, schema: pa.Schema, compression: str = COMPRESSION) -> Iterator[ParquetWriter]:
        """Write rows to files whose names begin with ``name``. On an error, nothing that was written counts.

        :param compression: `QUICKEST` if only the run itself reads them.
        """
        writer = ParquetWriter(self.folder, _own(name), schema, compression=compression)
        try:
            # What the caller reads its rows from has errors of its own kind.
            with told(self.folder.uri_of(name)):
                yield writer
                writer.close()
        except BaseException:
            writer.abort()
            raise

    @contextmanager
    def spliced(self, name: str, schema: pa.Schema, folder: Storage, source: str) -> Iterator[SplicedFile]:
        """Write a file whose name begins with ``name``, most of which is that of the file ``source`` in ``folder``. On
        an error, nothing that was written counts.

        :raises UnknownFooter: that cannot be done with this file; nothing was written.
        """
        with told(self.folder.uri_of(name)):
            file = SplicedFile(self.folder, f"{_own(name)}-0.parquet", schema, folder, source)
            try:
                yield file
            except BaseException:
                file.abort()
                raise

    def write_empty(self, name: str, schema: pa.Schema) -> StagedFile:
        """A file without rows, which shows readers the schema of a table that has none. ``name`` begins its name."""
        return write_empty(self.folder, f"{_own(name)}.parquet", schema)

    def difference(self, file: StagedFile) -> str:
        """Read a file from its first to its last byte, and say how it differs from its record; empty if it does not."""
        return difference(self.folder, file.name, file)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Files were seen to be whole before they are worked on. If one is not there any more no retry can help: a
        concurrent attempt may have published it, and the caller looks for that one.

        :raises FileDamaged: in place of what a missing file leads to.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise FileDamaged(
                f"a file is gone: {error}", where=self.folder.uri, hint="somebody removed it: trigger a new run"
            ) from error


def _own(name: str) -> str:
    """A name that no other try writes."""
    return f"{name}-{uuid.uuid4().hex[:16]}"


def difference(folder: Storage, name: str, file: StagedFile) -> str:
    """How the file ``name`` in ``folder`` differs from the record of ``file``; empty if it does not."""
    try:
        return _difference(folder, name, file)
    except FileNotFoundError:
        return "it is gone"


def _difference(storage: Storage, name: str, file: StagedFile) -> str:
    crc = size = 0
    with told(storage.uri_of(name)):
        with storage.filesystem.open_input_stream(storage.path(name), buffer_size=0) as stream:
            while block := stream.read(_CHECKED_BYTES):
                crc = zlib.crc32(block, crc)
                size += len(block)
        if size != file.bytes:
            return f"it has {counted(size, 'byte')}, not {file.bytes:,}"
        if f"{crc:08x}" != file.checksum:
            return f"its checksum is {crc:08x}, not {file.checksum}"
        try:
            rows = pq.read_metadata(storage.path(name), filesystem=storage.filesystem).num_rows
        except pa.ArrowException as error:
            return f"it is no Parquet file: {error}"
    return "" if rows == file.rows else f"it has {counted(rows, 'row')}, not {file.rows:,}"
