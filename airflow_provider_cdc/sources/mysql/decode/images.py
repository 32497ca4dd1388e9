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

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    bytes_of,
    copy_bytes,
    inner,
    kernel,
    load8,
    load_be,
    load_le,
    multiply_add_128,
    negative_128,
)
from airflow_provider_cdc.core.tables.table import Era, Table
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, naming_key
from airflow_provider_cdc.sources.mysql.decode.cells import (
    ALL_GOOD,
    Cells,
    Located,
    bit_cells,
    byte_cells,
    check,
    fixed_cells,
    integer_cells,
    load_integers,
    number_cells,
    pack_datetime,
    pack_epoch,
    wide_image_cells,
)
from airflow_provider_cdc.sources.mysql.decode.columns import finish
from airflow_provider_cdc.sources.mysql.tables.types import (
    ColumnType,
    Family,
    arrow_schema,
    column_types,
    decimal_groups,
)

# Converts values in row images of the binary log to cells.
#
# Formats: MySQL's ``decimal2bin`` (groups of nine decimal digits in big-endian integers, the sign bit inverted,
# negative numbers complemented), and ``my_datetime_packed_to_binary`` and similar functions (big-endian, with an offset
# so that bytes sort like the values).


def image_cells(located: Located, index: int, column: ColumnType) -> Cells:
    """Return the cells of column ``index`` of a batch of images.

    :raises DecodeError: a value does not follow the format.
    """
    match column.family:
        case Family.NUMBER:
            return number_cells(located, index, column, column.width)
        case Family.YEAR:
            return _year_cells(located, index)
        case Family.ENUM | Family.SET:
            return integer_cells(located, index, column.width)
        case Family.BITS:
            return bit_cells(located, index, column, located.lengths[index])
        case Family.DECIMAL:
            return _decimal_cells(located, index, column)
        case Family.WIDE_DECIMAL:
            return wide_image_cells(located, index, column)
        case Family.DATE | Family.DATETIME | Family.TIMESTAMP | Family.TIME:
            return _temporal_cells(located, index, column)
        case Family.BYTES | Family.TEXT | Family.VECTOR:
            return byte_cells(located, index, column)
        case Family.JSON:
            return _json_cells(byte_cells(located, index, column), column)


def _json_cells(binary: Cells, column: ColumnType) -> Cells:
    """Return the texts of binary JSON values."""
    # Imported late, because few tables have JSON.
    from airflow_provider_cdc.sources.mysql.decode.json_text import json_texts

    buffers = [binary.validity, binary.offsets, binary.values]
    try:
        texts = json_texts(pa.BinaryArray.from_buffers(pa.binary(), binary.rows, buffers, binary.nulls))
    except DecodeError as error:
        raise DecodeError(error.message, where=f"{column.name}, {error.where}") from error
    _, offsets, values = texts.buffers()
    return Cells(binary.rows, binary.nulls, binary.validity, values, offsets)


def _year_cells(located: Located, index: int) -> Cells:
    years = np.empty(located.rows, np.int64)
    load_integers(located.data, located.starts[index], located.rows, 1, years)
    values = np.where(years > 0, years + 1900, 0).astype(np.int16)
    return fixed_cells(located, index, pa.py_buffer(values))


def _decimal_cells(located: Located, index: int, column: ColumnType) -> Cells:
    values = pa.allocate_buffer(located.rows * 16)
    groups = decimal_groups(column.precision, column.scale)
    bad = _unpack_decimals(
        located.data,
        located.starts[index],
        located.rows,
        np.array([width for width, _ in groups], np.int64),
        np.array([10**digits for _, digits in groups], np.int64),
        np.frombuffer(values, np.int64),
    )
    check(bad, column, f"not a decimal({column.precision},{column.scale})")
    return fixed_cells(located, index, values)


