"""Finds the end of row images of the binary log, and decodes the images.

An image begins with a bitmap of ``(columns + 7) // 8`` bytes. Bit ``c % 8`` of byte ``c // 8`` is set if column ``c``
is NULL. After the bitmap, there is a field for each column that is not NULL. A field has a fixed width or a length
prefix, as described in ``ColumnType``. This is the format of WRITE_ROWS, UPDATE_ROWS and DELETE_ROWS events in which
all columns are present. Images contain exactly the columns that information_schema shows, including virtual and
invisible columns. They contain no other columns, such as the hidden columns of functional indexes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import Bytes, Int32s, Int64s, bytes_of, kernel, load8, load_le
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, naming_key
from airflow_provider_cdc.sources.mysql.decode.cells import Located
from airflow_provider_cdc.sources.mysql.decode.columns import finish
from airflow_provider_cdc.sources.mysql.decode.image_cells import image_cells
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, arrow_schema, column_types

TRUNCATED = -1
"""Result of ``skip_image`` if the bytes end before the end of the image."""


@dataclass(frozen=True)
class ImageLayout:
    """Data that a kernel needs for parsing a table's images: arrays with one entry per column.

    ``prefixes``
        size in bytes of the little-endian length before the value; 0 for a value of fixed width.
    ``widths``
        size in bytes of a value of fixed width; otherwise 0.
    ``slots``
        the column's index in the table's key, or -1.
    ``keys``
        the number of key columns.
    """

    prefixes: Int32s
    widths: Int32s
    slots: Int32s
    keys: int


def image_layout(table: Table) -> ImageLayout:
    """Return the layout of ``table``'s images.

    :raises ConfigurationError: a column's type is not in the table of types.
    """
    columns = column_types(table)
    slots = np.full(len(columns), -1, np.int32)
    for slot, name in enumerate(table.key):
        slots[[column.name for column in columns].index(name)] = slot
    return ImageLayout(
        np.array([column.prefix for column in columns], np.int32),
        np.array([column.width for column in columns], np.int32),
        slots,
        len(table.key),
    )


def expected_table_map(table: Table) -> tuple[bytes, bytes]:
    """Return the column types and the metadata block that the server writes in a TABLE_MAP event of ``table``.

    If an event has other values, it does not describe the table whose schema was read. The images that belong to such
    an event must not be decoded.

    :raises ConfigurationError: a column's type is not in the table of types.
    """
    columns = column_types(table)
    return bytes(column.code for column in columns), b"".join(column.metadata for column in columns)


def decode_images(
    table: Table,
    images: pa.BinaryArray,
    nulled: dict[str, int] | None = None,
    names: Collection[str] | None = None,
    odd: list[OddValue] | None = None,
) -> pa.RecordBatch:
    """Decode rows from their images. For these rows, ``rows.StatementReader`` would return exactly the same values.

    :param images: one image per row, without nulls.
    :param nulled: for each column, the number of values that the policy ``null`` made null. This call adds to these
        numbers.
    :param names: the columns to decode; None: all. Values of other columns never stop the run.
    :param odd: receives the values that no Arrow type can hold. The batch has a placeholder for each of these values.
    :raises DecodeError: the bytes are not an image of ``table``.
    :raises ValueNotRepresentable: no Arrow type can hold a value, and ``odd`` is None.
    """
    name, columns, layout = str(table.name), column_types(table), image_layout(table)
    rows = len(images)
    if images.null_count:
        raise DecodeError("null instead of an image", where=name)
    _, offsets, values = images.buffers()
    ends = np.frombuffer(offsets, np.int32)[images.offset :][: rows + 1] if rows else np.zeros(1, np.int32)
    starts, lengths = np.empty((2, len(columns), rows), np.int32)
    nulls, totals = np.zeros(len(columns), np.int64), np.zeros(len(columns), np.int64)
    data = bytes_of(values)
    bad = locate_images(data, ends.copy(), layout.prefixes, layout.widths, starts, lengths, nulls, totals)
    if bad >= 0:
        raise DecodeError(f"image {bad} of {rows} is not a row of the table", where=name)
    located = Located(data, starts, lengths, nulls, totals, rows)
    noted: list[OddValue] = []

    def place_for(column: ColumnType) -> list[OddValue] | None:
        # A value that is published as text does not stop the run, but the condition on the table treats the value as
        # null.
        return noted if column.policy == "error" or odd is not None else None

    decoded = {
        column.name: finish(name, column, image_cells(located, index, column), nulled, place_for(column))
        for index, column in enumerate(columns)
        if names is None or column.name in names
    }
    schema = arrow_schema(table)
    batch = pa.RecordBatch.from_arrays(
        [*decoded.values()], schema=pa.schema([schema.field(column_name) for column_name in decoded])
    )
    if odd is not None:
        odd += noted
    elif noted:
        raise naming_key(table, *_key_beside(table, images, batch, noted), noted[0])
    return batch


def _key_beside(
    table: Table, images: pa.BinaryArray, batch: pa.RecordBatch, odd: list[OddValue]
) -> tuple[pa.RecordBatch, list[OddValue]]:
    """Return a batch that contains the key columns, and the odd values of this batch."""
    if set(table.key) <= set(batch.schema.names):
        return batch, odd
    odd_in_key: list[OddValue] = []
    return decode_images(table, images, names=table.key, odd=odd_in_key), odd_in_key


@kernel
def skip_image(
    data: Bytes, position: int, end: int, prefixes: Int32s, widths: Int32s, slots: Int32s, ranges: Int64s
) -> int:
    """Find the end of one row image. Other kernels can call this function.

    :param data: ``uint8[::1]``. Nothing outside ``data[position:end]`` is read. The caller guarantees
        ``0 <= position`` and ``end <= len(data)``.
    :param prefixes: ``int32[columns]`` from ``ImageLayout``, like ``widths`` and ``slots``.
    :param ranges: ``int64[2 * keys]``, in key order. ``ranges[2 * slot]`` and ``ranges[2 * slot + 1]`` receive the
        start and the end in ``data`` of a key column's value, without the length prefix. Both are -1 for NULL. After an
        error, the contents are undefined.
    :returns: the position after the image, or ``TRUNCATED`` (negative).
    """
    columns = len(widths)
    field = position + ((columns + 7) >> 3)
    if position > end or field > end:
        return TRUNCATED
    for column in range(columns):
        slot = slots[column]
        if (load8(data, position + (column >> 3)) >> (column & 7)) & 1:
            if slot >= 0:
                ranges[2 * slot] = -1
                ranges[2 * slot + 1] = -1
            continue
        prefix = int(prefixes[column])
        length = int(widths[column])
        if prefix:
            if prefix > end - field:
                return TRUNCATED
            length = load_le(data, field, prefix)
            field += prefix
        if slot >= 0:
            ranges[2 * slot] = field
            ranges[2 * slot + 1] = field + length
        field += length
    # Check the bounds of all values here at once; this is sufficient because the values are not read.
    return field if field <= end else TRUNCATED


@kernel
def locate_images(
    data: Bytes,
    ends: Int32s,
    prefixes: Int32s,
    widths: Int32s,
    starts: Int32s,
    lengths: Int32s,
    nulls: Int64s,
    totals: Int64s,
) -> int:
    """Fill the arrays that ``cells.Located`` describes. Return the index of the first malformed image, or -1."""
    columns = len(widths)
    for row in range(len(ends) - 1):
        bits, end = int(ends[row]), int(ends[row + 1])
        field = bits + ((columns + 7) >> 3)
        if bits < 0 or end > len(data) or field > end:
            return row
        for column in range(columns):
            if (load8(data, bits + (column >> 3)) >> (column & 7)) & 1:
                starts[column, row] = -1
                nulls[column] += 1
                continue
            prefix, length = int(prefixes[column]), int(widths[column])
            if prefix:
                if prefix > end - field:
                    return row
                length = load_le(data, field, prefix)
                field += prefix
            starts[column, row] = field
            lengths[column, row] = length
            totals[column] += length
            field += length
        # Check the bounds of all values here at once; this is early enough because no value has been read yet.
        if field != end:
            return row
    return -1
