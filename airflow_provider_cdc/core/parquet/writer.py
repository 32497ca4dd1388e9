"""Writes rows of one table to Parquet files of bounded size, in bounded memory, and describes each file."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.core.digest.totals import Digest
from airflow_provider_cdc.core.options.declare import CODECS
from airflow_provider_cdc.core.parquet.file_stats import file_stats, key_range
from airflow_provider_cdc.core.parquet.lake_types import has_field_ids
from airflow_provider_cdc.core.storage.folder import Storage

FILE_BYTES = 128 * 2**20
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 * 2**20
"""The size of a row group, in Arrow bytes. This size limits the memory of one writer, which holds these bytes and at
most as many encoded bytes."""

COMPRESSION = CODECS[0]
"""The codec of data files, unless the option ``compression`` names another one."""
QUICKEST = "lz4"
"""A codec with which files are as small as with snappy, and faster to read. Older readers do not support this codec."""
_LEVELS = {"zstd": 1}
"""The levels of codecs that have levels."""

_SAMPLE_ROWS = 4096
_PAYS_BELOW = 1 / 8


@dataclass(frozen=True)
class StagedFile:
    """A finished file that is not published. ``name`` is relative to the run's folder, ``bytes`` is the size, and
    ``checksum`` is the CRC-32 of the content. No other try writes a file with this name. For a data file of a table
    format, ``name`` is relative to the folder of the table's data files, and ``stats`` is the encoded
    `file_stats.FileStats`.

    ``deletes`` is the file with the positions of the deleted rows of this file (`position_deletes`), or None if no row
    is deleted. ``rows`` counts deleted rows, too. If a copy takes over a data file, it also takes over the file's
    ``deletes``, because one record contains both.

    ``digest`` is the digest of the rows of a data file (`core.digest.totals.Digest.hex`), deleted ones included. For a
    file with deletes, it is the digest of the deleted rows. It is empty if it is not known: for files that only the run
    itself reads, and for files of earlier versions of this package. ``keys`` has the least and the greatest value of
    the first key column (`key_range.key_range`), or is empty.
    """

    name: str
    rows: int
    bytes: int
    checksum: str
    stats: str = ""
    deletes: StagedFile | None = None
    digest: str = ""
    keys: tuple[str, ...] = ()

    @property
    def base_name(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def live_rows(self) -> int:
        """The number of rows that are not deleted."""
        return self.rows - (self.deletes.rows if self.deletes is not None else 0)

    @property
    def parts(self) -> tuple[StagedFile, ...]:
        """The file, and the file with its deletes if there is one."""
        return (self,) if self.deletes is None else (self, self.deletes)


class ParquetWriter:
    """Writes row groups and files of bounded size. A new file begins after the row group that exceeds ``file_bytes``.

    Once the writer is closed, ``files`` is complete, and the files survive a crash. Without rows, ``files`` is empty.

    :param run: the folder that ``name`` is relative to.
    :param name: the prefix of the file names.
    :param schema: the schema of the files.
    :param compression: the codec, by its name in PyArrow.
    :param digests: whether to compute the digest of the rows of each file.
    :param key: the first key column, whose least and greatest value is noted; empty: none.
    """

    def __init__(
        self,
        run: Storage,
        name: str,
        schema: pa.Schema,
        file_bytes: int = FILE_BYTES,
        *,
        compression: str = COMPRESSION,
        digests: bool = False,
        key: str = "",
    ) -> None:
        self.files: list[StagedFile] = []
        self._run = run
        self._name = name
        self._schema = schema
        self._file_bytes = file_bytes
        self._compression = compression
        self._digests = digests
        self._key = key
        self._pending: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0
        self._open: _OpenFile | None = None

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Append rows. The rows must have the schema of the file."""
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        while rows.num_rows:
            # A batch may be larger than a row group, so it is cut.
            room = max(1, self._room(rows))
            self._append(rows.slice(0, room))
            rows = rows.slice(room)

    def _room(self, rows: pa.Table) -> int:
        per_row = max(1, int(rows.nbytes) // int(rows.num_rows))
        return min(ROW_GROUP_ROWS - self._rows, (ROW_GROUP_BYTES - self._bytes) // per_row)

    def _append(self, rows: pa.Table) -> None:
        self._pending.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    @property
    def pending_bytes(self) -> int:
        """The size, in Arrow bytes, of the rows that are not written yet."""
        return self._bytes

    def flush(self) -> None:
        """Write all rows that are not written yet, as one row group."""
        if not self._rows:
            return
        group = pa.concat_tables(self._pending).cast(self._schema)
        self._pending, self._rows, self._bytes = [], 0, 0
        if self._open is None:
            name = f"{self._name}-{len(self.files)}.parquet"
            self._open = _OpenFile(self._run, name, group, self._compression, digests=self._digests, key=self._key)
        self._open.write(group)
        if self._open.size >= self._file_bytes:
            self._roll()

    def _roll(self) -> None:
        if self._open is not None:
            self.files.append(self._open.close())
            self._open = None

    def close(self) -> None:
        self.flush()
        self._roll()
        if self.files:
            # The names of the files are durable only after an fsync of their folder.
            self._run.sync(self._name.rpartition("/")[0])

    def abort(self) -> None:
        self._pending = []
        if self._open is not None:
            self._open.abort()


class _OpenFile:
    def __init__(
        self,
        run: Storage,
        name: str,
        first: pa.Table,
        compression: str,
        *,
        digests: bool = False,
        key: str = "",
    ) -> None:
        self._run = run
        self._name = name
        self._key = key
        self._rows = 0
        self._digest: Digest | None = Digest() if digests else None
        run.make_folder(name.rpartition("/")[0])
        self._stream = CheckedStream(run.filesystem.open_output_stream(run.path(name)))
        self._metadata: list[pq.FileMetaData] = []
        self._schema = first.schema
        # By default, Arrow's writer first encodes every column with a dictionary, and then drops the dictionary of most
        # columns. This takes three times as long as all other work of the writer.
        self._writer = pq.ParquetWriter(
            self._stream,
            first.schema,
            use_dictionary=repetitive(first),
            metadata_collector=self._metadata,
            **format_options(first.schema, compression),
        )

    @property
    def size(self) -> int:
        return self._stream.size

    def write(self, group: pa.Table) -> None:
        self._writer.write_table(group, row_group_size=group.num_rows)
        self._rows += group.num_rows
        if self._digest is not None:
            # Import the compiled kernels late, because readers of a lake import this module, too.
            from airflow_provider_cdc.core.digest.digest import digest

            self._digest += digest(group)

    def close(self) -> StagedFile:
        self._writer.close()
        self._stream.close()
        self._run.sync(self._name)
        stats = encoded_stats(self._metadata[0], self._schema)
        row_digest = "" if self._digest is None else self._digest.hex
        keys = key_range(self._metadata[0], self._key) if self._key else ()
        return StagedFile(self._name, self._rows, self.size, self._stream.checksum, stats, None, row_digest, keys)

    def abort(self) -> None:
        """Delete the file if possible. Errors are ignored, so that they do not mask the original error."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError, pa.ArrowException):
            self._stream.close()
            self._run.delete_file(self._name)


class CheckedStream:
    """A stream that computes the size and the CRC-32 of the bytes written to it, to verify the file later.

    CRC-32 fails to detect one in four billion cases of damage. Computing it takes a hundredth of the time that writing
    Parquet takes.
    """

    def __init__(self, stream: Any) -> None:
        self.size = 0
        self._crc = 0
        self._stream = stream

    @property
    def checksum(self) -> str:
        return f"{self._crc:08x}"

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._stream.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self.size += size
        return size

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def format_options(schema: pa.Schema, compression: str) -> dict[str, Any]:
    """Return options of the Parquet writer for files of ``schema``: the codec, and what the specifications of table
    formats require."""
    return {
        "compression": compression,
        "compression_level": _LEVELS.get(compression),
        **({"store_decimal_as_integer": True} if has_field_ids(schema) else {}),
    }


def encoded_stats(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """Return the value of `StagedFile.stats` for a file with this footer (``metadata``) and this schema."""
    return file_stats(metadata, schema).encoded() if has_field_ids(schema) else ""


def repetitive(rows: pa.Table) -> list[str]:
    """Return the columns whose values repeat so often that a dictionary is worthwhile."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    return [
        field.name
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if pa.types.is_dictionary(field.type)
        or (_is_plain(field.type) and pc.count_distinct(column).as_py() < sample.num_rows * _PAYS_BELOW)
    ]


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a dictionary could make the values of an Arrow type smaller, and distinct values can be
    counted."""
    return not (pa.types.is_boolean(kind) or pa.types.is_nested(kind))


def write_empty(run: Storage, name: str, schema: pa.Schema, compression: str = COMPRESSION) -> StagedFile:
    """Write a file without rows, with exactly this name."""
    written = _OpenFile(run, name, schema.empty_table(), compression, digests=True).close()
    run.sync(name.rpartition("/")[0])
    return written


# Digests of the rows of files, and of copies, which are sets of files.


def live_digest(file: StagedFile) -> Digest | None:
    """Return the digest of the rows of a file that are not deleted; None: it is not known."""
    if not file.digest:
        return None
    whole = Digest.of(file.rows, file.digest)
    if file.deletes is None:
        return whole
    return whole - Digest.of(file.deletes.rows, file.deletes.digest) if file.deletes.digest else None


def total_of(files: Iterable[StagedFile]) -> Digest | None:
    """Return the digest of the rows of a copy; None: the digest of a file is not known."""
    total = Digest()
    for file in files:
        digest = live_digest(file)
        if digest is None:
            return None
        total += digest
    return total


def with_more(deletes: StagedFile | None, newly: Digest) -> str:
    """Return the digest of deleted rows, after the rows ``newly`` were deleted, too; empty: it is not known.

    :param deletes: the file with the rows that were deleted before; None: there are none.
    """
    if deletes is None:
        return newly.hex
    return (Digest.of(deletes.rows, deletes.digest) + newly).hex if deletes.digest else ""


def with_changes(file: StagedFile, removed: Digest, added: Digest) -> str:
    """Return the digest of a file's rows, after some rows were replaced; empty: it is not known."""
    return (Digest.of(file.rows, file.digest) - removed + added).hex if file.digest else ""