def _temporal_cells(located: Located, index: int, column: ColumnType) -> Cells:
    values = pa.allocate_buffer(located.rows * 8)
    out = np.frombuffer(values, np.int64)
    starts = located.starts[index]
    fraction = (column.scale + 1) // 2
    if column.family is Family.DATE:
        bad = _unpack_dates(located.data, starts, located.rows, out)
    elif column.family is Family.DATETIME:
        bad = _unpack_datetimes(located.data, starts, located.rows, fraction, out)
    elif column.family is Family.TIMESTAMP:
        bad = _unpack_timestamps(located.data, starts, located.rows, fraction, out)
    else:
        bad = _unpack_times(located.data, starts, located.rows, fraction, out)
    check(bad, column, f"not a {column.family.value}")
    return fixed_cells(located, index, values)


@kernel
def _unpack_decimals(data: Bytes, starts: Int32s, rows: int, widths: Int64s, powers: Int64s, out: Int64s) -> int:
    for row in range(rows):
        position = int(starts[row])
        low = high = 0
        if position >= 0:
            negative = load8(data, position) & 0x80 == 0
            sign = 0x80
            for group in range(len(widths)):
                width = widths[group]
                value = load_be(data, position, width) ^ (sign << (8 * (width - 1)))
                sign = 0
                if negative:
                    value ^= (1 << (8 * width)) - 1
                if value >= powers[group]:
                    return row
                low, high = multiply_add_128(low, high, powers[group], value)
                position += width
            if negative:
                low, high = negative_128(low, high)
        out[2 * row] = low
        out[2 * row + 1] = high
    return ALL_GOOD


@kernel
def _unpack_dates(data: Bytes, starts: Int32s, rows: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        packed = 0
        if start >= 0:
            date = load_le(data, start, 3)
            day, month, year = date & 31, (date >> 5) & 15, date >> 9
            if month > 12 or year > 9999:
                return row
            packed = pack_datetime(year, month, day, 0, 0, 0, 0)
        out[row] = packed
    return ALL_GOOD


@inner
def _micros(data: Bytes, position: int, width: int) -> int:
    """Read the fraction of a second that is stored in ``width`` bytes, with two decimal digits per byte. Return it in
    microseconds."""
    value = load_be(data, position, width)
    for _ in range(3 - width):
        value *= 100
    return value


@kernel
def _unpack_datetimes(data: Bytes, starts: Int32s, rows: int, fraction: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        packed = 0
        if start >= 0:
            fields = load_be(data, start, 5) - 0x80_0000_0000
            micro = _micros(data, start + 5, fraction)
            hour, minute, second = (fields >> 12) & 31, (fields >> 6) & 63, fields & 63
            if fields < 0 or (fields >> 22) // 13 > 9999 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
                return row
            packed = (fields << 24) | micro
        out[row] = packed
    return ALL_GOOD


@kernel
def _unpack_timestamps(data: Bytes, starts: Int32s, rows: int, fraction: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        packed = 0
        if start >= 0:
            seconds = load_be(data, start, 4)
            micro = _micros(data, start + 4, fraction)
            if micro > 999_999:
                return row
            if seconds or micro:
                packed = pack_epoch(seconds, micro)
        out[row] = packed
    return ALL_GOOD


@kernel
def _unpack_times(data: Bytes, starts: Int32s, rows: int, fraction: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        value = 0
        if start >= 0:
            # The value is one signed number with the fraction in its low bits, so parse it as a whole. The fields of a
            # negative time cannot be parsed separately, because a field may borrow from the next higher field.
            whole = load_be(data, start, 3 + fraction) - (0x80_0000 << (8 * fraction))
            size = -whole if whole < 0 else whole
            fields = size >> (8 * fraction)
            micro = size & ((1 << (8 * fraction)) - 1)
            for _ in range(3 - fraction):
                micro *= 100
            hour, minute, second = fields >> 12, (fields >> 6) & 63, fields & 63
            if hour > 838 or minute > 59 or second > 59 or micro > 999_999:
                return row
            value = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro
            if whole < 0:
                value = -value
        out[row] = value
    return ALL_GOOD


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
    """Fill the arrays that ``netting.Located`` describes. Return the index of the first malformed image, or -1."""
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


# Turns row images from before a schema change into images of the present table.
#
# The values stay the bytes of the log. A field may get another length prefix or more bytes: an integer that became
# wider is extended with its sign, and all other values keep their meaning with zeros behind them
# (`statements.column_changes` accepts no other conversions).


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
