"""Writes a copy of a Parquet file in which some columns of some row groups are replaced.

Unchanged column chunks are copied as bytes, without decoding and encoding them. If a change touches one column of ten,
this saves most of the work of writing a file.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.certificate.key_range import key_range
from airflow_provider_cdc.core.parquet.footer import MAGIC, Chunk, Footer, RowGroup, UnknownFooter
from airflow_provider_cdc.core.parquet.lake_types import has_field_ids
from airflow_provider_cdc.core.parquet.writer import (
    COMPRESSION,
    CheckedStream,
    StagedFile,
    encoded_stats,
    format_options,
    repetitive,
)
from airflow_provider_cdc.core.storage.folder import Storage

__all__ = ["SplicedFile", "UnknownFooter"]

_TAIL = 8
"""The number of bytes after the footer: the footer's size (4 bytes), and `MAGIC`."""


class SplicedFile:
    """Writes a new version of the file ``source`` in ``folder``. Call `write` for each row group of ``source``, in
    order.

    :param run: the folder that ``name`` is relative to.
    :param schema: the schema of the file.
    :param key: as in `ParquetWriter`.
    :raises UnknownFooter: the footer of the source file cannot be decoded, or the file was written with other settings
        than new files; nothing was written.
    """

    def __init__(self, run: Storage, name: str, schema: pa.Schema, folder: Storage, source: str, key: str = "") -> None:
        self._run = run
        self._key = key
        self._name = name
        self._schema = schema
        self._input = folder.filesystem.open_input_file(folder.path(source))
        try:
            self._footer = _footer_of(self._input)
            now = _written_now(schema)
            if self._footer.columns != now.columns or self._footer.writer != now.writer:
                raise UnknownFooter(
                    "the file was written with another schema, another writer or another format version"
                )
            self._left = self._footer.groups
        except BaseException:
            self._input.close()
            raise
        self._groups: list[RowGroup] = []
        run.make_folder(name.rpartition("/")[0])
        self._stream = CheckedStream(run.filesystem.open_output_stream(run.path(name)))
        self._stream.write(MAGIC)

    def write(self, columns: pa.Table) -> None:
        """Write the next row group, with ``columns`` in place of the old columns. The new columns must have as many
        rows as the row group."""
        group = self._left.pop(0)
        fresh = self._encoded(columns) if columns.num_columns else {}
        chunks = []
        for chunk in group.chunks:
            anew = fresh.get(chunk.name)
            now, data = anew or (chunk, self._input.read_at(chunk.size, chunk.start))
            chunks.append(now.at(self._stream.size))
            self._stream.write(data)
        self._groups.append(group.with_chunks(chunks, len(self._groups)))

    def close(self) -> StagedFile:
        """Finish the file.

        :raises ValueError: `write` was not called for all row groups.
        """
        if self._left:
            raise ValueError(f"{len(self._left)} row groups are left")
        footer = self._footer.with_groups(self._groups).encoded()
        end = footer + len(footer).to_bytes(4, "little") + MAGIC
        self._stream.write(end)
        self._stream.close()
        self._input.close()
        self._run.sync(self._name)
        # The file's name is durable only after an fsync of its folder.
        self._run.sync(self._name.rpartition("/")[0])
        rows = sum(group.rows for group in self._groups)
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + end))
        stats = encoded_stats(metadata, self._schema)
        keys = key_range(metadata, self._key) if self._key else ()
        return StagedFile(self._name, rows, self._stream.size, self._stream.checksum, stats, keys=keys)

    def abort(self) -> None:
        """Delete the file if possible. Errors are ignored, so that they do not mask the original error."""
        with suppress(OSError, pa.ArrowException):
            self._input.close()
        with suppress(OSError, pa.ArrowException):
            self._stream.close()
            self._run.delete_file(self._name)

    def _encoded(self, columns: pa.Table) -> dict[str, tuple[Chunk, pa.Buffer]]:
        """Return the encoded chunks of ``columns``, by the column's name."""
        if has_field_ids(self._schema):
            columns = columns.cast(pa.schema([self._schema.field(name) for name in columns.column_names]))
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink,
            columns.schema,
            compression=COMPRESSION,
            use_dictionary=repetitive(columns),
            **format_options(columns.schema),
        ) as writer:
            writer.write_table(columns, row_group_size=columns.num_rows)
        data = sink.getvalue()
        footer = _footer_of(pa.BufferReader(data))
        if any(self._footer.columns[name] != column_footer for name, column_footer in footer.columns.items()):
            raise ValueError("a column has another type than in the file")
        (group,) = footer.groups
        return {chunk.name: (chunk, data[chunk.start : chunk.start + chunk.size]) for chunk in group.chunks}


@lru_cache(maxsize=16)
def _written_now(schema: pa.Schema) -> Footer:
    """Return the footer of a file without rows, written with the present settings."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression=COMPRESSION, **format_options(schema)):
        pass
    return _footer_of(pa.BufferReader(sink.getvalue()))


def _footer_of(stream: Any) -> Footer:
    end = stream.size()
    tail = stream.read_at(_TAIL, end - _TAIL)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or size > end - _TAIL:
        raise UnknownFooter("the file is not a Parquet file, or is encrypted")
    return Footer.parse(bytes(stream.read_at(size, end - _TAIL - size)))
