"""What a window left of the rows of a copy that is rolled forward.

Rows that were changed may be far larger than they were before: so they are made part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.jobs.consolidate.touched_rows import BoolArray

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Left:
    """What the window left of ``before``, some rows of a row group: at ``places`` the ``rows``, which differ from those
    before in the columns ``changed``; nothing of those that are ``gone``, which is a mask."""

    before: pa.Table
    places: Int64s
    rows: pa.Table
    gone: BoolArray
    changed: set[str]

    def now(self, columns: Sequence[str]) -> pa.Table:
        """These columns, with what is left in the places of what was there, and with what is gone."""
        rows = self.before.select(columns)
        if not len(self.places) or not rows.num_columns:
            return rows
        taken = np.arange(rows.num_rows)
        taken[self.places] = rows.num_rows + np.arange(len(self.places))
        together = pa.concat_tables([rows, self.rows.select(rows.column_names)])
        # Batches have dictionaries of their own.
        return together.unify_dictionaries().combine_chunks().take(pa.array(taken))


def parts(lengths: tuple[Int64s, Int64s], most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Rows whose images, before and after, have so many bytes (-1: there is none), in parts that can be decoded at
    once."""
    ends = np.cumsum(sum(np.maximum(image_lengths, 0) for image_lengths in lengths))
    start = done = 0
    while start < len(ends):
        stop = int(np.searchsorted(ends, done + most_bytes, side="right"))
        stop = min(max(stop, start + 1), start + most_rows)
        yield start, stop
        start, done = stop, int(ends[stop - 1])


def differing(before: pa.RecordBatch, after: pa.RecordBatch) -> set[str]:
    """The columns in which rows are not bit for bit what they were."""
    return {
        name
        for name in before.schema.names
        if not row_bytes.encode(before, [name]).equals(row_bytes.encode(after, [name]))
    }
