"""Tells which rows belong to a range of a keyless table (`core.tables.value_range`), from the rows' values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.unrepresentable import OddValue


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
