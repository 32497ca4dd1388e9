"""Writes a copy of a Parquet file in which some columns of some row groups are replaced.

Unchanged column chunks are copied as bytes, without decoding and encoding them. If a change touches one column of ten,
this saves most of the work of writing a file.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.file_stats import key_range
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

# Decodes and encodes the footer of a Parquet file. The footer has the places and the metadata of the column chunks.
#
# A footer is one structure of Thrift's compact protocol (https://parquet.apache.org/docs/file-format/metadata/). Fields
# that this module does not know are also decoded, so that they are preserved.


MAGIC = b"PAR1"

# The types of the compact protocol that occur in footers.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12

# FileMetaData
_VERSION, _SCHEMA, _ROWS, _GROUPS, _CREATED_BY = 1, 2, 3, 4, 6
_ENCRYPTED = {8, 9}
# SchemaElement
_NAME, _CHILDREN = 4, 5
# RowGroup
_COLUMNS, _TOTAL_BYTES, _GROUP_ROWS, _GROUP_OFFSET, _GROUP_COMPRESSED, _ORDINAL = 1, 2, 3, 5, 6, 7
# ColumnChunk
_FILE_OFFSET, _META = 2, 3
_KNOWN_OF_CHUNK = {_FILE_OFFSET, _META}
# ColumnMetaData
_PATH, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE = 3, 6, 7, 9, 11
_UNKNOWN_PLACES = {10, 14, 15}
"""The fields that contain the places of index pages and Bloom filters. These pages and filters are not copied."""

Struct = dict[int, tuple[int, Any]]
"""The type and the value of each field, by the field's number."""


class UnknownFooter(ValueError):
    """The footer has something that this module does not support."""


@dataclass
class ColumnChunk:
    """The values of one column in one row group."""

    fields: Struct

    def __post_init__(self) -> None:
        if not self.fields.keys() <= _KNOWN_OF_CHUNK or _META not in self.fields or _UNKNOWN_PLACES & self._meta.keys():
            raise UnknownFooter("a column chunk has an index, a Bloom filter or its own encryption key")

    @property
    def _meta(self) -> Struct:
        meta: Struct = self.fields[_META][1]
        return meta

    @property
    def name(self) -> str:
        """The column's name.

        :raises UnknownFooter: the chunk is a part of a nested column.
        """
        path = self._meta[_PATH][1][1]
        if len(path) != 1:
            raise UnknownFooter("a column is nested")
        return str(path[0].decode())

    @property
    def start(self) -> int:
        """The offset of the chunk's bytes in the file."""
        first = int(self._meta[_DATA_PAGE][1])
        # Some writers write 0 if there is no dictionary.
        dictionary = int(self._meta.get(_DICTIONARY_PAGE, (_I64, 0))[1])
        return min(first, dictionary) if dictionary else first

    @property
    def size(self) -> int:
        """The chunk's size in the file, in bytes."""
        return int(self._meta[_COMPRESSED][1])

    @property
    def uncompressed(self) -> int:
        return int(self._meta[_UNCOMPRESSED][1])

    def at(self, start: int) -> ColumnChunk:
        """Return the same chunk, with its bytes at the offset ``start``."""
        moved = start - self.start
        meta = dict(self._meta)
        for place in (_DATA_PAGE, _DICTIONARY_PAGE):
            if place in meta and meta[place][1]:
                meta[place] = (_I64, meta[place][1] + moved)
        fields = {**self.fields, _META: (_STRUCT, meta)}
        if _FILE_OFFSET in fields and fields[_FILE_OFFSET][1]:
            fields[_FILE_OFFSET] = (_I64, fields[_FILE_OFFSET][1] + moved)
        return ColumnChunk(fields)


@dataclass
class RowGroup:
    fields: Struct

    @property
    def chunks(self) -> list[ColumnChunk]:
        return [ColumnChunk(column_chunk) for column_chunk in self.fields[_COLUMNS][1][1]]

    @property
    def rows(self) -> int:
        return int(self.fields[_GROUP_ROWS][1])

    def with_chunks(self, chunks: list[ColumnChunk], ordinal: int) -> RowGroup:
        """Return a row group with the same rows, in other chunks."""
        fields = {
            **self.fields,
            _COLUMNS: (_LIST, (_STRUCT, [one.fields for one in chunks])),
            _TOTAL_BYTES: (_I64, sum(one.uncompressed for one in chunks)),
        }
        for number, chunk in (
            (_GROUP_OFFSET, chunks[0].start),
            (_GROUP_COMPRESSED, sum(one.size for one in chunks)),
            (_ORDINAL, ordinal),
        ):
            if number in fields:
                fields[number] = (fields[number][0], chunk)
        return RowGroup(fields)


