"""Decodes row images of the log. A row image is a row of a table as pgoutput sends it.

An image is a TupleData of https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html in which all
columns are present. It begins with the number of columns (2 bytes). Then it has, for each column, either ``n`` for
NULL, or ``t``, the length of the text (4 bytes), and the text. All numbers are big-endian. The types' output functions
write the texts under ``session_variables.SESSION_SETTINGS``. The same row always has the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import Bytes, Int32s, Int64s, bytes_of, kernel, load8, load16be, load32be
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, naming_key
from airflow_provider_cdc.sources.log.netting import ALL_GOOD, NULL, Located
from airflow_provider_cdc.sources.postgres.catalog.types import arrow_schema, column_types
from airflow_provider_cdc.sources.postgres.decode.columns import finish
from airflow_provider_cdc.sources.postgres.decode.image_cells import image_array
from airflow_provider_cdc.sources.postgres.decode.tuple_data import NULL_VALUE, TEXT_VALUE


def decode_images(
    table: Table,
    images: pa.BinaryArray,
    nulled: dict[str, int] | None = None,
    names: Collection[str] | None = None,
    odd: list[OddValue] | None = None,
) -> pa.RecordBatch:
    """Decode rows from their images, with the same result as ``columns.finish_batch`` for the rows of a SELECT.

    :param images: one image per row, no nulls.
    :param nulled: for each column, the number of values that the policy replaced by null. This call increases the
        numbers.
    :param names: the columns to decode. None: all columns. Values of other columns cause no errors.
    :param odd: collects values that the Arrow type cannot represent. A placeholder replaces each of them.
    :raises DecodeError: the bytes are not an image of ``table``.
    :raises ValueNotRepresentable: the Arrow type cannot represent a value, the policy is ``error``, and ``odd`` is
        None.
    :raises SchemaChanged: a NOT NULL column has a NULL.
    """
    name, columns, rows = str(table.name), column_types(table), len(images)
    if images.null_count:
        raise DecodeError("null instead of an image", where=name)
    _, offsets, values = images.buffers()
    ends = bytes_of(offsets).view(np.int32)[images.offset :][: rows + 1] if rows else np.zeros(1, np.int32)
    starts, lengths = np.empty((2, len(columns), rows), np.int32)
    nulls, totals = np.zeros(len(columns), np.int64), np.zeros(len(columns), np.int64)
    data = bytes_of(values)
    bad = _locate_images(data, ends, starts, lengths, nulls, totals)
    if bad != ALL_GOOD:
        raise DecodeError(f"image {bad} of {rows} is not a row of the table", where=name)
    located = Located(data, starts, lengths, nulls, totals, rows)
    noted: list[OddValue] = []
    decoded = {
        column.name: finish(name, column, image_array(f"{name}.{column.name}", column, located, index), nulled, noted)
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
    """Return a batch with the key columns, and the values in it that the Arrow types cannot represent."""
    if set(table.key) <= set(batch.schema.names):
        return batch, odd
    odd_in_key: list[OddValue] = []
    return decode_images(table, images, names=table.key, odd=odd_in_key), odd_in_key


@kernel
def _locate_images(data: Bytes, ends: Int32s, starts: Int32s, lengths: Int32s, nulls: Int64s, totals: Int64s) -> int:
    """Fill the arrays of ``sources.log.netting.Located``. Return the index of the first malformed image, or
    ALL_GOOD."""
    columns = len(nulls)
    for row in range(len(ends) - 1):
        at, end = int(ends[row]), int(ends[row + 1])
        if at < 0 or end > len(data) or end - at < 2 or load16be(data, at) != columns:
            return row
        at += 2
        for column in range(columns):
            if at >= end:
                return row
            kind = load8(data, at)
            at += 1
            if kind == NULL_VALUE:
                starts[column, row] = NULL
                lengths[column, row] = 0
                nulls[column] += 1
                continue
            if kind != TEXT_VALUE or end - at < 4:
                return row
            length = load32be(data, at)
            at += 4
            if length > end - at:
                return row
            starts[column, row] = at
            lengths[column, row] = length
            totals[column] += length
            at += length
        if at != end:
            return row
    return ALL_GOOD
