"""Turns row images from before a schema change into images of the present table.

The values stay the bytes of the log. A field may get another length prefix or more bytes: an integer that became wider
is extended with its sign, and all other values keep their meaning with zeros behind them (`tables.column_eras` accepts
no other conversions).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import Bytes, Int32s, Int64s, bytes_of, copy_bytes, kernel, load8
from airflow_provider_cdc.core.tables.table import Era, Table
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.mysql.decode.images import decode_images, image_layout, locate_images
from airflow_provider_cdc.sources.mysql.tables.types import Family, column_types


def carried_images(table: Table, era: Era, images: pa.BinaryArray) -> pa.BinaryArray:
    """Return the images of the present ``table`` for images of rows from an era. Nulls stay.

    :raises DecodeError: the bytes are not images of the table in that era.
    """
    rows, valid = len(images) - images.null_count, images.is_valid()
    there = images.drop_null()
    layout, now = image_layout(table.in_era(era)), column_types(table)
    starts, lengths = np.empty((2, len(layout.widths), rows), np.int32)
    nulls, totals = np.zeros((2, len(layout.widths)), np.int64)
    _, offsets, values = there.buffers()
    ends = np.frombuffer(offsets, np.int32)[there.offset :][: rows + 1] if rows else np.zeros(1, np.int32)
    data = bytes_of(values)
    bad = locate_images(data, ends.copy(), layout.prefixes, layout.widths, starts, lengths, nulls, totals)
    if bad >= 0:
        raise DecodeError(f"image {bad} of {rows} is not a row of the table before it changed", where=str(table.name))
    names = [column.name for column in era.columns]
    sources = np.array([names.index(one.was) if one.was else -1 for one in era.fields], np.int32)
    constants = [None if one.was or one.constant is None else bytes.fromhex(one.constant) for one in era.fields]
    sizes = np.array([-1 if constant is None else len(constant) for constant in constants], np.int64)
    prefixes = np.array([column.prefix for column in now], np.int32)
    widths = np.array([column.width for column in now], np.int32)
    signed = np.array([column.family is Family.NUMBER and not column.unsigned for column in now], np.uint8)
    places = np.zeros(rows + 1, np.int64)
    places[1:] = (len(now) + 7) // 8
    for number, source in enumerate(sources):
        if source < 0:
            places[1:] += max(0, sizes[number])
        else:
            length = widths[number] if not prefixes[number] else prefixes[number] + lengths[source]
            places[1:] += np.where(starts[source] < 0, 0, length)
    places = np.cumsum(places)
    out: Bytes = np.zeros(int(places[-1]), np.uint8)
    constant_bytes: Bytes = np.frombuffer(b"".join(constant or b"" for constant in constants) + b"\0", np.uint8)
    _fill(data, starts, lengths, sources, sizes, constant_bytes, prefixes, widths, signed, places, out)
    carried = pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(out)]
    )
    if not images.null_count:
        return carried
    index = np.cumsum(valid.to_numpy(zero_copy_only=False)) - 1
    return carried.take(pa.array(index, mask=~valid.to_numpy(zero_copy_only=False)))


@kernel
def _fill(
    data: Bytes,
    starts: Int32s,
    lengths: Int32s,
    sources: Int32s,
    sizes: Int64s,
    constants: Bytes,
    prefixes: Int32s,
    widths: Int32s,
    signed: Bytes,
    places: Int64s,
    out: Bytes,
) -> None:
    """Write the images to ``out``, which has zeros. ``sizes`` are the sizes of the constants; -1: NULL."""
    columns = len(sources)
    for row in range(len(places) - 1):
        bits = places[row]
        at = bits + ((columns + 7) >> 3)
        constant = 0
        for column in range(columns):
            source = sources[column]
            null = sizes[column] < 0 if source < 0 else starts[source, row] < 0
            if null:
                out[bits + (column >> 3)] |= 1 << (column & 7)
            elif source < 0:
                copy_bytes(out, at, constants, constant, sizes[column])
                at += sizes[column]
            else:
                length = int(lengths[source, row])
                size = length
                if prefixes[column]:
                    for byte in range(prefixes[column]):
                        out[at + byte] = (length >> (8 * byte)) & 0xFF
                    at += prefixes[column]
                else:
                    size = int(widths[column])
                copy_bytes(out, at, data, starts[source, row], length)
                if size > length and signed[column] and load8(data, starts[source, row] + length - 1) & 0x80:
                    for byte in range(length, size):
                        out[at + byte] = 0xFF
                at += size
            if source < 0 and sizes[column] > 0:
                constant += sizes[column]


# The values of new columns in rows from before a schema change.


def new_columns(table: Table, era: Era) -> pa.RecordBatch:
    """Implements `Source.new_columns`."""
    # All columns of the earlier row are NULL, so its image has only the bitmap.
    earlier = pa.array([b"\xff" * ((len(era.columns) + 7) // 8)], pa.binary())
    new = [one.name for one in era.fields if not one.was]
    return decode_images(table, carried_images(table, era, earlier), names=new)
