"""Applies the options `where` and `columns` to the images from the log, before net changes are composed.

A condition is a function of one row, so it has the same result before and after net changes are composed. Because the
condition is applied before, all later code can treat the copied part as a table that has no other rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.tables.published import matching, merged_rows
from airflow_provider_cdc.core.tables.row_bytes import published_keys
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.api.window import TrackedTable

_DECODED_ROWS = 65_536


def decode_published(
    source: Source, table: Table, images: pa.BinaryArray, nulled: dict[str, int] | None = None
) -> pa.RecordBatch:
    """Decode the published columns of rows, from the bytes in the log; see `Source.decode_images`.

    :raises ValueNotRepresentable: no Arrow type can hold a published value.
    """
    if not table.selection.columns:
        rows = source.decode_images(table, images, nulled)
    else:
        rows = source.decode_images(table, images, nulled, table.published_columns)
    return rows if table.shard is None else merged_rows(table.shard, rows)


def copied(
    table: Table, rows: pa.RecordBatch, odd: Sequence[OddValue]
) -> tuple[pa.BooleanArray | None, Sequence[OddValue]]:
    """Return a mask of the ``rows`` that are copied (None: all), and the ``odd`` values that would be published.

    :param odd: the values that no Arrow type holds; the rows have placeholders for them.
    :raises ValueNotRepresentable: an odd value would be published, and the table has no key. The values of all columns
        identify the rows of such a table.
    """
    if table.selection.whole:
        return None, odd
    matches = matching(table, rows, _unknown(odd))
    published = {*table.published_columns}
    copies = None if matches is None else matches.to_numpy(zero_copy_only=False)
    stopping_values = [
        odd_value
        for odd_value in odd
        if odd_value.stops and odd_value.column in published and (copies is None or copies[odd_value.row])
    ]
    if stopping_values and table.keyless:
        raise stopping_values[0].error
    return matches, stopping_values


def _unknown(odd: Sequence[OddValue]) -> dict[str, list[int]]:
    unknown: dict[str, list[int]] = {}
    for value in odd:
        unknown.setdefault(value.column, []).append(value.row)
    return unknown


def selected_changes(source: Source, tables: Sequence[TrackedTable], rows: pa.Table) -> pa.Table:
    """Convert changes of `DELTA_SCHEMA` to changes of the copied parts of the tables.

    For a keyed table, images of rows that are not part of the copy become null. The key stays, because the row that was
    read with this key may be part of the copy. For a keyless table, such rows are left out, and the published columns
    identify the other rows.
    """
    selecting = {
        tracked.index: tracked.table
        for tracked in tables
        if not tracked.keys_only and not tracked.table.selection.whole
    }
    if not selecting or not rows.num_rows:
        return rows
    parts = [
        _selected(source, selecting[index], table_changes) if index in selecting else table_changes
        for index, table_changes in _by_table(rows)
    ]
    return pa.concat_tables(parts)


def _by_table(rows: pa.Table) -> list[tuple[int, pa.Table]]:
    indices = pc.unique(rows["table"]).to_pylist()
    return [(index, rows.filter(pc.equal(rows["table"], index))) for index in indices]


def _selected(source: Source, table: Table, rows: pa.Table) -> pa.Table:
    if table.keyless:
        return pa.concat_tables([_of_keyless(source, table, part) for part in _parts(rows)])
    if table.selection.where is None:
        return rows
    for name in ("before", "after"):
        column = rows.schema.get_field_index(name)
        chunks = [copied_images(source, table, _array(part[name])) for part in _parts(rows)]
        rows = rows.set_column(column, rows.schema.field(name), pa.chunked_array(chunks, pa.binary()))
    return rows


def _of_keyless(source: Source, table: Table, part: pa.Table) -> pa.Table:
    read = [column.name for column in table.as_read.columns]
    odd: list[OddValue] = []
    decoded = source.decode_images(table, _array(part["before"]), None, read, odd)
    matches, _ = copied(table, decoded, odd)
    # Before the omitted columns are dropped, all columns in the log identify a row. From here on, only the published
    # columns identify a row.
    keys = published_keys(table, decoded)
    part = part.set_column(part.schema.get_field_index("key"), part.schema.field("key"), keys)
    return part if matches is None else part.filter(matches)


def copied_images(source: Source, table: Table, images: pa.Array) -> pa.Array:
    """Return ``images`` with null instead of the images of rows that are not copied."""
    there = images.is_valid()
    if table.selection.where is None or not there.true_count:
        return images
    odd: list[OddValue] = []
    # A batch without columns has no row count, so decode at least one column.
    looked_at = table.selection.where.columns or (table.as_read.columns[0].name,)
    decoded = source.decode_images(table, images.filter(there), None, looked_at, odd)
    matches = matching(table, decoded, _unknown(odd))
    assert matches is not None
    copied = np.zeros(len(images), np.bool_)
    copied[there.to_numpy(zero_copy_only=False)] = matches.to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(copied), images, pa.scalar(None, pa.binary()))


def _parts(rows: pa.Table) -> list[pa.Table]:
    return [rows.slice(start, _DECODED_ROWS) for start in range(0, rows.num_rows, _DECODED_ROWS)]


def _array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


# Turns row images in recorded pieces of the log into images of the present tables (`jobs.restart.altered`).


_ROWS = 16_384
"""Number of images that are carried at a time. New columns make them larger, and an array holds at most 2 GiB."""


@dataclass(frozen=True)
class CarriedImages:
    """The earlier columns of tables in segments of the log. Spark sends this object to executors.

    ``tables`` has the present tables, by their indices in the run. ``columns`` has, for each segment, the columns of
    the tables whose columns were others."""

    source: Source
    tables: Mapping[int, Table]
    columns: Mapping[int, Mapping[int, tuple[Column, ...]]]

    def of_present(self, rows: pa.Table, segment: int) -> pa.Table:
        """Return the changes of a segment with images of the present tables.

        :param rows: changes of `net_change_files.NET_SCHEMA`, with the indices in the run.
        """
        for index, columns in self.columns.get(segment, {}).items():
            is_own = pc.equal(rows["table"], index)
            own = rows.filter(is_own)
            for name in ("before", "after"):
                place = own.schema.get_field_index(name)
                parts = [part.slice(at, _ROWS) for part in own[name].chunks for at in range(0, len(part), _ROWS)]
                chunks = [self.source.carry_images(self.tables[index], columns, part) for part in parts]
                own = own.set_column(place, own.schema.field(place), pa.chunked_array(chunks, pa.binary()))
            rows = pa.concat_tables([rows.filter(pc.invert(is_own)), own])
        return rows


# Tells which rows belong to a range of a keyless table (`core.tables.value_range`), from the rows' values.


def mask(within: ValueRange, values: pa.Array) -> pa.BooleanArray:
    """Return a mask of the ``values`` that are in a range. The values have the Arrow type of the column."""
    result = pa.array([True] * len(values), pa.bool_())
    if within.least is not None:
        result = pc.greater_equal(values, _scalar(within.least, values.type))
    if within.beyond is not None:
        result = pc.and_(result, pc.less(values, _scalar(within.beyond, values.type)))
    return pc.fill_null(result, within.least is None)


def images_within(source: Source, table: Table, images: pa.Array, ranges: Sequence[ValueRange]) -> pa.BooleanArray:
    """Return a mask of the row images from the log that are in one of several ranges of one column.

    :raises ValueNotRepresentable: no Arrow type holds a value of the column, so its range is not known.
    """
    column = ranges[0].column
    odd: list[OddValue] = []
    values = source.decode_images(table, images, None, [column], odd).column(column)
    if odd:
        raise (
            odd[0].error
            if odd[0].stops
            else ValueNotRepresentable(
                "the table was read in ranges of this column, and the log has a value that no Arrow type holds",
                where=f"{table.name}.{column}",
                hint="trigger a new run",
            )
        )
    result = mask(ranges[0], values)
    for within in ranges[1:]:
        result = pc.or_(result, mask(within, values))
    return result


def _scalar(edge: int | str, kind: pa.DataType) -> pa.Scalar:
    if isinstance(edge, int):
        return pa.scalar(edge, kind)
    return pa.scalar(date.fromisoformat(edge) if pa.types.is_date32(kind) else datetime.fromisoformat(edge), kind)
