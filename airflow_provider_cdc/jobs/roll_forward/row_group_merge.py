"""Applies the net change of a window to the rows of one row group.

Changed rows may have become far larger during the window, so the rows are decoded in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.jobs.consolidate.touched_rows import BoolArray

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Left:
    """Some rows of a row group, with their states before and after the window. ``before`` has the rows as they are in
    the copy.

    ``rows`` replace the rows at ``places``, and differ from them in the columns ``changed``. ``gone`` is a mask of the
    rows that were deleted."""

    before: pa.Table
    places: Int64s
    rows: pa.Table
    gone: BoolArray
    changed: set[str]

    def now(self, columns: Sequence[str]) -> pa.Table:
        """Return the given columns, with the changed rows in place of the old ones. Deleted rows are still included."""
        rows = self.before.select(columns)
        if not len(self.places) or not rows.num_columns:
            return rows
        taken = np.arange(rows.num_rows)
        taken[self.places] = rows.num_rows + np.arange(len(self.places))
        together = pa.concat_tables([rows, self.rows.select(rows.column_names)])
        # Each batch has its own dictionary, so unify the dictionaries first.
        return together.unify_dictionaries().combine_chunks().take(pa.array(taken))


def parts(lengths: tuple[Int64s, Int64s], most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide rows into parts that can be decoded at once, and yield the start and stop (exclusive) of each part.

    :param lengths: the bytes of each row's images before and after the window, and -1 where there is no image.
    """
    ends = np.cumsum(sum(np.maximum(image_lengths, 0) for image_lengths in lengths))
    start = done = 0
    while start < len(ends):
        stop = int(np.searchsorted(ends, done + most_bytes, side="right"))
        stop = min(max(stop, start + 1), start + most_rows)
        yield start, stop
        start, done = stop, int(ends[stop - 1])


def sorted_rows(rows: pa.Table, name: str) -> pa.Table:
    """Return the rows in the order of the column ``name``."""
    # Each batch has its own dictionary, so unify the dictionaries first.
    rows = rows.unify_dictionaries().combine_chunks()
    return rows.take(pc.sort_indices(rows[name]))


def differing(before: pa.RecordBatch, after: pa.RecordBatch) -> set[str]:
    """Return the names of the columns in which any row of ``after`` differs, bit for bit, from the same row of
    ``before``."""
    return {
        name
        for name in before.schema.names
        if not row_bytes.encode(before, [name]).equals(row_bytes.encode(after, [name]))
    }