@dataclass
class Footer:
    """The decoded footer of a file.

    :raises UnknownFooter: the footer contains data that would change if the footer was decoded and encoded again.
    """

    fields: Struct

    @classmethod
    def parse(cls, data: bytes) -> Footer:
        try:
            fields, end = _read_struct(data, 0)
            footer = cls(fields)
            # Read all names, because `Chunk.name` raises UnknownFooter if a column is nested.
            _ = [chunk.name for group in footer.groups for chunk in group.chunks]
        except (IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise UnknownFooter(f"the footer ends too early, or lacks a required field ({error})") from error
        if end != len(data) or footer.encoded() != data or _ENCRYPTED & fields.keys():
            raise UnknownFooter("the footer is encrypted, or has an unknown encoding")
        return footer

    @property
    def groups(self) -> list[RowGroup]:
        return [RowGroup(row_group) for row_group in self.fields[_GROUPS][1][1]]

    @property
    def columns(self) -> dict[str, Struct]:
        """The schema's element of each column, by the column's name.

        :raises UnknownFooter: a column is nested.
        """
        _, *columns = self.fields[_SCHEMA][1][1]
        if any(_CHILDREN in one for one in columns):
            raise UnknownFooter("a column is nested")
        return {one[_NAME][1].decode(): one for one in columns}

    @property
    def writer(self) -> tuple[Any, Any]:
        """The program that wrote the file, and the version of the format."""
        return self.fields.get(_CREATED_BY), self.fields.get(_VERSION)

    def with_groups(self, groups: list[RowGroup]) -> Footer:
        """Return the footer of a file with the same columns and these row groups."""
        rows = sum(group.rows for group in groups)
        listed = (_LIST, (_STRUCT, [group.fields for group in groups]))
        return Footer({**self.fields, _ROWS: (_I64, rows), _GROUPS: listed})

    def encoded(self) -> bytes:
        out = bytearray()
        _write_struct(out, self.fields)
        return bytes(out)


def _read_struct(data: bytes, at: int) -> tuple[Struct, int]:
    fields: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_number(data, at)
        value, at = _read_value(data, at, kind)
        fields[number] = (kind, value)
    return fields, at + 1


def _read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (_I32, _I64, _I16):
        return _read_number(data, at)
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        if at + size > len(data):
            raise UnknownFooter("it ends within a string")
        return data[at : at + size], at + size
    if kind == _STRUCT:
        return _read_struct(data, at)
    if kind == _LIST:
        return _read_list(data, at)
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind == _BYTE:
        return data[at], at + 1
    if kind == _DOUBLE:
        return data[at : at + 8], at + 8
    raise UnknownFooter(f"a value has the unsupported type {kind}")


def _read_list(data: bytes, at: int) -> tuple[tuple[int, list[Any]], int]:
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == 15:
        size, at = _read_varint(data, at)
    values = []
    for _ in range(size):
        # A list stores each boolean as a byte.
        value, at = _read_value(data, at, _BYTE if kind in (_TRUE, _FALSE) else kind)
        values.append(value)
    return (kind, values), at


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 128:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1


def _write_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        if kind in (_TRUE, _FALSE):
            kind = _TRUE if value else _FALSE
        if 0 < number - last < 16:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            _write_number(out, number)
        last = number
        _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (_I32, _I64, _I16):
        _write_number(out, value)
    elif kind == _BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == _STRUCT:
        _write_struct(out, value)
    elif kind == _LIST:
        inner, values = value
        out.append(min(len(values), 15) << 4 | inner)
        if len(values) >= 15:
            _write_varint(out, len(values))
        for item in values:
            _write_value(out, _BYTE if inner in (_TRUE, _FALSE) else inner, item)
    elif kind == _BYTE:
        out.append(value)
    elif kind == _DOUBLE:
        out += value


def _write_number(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


__all__ = ["SplicedFile", "UnknownFooter"]

_TAIL = 8
"""The number of bytes after the footer: the footer's size (4 bytes), and `MAGIC`."""


class SplicedFile:
    """Writes a new version of the file ``source`` in ``folder``. Call `write` for each row group of ``source``, in
    order.

    :param run: the folder that ``name`` is relative to.
    :param schema: the schema of the file.
    :param key: as in `ParquetWriter`.
    :param compression: the codec of the replaced columns. The other columns keep theirs: in Parquet, each column of a
        row group has a codec of its own.
    :raises UnknownFooter: the footer of the source file cannot be decoded, or the file was written with other settings
        than new files; nothing was written.
    """

    def __init__(
        self,
        run: Storage,
        name: str,
        schema: pa.Schema,
        folder: Storage,
        source: str,
        key: str = "",
        compression: str = COMPRESSION,
    ) -> None:
        self._run = run
        self._key = key
        self._compression = compression
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

    def _encoded(self, columns: pa.Table) -> dict[str, tuple[ColumnChunk, pa.Buffer]]:
        """Return the encoded chunks of ``columns``, by the column's name."""
        if has_field_ids(self._schema):
            columns = columns.cast(pa.schema([self._schema.field(name) for name in columns.column_names]))
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink,
            columns.schema,
            use_dictionary=repetitive(columns),
            **format_options(columns.schema, self._compression),
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
    with pq.ParquetWriter(sink, schema, **format_options(schema, COMPRESSION)):
        pass
    return _footer_of(pa.BufferReader(sink.getvalue()))


def _footer_of(stream: Any) -> Footer:
    end = stream.size()
    tail = stream.read_at(_TAIL, end - _TAIL)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or size > end - _TAIL:
        raise UnknownFooter("the file is not a Parquet file, or is encrypted")
    return Footer.parse(bytes(stream.read_at(size, end - _TAIL - size)))
