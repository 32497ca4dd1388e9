"""The least and the greatest value of a file's first key column, as text, from the footer of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_LONGEST = 200
"""The longest text of a key, in characters. Files with longer keys have no range."""


def key_range(metadata: pq.FileMetaData, key: str) -> tuple[str, ...]:
    """Return the least and the greatest value of the column ``key``; empty: they are not known.

    Integers, dates, times, text and binary (as hexadecimal digits) have ranges. Dates and times before the year 1 or
    after the year 9999 have none: Python cannot show them.
    """
    names = [metadata.schema.column(column).path for column in range(metadata.num_columns)]
    if not metadata.num_rows or key not in names:
        return ()
    column = names.index(key)
    kind = metadata.schema.to_arrow_schema().field(key).type
    if not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or _is_text(kind)):
        return ()
    try:
        values = [*_bounds(metadata, column)]
    except (OverflowError, ValueError):
        return ()
    if any(value is None for value in values):
        return ()
    shown = _shown(min(values)), _shown(max(values))
    return shown if max(map(len, shown)) <= _LONGEST else ()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _bounds(metadata: pq.FileMetaData, column: int) -> Iterator[Any]:
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(column).statistics
        known = statistics is not None and statistics.has_min_max and not statistics.null_count
        yield from (statistics.min, statistics.max) if known else (None,)


def _shown(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
