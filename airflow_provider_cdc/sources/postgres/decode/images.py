"""Decodes row images of the log. A row image is a row of a table as pgoutput sends it.

An image is a TupleData of https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html in which all
columns are present. It begins with the number of columns (2 bytes). Then it has, for each column, either ``n`` for
NULL, or ``t``, the length of the text (4 bytes), and the text. All numbers are big-endian. The types' output functions
write the texts under ``session_variables.SESSION_SETTINGS``. The same row always has the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    bytes_of,
    copy_bytes,
    kernel,
    load8,
    load16be,
    load32be,
)
from airflow_provider_cdc.core.tables.table import CarriedField, Column, Era, Table
from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, naming_key
from airflow_provider_cdc.sources.log.netting import ALL_GOOD, NULL, Located
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import number_of
from airflow_provider_cdc.sources.postgres.catalog.types import arrow_schema, column_types
from airflow_provider_cdc.sources.postgres.decode.columns import finish
from airflow_provider_cdc.sources.postgres.decode.image_cells import image_array
from airflow_provider_cdc.sources.postgres.server.pgoutput import NULL_VALUE, TEXT_VALUE, constant_field


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


# Turns row images with earlier columns of a table into images of the present table.
#
# The walker does this with the tuples of the log (`log.walker`). This module does it with images that were
# recorded before the table was altered. The columns are matched by their numbers. The texts of the values stay the
# same, because only schema changes that keep them are carried (`catalog.schema_difference`).


_COUNT_BYTES, _LENGTH_BYTES = 2, 4
_MOST_BYTES = 2**31 - 1


def carry_images(table: Table, columns: Sequence[Column], images: pa.BinaryArray) -> pa.BinaryArray:
    """`Source.carry_images`."""
    places_then = {number_of(column): place for place, column in enumerate(columns)}
    places = np.array([places_then.get(number_of(column), -1) for column in table.columns], np.int32)
    fields = table.eras[0].fields if table.eras else [CarriedField(column.name) for column in table.columns]
    constants = [constant_field(one) for one in fields]
    ends = np.cumsum([0, *map(len, constants)])
    rows = len(images)
    _, offsets, values = images.buffers()
    begins = bytes_of(offsets).view(np.int32)[images.offset :][: rows + 1] if rows else np.zeros(1, np.int32)
    valid: Bytes = images.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    data, constant_bytes = bytes_of(values), np.frombuffer(b"".join(constants), np.uint8)
    starts: Int64s = np.zeros(len(columns) + 1, np.int64)
    out_ends: Int64s = np.zeros(rows + 1, np.int64)
    out: Bytes = np.empty(0, np.uint8)
    # The first call measures the images, and the second call writes them.
    for _ in range(2):
        bad = _carry(data, begins, valid, places, constant_bytes, ends, starts, out_ends, out)
        if bad >= 0:
            raise DecodeError(
                f"image {bad} of {rows} is not a row of the table before it changed", where=str(table.name)
            )
        out = np.empty(int(out_ends[-1]), np.uint8) if not len(out) else out
    validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if images.null_count else None
    return pa.BinaryArray.from_buffers(
        pa.binary(), rows, [validity, pa.py_buffer(out_ends.astype(np.int32)), pa.py_buffer(out)]
    )


@kernel
def _carry(
    data: Bytes,
    begins: Int32s,
    valid: Bytes,
    places: Int32s,
    constants: Bytes,
    ends: Int64s,
    starts: Int64s,
    out_ends: Int64s,
    out: Bytes,
) -> int:
    """Write the images to ``out``, and their ends to ``out_ends``. If ``out`` is empty, write only the ends. Return the
    index of the first image that is malformed, or -1.

    :param places: for each present column, its place among the earlier columns, or -1.
    :param constants: the fields of the present columns without a place. ``ends`` has the place where each one ends,
        after a 0.
    :param starts: scratch for the places of an image's fields.
    """
    at = 0
    columns = len(starts) - 1
    writes = len(out) > 0
    for row in range(len(valid)):
        if valid[row]:
            place, stop = int(begins[row]), int(begins[row + 1])
            if stop - place < _COUNT_BYTES or load16be(data, place) != columns:
                return row
            place += _COUNT_BYTES
            for column in range(columns):
                starts[column] = place
                if place >= stop:
                    return row
                if data[place] == NULL_VALUE:
                    place += 1
                elif data[place] == TEXT_VALUE and stop - place > _LENGTH_BYTES:
                    length = load32be(data, place + 1)
                    if length > stop - place - 1 - _LENGTH_BYTES:
                        return row
                    place += 1 + _LENGTH_BYTES + length
                else:
                    return row
            if place != stop:
                return row
            starts[columns] = place
            if writes:
                out[at], out[at + 1] = len(places) >> 8, len(places) & 0xFF
            at += _COUNT_BYTES
            for column in range(len(places)):
                source = places[column]
                if source >= 0:
                    first, size = starts[source], starts[source + 1] - starts[source]
                    if writes:
                        copy_bytes(out, at, data, first, size)
                else:
                    first, size = ends[column], ends[column + 1] - ends[column]
                    if writes:
                        copy_bytes(out, at, constants, first, size)
                at += size
        out_ends[row + 1] = at
    return -1


# The values of new columns in rows from before a schema change.


def new_columns(table: Table, era: Era) -> pa.RecordBatch:
    """Implements `Source.new_columns`."""
    image = len(era.fields).to_bytes(2, "big") + b"".join(map(constant_field, era.fields))
    new = [one.name for one in era.fields if not one.was]
    odd: list[OddValue] = []
    values = decode_images(table, pa.array([image], pa.binary()), names=new, odd=odd)
    if stopping := [value for value in odd if value.stops]:
        raise ValueNotRepresentable(
            f"the lake has no value like that of the new column {stopping[0].column} in earlier rows",
            where=str(table.name),
            hint="set `On.unrepresentable` to `null` or `string`, or change these rows",
        )
    return values
