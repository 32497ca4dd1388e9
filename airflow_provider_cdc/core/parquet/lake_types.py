"""Column types in the data files of table formats, such as Iceberg.

Engines read fewer types from tables than from plain Parquet files, so some published types change on the way into a
data file (`CONVERSIONS`), and change back when a run reads the file again. Each conversion is one to one, so
`to_published` returns exactly the rows that were passed to `to_file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

FIELD_ID = b"PARQUET:field_id"
"""The key of a field's metadata under which Arrow reads and writes Parquet's field ids."""


@dataclass(frozen=True)
class Conversion:
    """A conversion: data files store values of the types ``published`` as the type ``file``. ``why`` is the reason why
    the types differ."""

    published: tuple[pa.DataType, ...]
    file: pa.DataType
    why: str


CONVERSIONS = (
    Conversion((pa.int8(), pa.int16()), pa.int32(), "Iceberg has no smaller type"),
    Conversion((pa.uint8(), pa.uint16()), pa.int32(), "Java readers fail on unsigned Parquet columns"),
    Conversion((pa.uint32(),), pa.int64(), "Java readers fail on unsigned Parquet columns"),
    Conversion((pa.uint64(),), pa.decimal128(20, 0), "a `long` holds only half of the values"),
    Conversion((pa.duration("us"),), pa.int64(), "microseconds; Iceberg has no durations"),
    Conversion((pa.time64("us"),), pa.int64(), "microseconds; Spark cannot read a table with a `time` column"),
)
"""The published types that have another type in data files. Dictionary-encoded text becomes text. The elements of a
list have the same types as columns. All other types stay the same."""
_SAME = (
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
)
_FILE_TYPES = {published: one.file for one in CONVERSIONS for published in one.published} | {one: one for one in _SAME}


def file_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column of the published type ``kind`` has in a data file.

    :raises TypeError: table formats do not support such a column.
    """
    if pa.types.is_dictionary(kind):
        return file_type(kind.value_type)
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", file_type(kind.value_type), nullable=True))
    if pa.types.is_decimal128(kind):
        return kind
    if kind not in _FILE_TYPES:
        raise TypeError(f"table formats have no column type for {kind}")
    return _FILE_TYPES[kind]


def file_schema(published: pa.Schema, field_ids: Mapping[str, int], element_ids: Mapping[str, int]) -> pa.Schema:
    """Return the schema of the data files of a table with the published schema ``published``.

    :param field_ids: the table's field ids, by the column's name.
    :param element_ids: the field ids of the elements of list columns, by the column's name.
    """
    fields = []
    for column in published:
        kind = file_type(column.type)
        if pa.types.is_list(kind):
            kind = pa.list_(kind.value_field.with_metadata(_id(element_ids[column.name])))
        fields.append(pa.field(column.name, kind, column.nullable, _id(field_ids[column.name])))
    return pa.schema(fields)


def has_field_ids(schema: pa.Schema) -> bool:
    """Return whether ``schema`` is the schema of data files of a table format."""
    return any(FIELD_ID in (column.metadata or {}) for column in schema)


def to_published(rows: pa.Table, published: pa.Schema) -> pa.Table:
    """Convert rows of a data file, or some of their columns, to the published types."""
    schema = pa.schema([published.field(name) for name in rows.column_names])
    return pa.table([_published(rows[column.name], column.type) for column in schema], schema)


def _published(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(kind):
        return column.dictionary_encode().cast(kind)
    return column.cast(kind)


def _id(field_id: int) -> dict[bytes, bytes]:
    return {FIELD_ID: str(field_id).encode()}
