"""Ranges of values of the first key column. The ranges determine into which file of a copy a row goes.

Values are compared in the order of Parquet's statistics: as integers, or as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.jobs.apply.touched_rows import BoolArray, bounds, has_one_pattern

Bound = int | bytes


@dataclass(frozen=True)
class Range:
    """The values from ``low`` up to, but not including, ``high``. If ``low`` is None, the range begins at the least
    value. If ``high`` is None, the range has no upper bound."""

    low: Bound | None = None
    high: Bound | None = None

    @property
    def whole(self) -> bool:
        return self.low is None and self.high is None

    def holds(self, values: pa.Array) -> BoolArray:
        """Return a mask of the ``values`` that are in the range. No value may be null."""
        mask: BoolArray = np.ones(len(values), np.bool_)
        if self.whole:
            return mask
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            binary_values = values.cast(pa.binary())
            if self.low is not None:
                mask &= pc.greater_equal(binary_values, pa.scalar(self.low, pa.binary())).to_numpy(zero_copy_only=False)
            if self.high is not None:
                mask &= pc.less(binary_values, pa.scalar(self.high, pa.binary())).to_numpy(zero_copy_only=False)
            return mask
        if not pa.types.is_integer(values.type):
            values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
        numbers = values.to_numpy()
        least, greatest = int(np.iinfo(numbers.dtype).min), int(np.iinfo(numbers.dtype).max)
        if isinstance(self.low, int) and self.low > least:
            mask &= numbers >= self.low if self.low <= greatest else False
        if isinstance(self.high, int) and self.high <= greatest:
            mask &= numbers < self.high
        return mask


def after(bound: Bound) -> Bound:
    """Return the least value above ``bound``."""
    return bound + 1 if isinstance(bound, int) else bound + b"\0"


def extent(metadata: pq.FileMetaData, column: int, kind: pa.DataType) -> tuple[Bound, Bound] | None:
    """Return the least and the greatest value of a column in a file, or None if the statistics of the file do not have
    them."""
    lows, highs = [], []
    for number in range(metadata.num_row_groups):
        extremes = group_extent(metadata, number, column, kind)
        if extremes is None:
            return None
        lows.append(extremes[0])
        highs.append(extremes[1])
    return (min(lows), max(highs)) if lows else None


def group_extent(metadata: pq.FileMetaData, group: int, column: int, kind: pa.DataType) -> tuple[Bound, Bound] | None:
    """Return the least and the greatest value of a column in a row group, or None if its statistics do not have
    them."""
    statistics = metadata.row_group(group).column(column).statistics
    if not has_one_pattern(kind) or statistics is None or not statistics.has_min_max or statistics.null_count:
        return None
    low, high = bounds(statistics, kind)
    return low, high


def group_ranges(parquet: pq.ParquetFile, name: str, kind: pa.DataType) -> list[Range] | None:
    """Return the range of values of the column ``name`` for each row group. Return None if the ranges are unknown, or
    if the row groups are not in the order of these values."""
    metadata, column = parquet.metadata, parquet.schema_arrow.get_field_index(name)
    lows: list[Bound] = []
    for group in range(metadata.num_row_groups):
        bounds_of_group = group_extent(metadata, group, column, kind)
        if bounds_of_group is None or (lows and bounds_of_group[0] < lows[-1]):  # type: ignore[operator]
            return None
        lows.append(bounds_of_group[0])
    return divided(lows) if lows else None


def divided(lows: Sequence[Bound]) -> list[Range]:
    """Divide all values into ranges, one for each value in ``lows``. The values in ``lows`` must not decrease.

    Each range begins at its low value and ends before the next one. The first range also has all lower values, and the
    last range has no upper bound."""
    edges: list[Bound | None] = [None, *lows[1:], None]
    return [Range(low, high) for low, high in pairwise(edges)]
