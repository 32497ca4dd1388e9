"""Turns row images with earlier columns of a table into images of the present table.

The walker does this with the tuples of the log (`log.walker`). This module does it with images that were
recorded before the table was altered. The columns are matched by their numbers. The texts of the values stay the same,
because only schema changes that keep them are carried (`catalog.schema_difference`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    bytes_of,
    copy_bytes,
    kernel,
    load16be,
    load32be,
)
from airflow_provider_cdc.core.tables.table import CarriedField, Column, Era, Table
from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import number_of
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.decode.tuple_data import NULL_VALUE, TEXT_VALUE, constant_field

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
            hint="set `unrepresentable` to `null` or `string`, or change these rows",
        )
    return values
