"""Computes the counts and bounds of the columns of a data file. The metadata of table formats contains these counts and
bounds.

The counts and bounds are taken from the statistics in the file's footer, in Parquet's raw form. So even values that
Python cannot represent (such as the year 0) are recorded exactly. Parquet writers leave out the bounds of a row group
with a value over 4 KiB. If a file has such a row group, the column has no bounds. Bounds from only the other row groups
would be wrong: readers that filter by these bounds would not find the rows with the large value.

Bounds are in the single-value form of Iceberg's specification (https://iceberg.apache.org/spec/#binary-single-value-
serialization). Bounds of text and bytes are cut to `BOUND_LENGTH`, and an upper bound that was cut is rounded up. An
upper bound that cannot be rounded up is left out. A floating-point zero is recorded as -0.0 in a lower bound and as 0.0
in an upper bound, because readers disagree on whether -0.0 equals 0.0. A NaN is never a bound, because Parquet's
statistics leave it out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.lake_types import FIELD_ID

BOUND_LENGTH = 16
"""The maximum length of a bound, in characters of text or in bytes."""

_SURROGATES = range(0xD800, 0xE000)


@dataclass
class FileStats:
    """The counts and bounds of the columns of a file, by field id.

    The counts in ``values`` include nulls. A column is missing in ``nulls`` if the footer does not have its null count.
    A column without bounds is missing in ``lower`` and ``upper``. ``splits`` are the offsets at which row groups begin.
    ``partition`` is the partition of the file (`partitions.encode_partition`). It is empty if the table is not
    partitioned.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    nulls: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)
    splits: list[int] = field(default_factory=list)
    partition: list[Any] = field(default_factory=list)

    def encoded(self) -> str:
        """Encode the statistics as JSON text."""
        return json.dumps(
            [
                self.sizes,
                self.values,
                self.nulls,
                {number: bound.hex() for number, bound in self.lower.items()},
                {number: bound.hex() for number, bound in self.upper.items()},
                self.splits,
                *([self.partition] if self.partition else []),
            ],
            separators=(",", ":"),
        )

    @classmethod
    def decoded(cls, text: str) -> FileStats:
        """Decode the result of `encoded`.

        :raises ValueError: ``text`` is not a result of `encoded`.
        """
        sizes, values, nulls, lower, upper, splits, *partition = json.loads(text)
        counts = [{int(number): int(count) for number, count in one.items()} for one in (sizes, values, nulls)]
        bounds = [{int(number): bytes.fromhex(bound) for number, bound in one.items()} for one in (lower, upper)]
        return cls(counts[0], counts[1], counts[2], bounds[0], bounds[1], splits, *partition)


def file_stats(metadata: pq.FileMetaData, schema: pa.Schema) -> FileStats:
    """Return the counts and bounds that a file's footer has for its columns.

    :param schema: the schema of the file, with field ids. Each column, even a list column, is one leaf of the Parquet
        schema.
    """
    stats = FileStats()
    for number in range(metadata.num_row_groups):
        first = metadata.row_group(number).column(0)
        stats.splits.append(_start(first))
    for index, column in enumerate(schema):
        is_list = pa.types.is_list(column.type)
        leaf = column.type.value_field if is_list else column
        field_id = int(leaf.metadata[FIELD_ID])
        chunks = [metadata.row_group(number).column(index) for number in range(metadata.num_row_groups)]
        stats.sizes[field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        stats.values[field_id] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        if is_list or not all(one is not None and one.has_null_count for one in statistics):
            # Leave out the null count of a list, because Parquet counts an empty list as a null element.
            continue
        stats.nulls[field_id] = sum(one.null_count for one in statistics)
        with_values = [one for chunk, one in zip(chunks, statistics, strict=True) if one.null_count < chunk.num_values]
        if not with_values or not all(one.has_min_max for one in with_values):
            continue
        extremes = _extremes(with_values, leaf.type)
        if extremes is not None:
            lower, upper = extremes
            stats.lower[field_id] = lower
            if upper is not None:
                stats.upper[field_id] = upper
    return stats


def _start(chunk: Any) -> int:
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
    return int(min(chunk.data_page_offset, dictionary) if dictionary else chunk.data_page_offset)


def _extremes(statistics: list[Any], kind: pa.DataType) -> tuple[bytes, bytes | None] | None:
    """Return the lower and the upper bound of a column. The upper bound is None if it is unknown. The result is None if
    both bounds are unknown."""
    lows, highs = [one.min_raw for one in statistics], [one.max_raw for one in statistics]
    if pa.types.is_decimal128(kind):
        low, high = min(map(_unscaled, lows)), max(map(_unscaled, highs))
        return _twos_complement(low), _twos_complement(high)
    low, high = min(lows), max(highs)
    if pa.types.is_string(kind):
        try:
            return _bytes(low).decode()[:BOUND_LENGTH].encode(), _text_above(_bytes(high).decode())
        except UnicodeDecodeError:
            return None
    if pa.types.is_binary(kind):
        return _bytes(low)[:BOUND_LENGTH], _bytes_above(_bytes(high))
    if pa.types.is_boolean(kind):
        return struct.pack("<?", low), struct.pack("<?", high)
    if pa.types.is_floating(kind):
        if any(value != value for value in (*lows, *highs)):
            return None
        form = "<f" if kind == pa.float32() else "<d"
        return struct.pack(form, low or -0.0), struct.pack(form, high or 0.0)
    form = "<i" if kind.bit_width == 32 else "<q"
    return struct.pack(form, low), struct.pack(form, high)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _unscaled(value: bytes | int) -> int:
    # Parquet stores decimals with many digits as big-endian bytes.
    return value if isinstance(value, int) else int.from_bytes(value, "big", signed=True)


def _twos_complement(value: int) -> bytes:
    """Return the shortest big-endian form of ``value``, in two's complement."""
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _text_above(text: str) -> bytes | None:
    """Return an upper bound for ``text``: the text itself if it is short enough for a bound, otherwise a prefix that is
    rounded up. Return None if no prefix can be rounded up."""
    if len(text) <= BOUND_LENGTH:
        return text.encode()
    for length in range(BOUND_LENGTH, 0, -1):
        successor = ord(text[length - 1]) + 1
        if successor in _SURROGATES:
            # Skip the surrogates, because no text contains them.
            successor = _SURROGATES.stop
        if successor <= 0x10FFFF:
            return (text[: length - 1] + chr(successor)).encode()
    return None


def _bytes_above(value: bytes) -> bytes | None:
    """Return an upper bound for ``value``: the bytes themselves if they are short enough for a bound, otherwise a
    prefix that is rounded up. Return None if no prefix can be rounded up."""
    if len(value) <= BOUND_LENGTH:
        return value
    prefix = value[:BOUND_LENGTH].rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None


# The least and the greatest value of a file's first key column, as text, from the footer of the file.


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
