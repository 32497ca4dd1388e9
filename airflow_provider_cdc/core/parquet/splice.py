"""Writes a Parquet file that is another one but for some columns of some row groups.

Whatever stays is copied as the bytes that it is, and neither decoded nor encoded: where a change touches one column of
ten, that is the most part of writing a file anew.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.footer import MAGIC, Chunk, Footer, RowGroup, UnknownFooter
from airflow_provider_cdc.core.parquet.writer import COMPRESSION, CheckedStream, StagedFile, repetitive
from airflow_provider_cdc.core.storage.folder import Storage

__all__ = ["SplicedFile", "UnknownFooter"]

_TAIL = 8
"""Bytes after the footer: its size, and `MAGIC`."""


class SplicedFile:
    """A file in the making, from ``source`` in ``folder``: call `write` for each of its row groups, in order.

    :param run: the folder that ``name`` is relative to.
    :param schema: of the file.
    :raises UnknownFooter: this file cannot be taken apart, or was written in another way than files are now; nothing
        was written.
    """

    def __init__(self, run: Storage, name: str, schema: pa.Schema, folder: Storage, source: str) -> None:
        self._run = run
        self._name = name
        self._input = folder.filesystem.open_input_file(folder.path(source))
        try:
            self._footer = _footer_of(self._input)
            now = _written_now(schema)
            if self._footer.columns != now.columns or self._footer.writer != now.writer:
                raise UnknownFooter("it was written in another way than files are now")
            self._left = self._footer.groups
        except BaseException:
            self._input.close()
            raise
        self._groups: list[RowGroup] = []
        run.make_folder(name.rpartition("/")[0])
        self._stream = CheckedStream(run.filesystem.open_output_stream(run.path(name)))
        self._stream.write(MAGIC)

    def write(self, columns: pa.Table) -> None:
        """Write the next row group: with ``columns``, which have as many rows, in place of its own ones."""
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
        """:raises ValueError: row groups are left."""
        if self._left:
            raise ValueError(f"{len(self._left)} row groups are left")
        footer = self._footer.with_groups(self._groups).encoded()
        self._stream.write(footer + len(footer).to_bytes(4, "little") + MAGIC)
        self._stream.close()
        self._input.close()
        self._run.sync(self._name)
        # The name is durable once its folder is.
        self._run.sync(self._name.rpartition("/")[0])
        rows = sum(group.rows for group in self._groups)
        return StagedFile(self._name, rows, self._stream.size, self._stream.checksum)

    def abort(self) -> None:
        """Leave nothing behind if that is possible; the error that led here is the one that matters."""
        with suppress(OSError, pa.ArrowException):
            self._input.close()
        with suppress(OSError, pa.ArrowException):
            self._stream.close()
            self._run.delete_file(self._name)

    def _encoded(self, columns: pa.Table) -> dict[str, tuple[Chunk, pa.Buffer]]:
        """``columns`` as they are to stand in the file, by their names."""
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink, columns.schema, compression=COMPRESSION, use_dictionary=repetitive(columns)
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
    """The footer of a file without rows."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression=COMPRESSION):
        pass
    return _footer_of(pa.BufferReader(sink.getvalue()))


def _footer_of(stream: Any) -> Footer:
    end = stream.size()
    tail = stream.read_at(_TAIL, end - _TAIL)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or size > end - _TAIL:
        raise UnknownFooter("it is no Parquet file, or an encrypted one")
    return Footer.parse(bytes(stream.read_at(size, end - _TAIL - size)))
