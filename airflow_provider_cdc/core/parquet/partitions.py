"""Divides rows into the partitions of a table, by the transforms of Iceberg's specification.

See https://iceberg.apache.org/spec/#partition-transforms. The transforms are applied to the values in data files, so
their types are those of `lake_types`. Readers compute the same transforms of the values in a filter, and skip the files
of other partitions. So if a partition value was wrong, readers would miss rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.kernels import Bytes, Int64s, bytes_of, inner, kernel, load8
from airflow_provider_cdc.core.parquet.file_stats import FileStats
from airflow_provider_cdc.core.parquet.writer import COMPRESSION, ROW_GROUP_BYTES, ParquetWriter, StagedFile
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import BUCKET, IDENTITY, PERIODS, TRUNCATE, PartitionField
from airflow_provider_cdc.errors import ConfigurationError

PartitionValue = int | str | bool | bytes | Decimal | None
"""The value of a partition field. Dates are days, and times are microseconds, since 1970."""

_SINCE_1970 = ("month", "day")
"""For times before 1970, DuckDB 1.5.5 rounds these periods up. It then misses the rows of the affected partitions."""
_INT32 = np.iinfo(np.int32)
_UNITS = {"year": "Y", "month": "M", "day": "D", "hour": "h"}


def problem_of(field: PartitionField, kind: pa.DataType) -> str:
    """Return the reason why a table cannot be partitioned by ``field`` if the column has the type ``kind`` in data
    files. The result is empty if the type is suitable."""
    is_day, is_time = pa.types.is_date(kind), pa.types.is_timestamp(kind)
    if field.transform in PERIODS:
        fits = is_time or (is_day and field.transform != "hour")
        wanted = "a time" if field.transform == "hour" else "a date or a time"
    elif field.transform == TRUNCATE:
        # Engines disagree about numbers near the ends of their types.
        fits, wanted = pa.types.is_string(kind), "text"
    else:
        fits = is_day or is_time or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        fits = fits or pa.types.is_string(kind) or pa.types.is_binary(kind)
        fits = fits or (pa.types.is_boolean(kind) and field.transform == IDENTITY)
        wanted = "an integer, a decimal, a date, a time, text or bytes"
    return "" if fits else f"{field.transform} needs {wanted}, and the column is {kind} in the data files"


def divided(rows: pa.Table, fields: Sequence[PartitionField]) -> Iterator[tuple[tuple[PartitionValue, ...], pa.Table]]:
    """Yield the rows of each partition, and the values of the partition's fields. The rows of a partition keep their
    order."""
    if not rows.num_rows:
        return
    codes: Int64s = np.zeros(rows.num_rows, np.int64)
    values = []
    for field in fields:
        encoded = _transformed(rows[field.column].combine_chunks(), field).dictionary_encode("encode")
        encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
        _, codes = np.unique(codes * len(encoded.dictionary) + encoded.indices.to_numpy(), return_inverse=True)
        values.append(encoded)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    sorted_rows = rows if len(starts) == 1 else rows.take(pa.array(order))
    for start, end in zip(starts.tolist(), [*starts.tolist()[1:], rows.num_rows], strict=True):
        row = int(order[start])
        yield tuple(_plain(column[row]) for column in values), sorted_rows.slice(start, end - start)


def encode_partition(values: Sequence[PartitionValue]) -> list[Any]:
    """Return partition values as JSON."""
    return [
        {"bytes": value.hex()}
        if isinstance(value, bytes)
        else {"decimal": str(value)}
        if isinstance(value, Decimal)
        else value
        for value in values
    ]


def decode_partition(values: Sequence[Any]) -> tuple[PartitionValue, ...]:
    """Decode the result of `encode_partition`."""
    return tuple(
        (bytes.fromhex(value["bytes"]) if "bytes" in value else Decimal(value["decimal"]))
        if isinstance(value, dict)
        else value
        for value in values
    )


def described(fields: Sequence[PartitionField]) -> str:
    """Return the partitioning as text, for messages."""
    return ", ".join(map(str, fields)) or "nothing"


def _transformed(column: pa.Array, field: PartitionField) -> pa.Array:
    """Return the partition values of a column: integers for dates and times."""
    if field.transform == TRUNCATE:
        return pc.utf8_slice_codeunits(column, 0, field.number)
    if field.transform == BUCKET:
        return _buckets(column, field.number)
    if field.transform in PERIODS:
        unit = "D" if pa.types.is_date(column.type) else "us"
        numbers = pc.fill_null(_numbers(column), 0).to_numpy()
        if unit == "us" and field.transform in _SINCE_1970 and len(numbers) and numbers.min() < 0:
            raise ConfigurationError(
                f"partition_by: {field}: the column has times before 1970, and DuckDB would miss these rows",
                hint="choose year(…), hour(…) or bucket(…) in place of month(…) and day(…), or a column of dates",
            )
        periods = numbers.astype(f"M8[{unit}]").astype(f"M8[{_UNITS[field.transform]}]").astype(np.int64)
        if len(periods) and (periods.min() < _INT32.min or periods.max() > _INT32.max):
            raise ConfigurationError(
                f"partition_by: {field}: the column has times about 245,000 years away from 1970, and Iceberg has no "
                f"number for this {field.transform}",
                hint="choose year(…), month(…), day(…) or bucket(…) in place of hour(…)",
            )
        return pa.array(periods, mask=np.asarray(column.is_null()))
    return _numbers(column) if pa.types.is_temporal(column.type) else column


def _numbers(column: pa.Array) -> pa.Array:
    """Return dates as days, and times as microseconds."""
    return column.view(pa.int32()).cast(pa.int64()) if pa.types.is_date(column.type) else column.view(pa.int64())


def _buckets(column: pa.Array, count: int) -> pa.Array:
    """Return the bucket of each value. Murmur3 hashes the form of the value that Iceberg's specification defines."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        data = column.cast(pa.large_binary())
    elif pa.types.is_decimal(kind):
        data = _decimal_bytes(column)
    else:
        numbers = _numbers(column) if pa.types.is_temporal(kind) else column.cast(pa.int64())
        stored = pc.fill_null(numbers, 0).to_numpy().astype("<i8")
        ends = np.arange(0, 8 * (len(column) + 1), 8, dtype=np.int64)
        data = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(column), [None, pa.py_buffer(ends), pa.py_buffer(stored)]
        )
    offsets = bytes_of(data.buffers()[1]).view(np.int64)[data.offset :][: len(column) + 1]
    out: Int64s = np.zeros(len(column), np.int64)
    content = data.buffers()[2]
    _murmur(bytes_of(content) if content is not None else np.zeros(0, np.uint8), offsets, count, out)
    return pa.array(out, mask=np.asarray(column.is_null()))


def _decimal_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    """Return the shortest two's complement of the unscaled values, big-endian."""
    scale = column.type.scale
    unscaled = [None if one is None else int(one.scaleb(scale)) for one in column.to_pylist()]
    return pa.array(
        [
            b"" if one is None else one.to_bytes((one if one >= 0 else ~one).bit_length() // 8 + 1, "big", signed=True)
            for one in unscaled
        ],
        pa.large_binary(),
    )


def _plain(value: pa.Scalar) -> PartitionValue:
    plain: PartitionValue = value.as_py()
    return plain


@inner
def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF


@kernel
def _murmur(data: Bytes, offsets: Int64s, count: int, out: Int64s) -> None:
    """Write the bucket of each value: the non-negative 32 bits of Murmur3 (x86, seed 0), modulo ``count``."""
    for row in range(len(out)):
        at, end = int(offsets[row]), int(offsets[row + 1])
        length = end - at
        hashed = 0
        while end - at >= 4:
            word = load8(data, at) | load8(data, at + 1) << 8 | load8(data, at + 2) << 16 | load8(data, at + 3) << 24
            word = (word * 0xCC9E2D51) & 0xFFFFFFFF
            word = (_rotated(word, 15) * 0x1B873593) & 0xFFFFFFFF
            hashed = (_rotated(hashed ^ word, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
            at += 4
        word = 0
        for index in range(end - at):
            word |= load8(data, at + index) << (8 * index)
        if end > at:
            word = (word * 0xCC9E2D51) & 0xFFFFFFFF
            hashed ^= (_rotated(word, 15) * 0x1B873593) & 0xFFFFFFFF
        hashed ^= length
        hashed ^= hashed >> 16
        hashed = (hashed * 0x85EBCA6B) & 0xFFFFFFFF
        hashed ^= hashed >> 13
        hashed = (hashed * 0xC2B2AE35) & 0xFFFFFFFF
        hashed ^= hashed >> 16
        out[row] = (hashed & 0x7FFFFFFF) % count


# Writes rows of a partitioned table: each file has rows of one partition.


MOST_PARTITIONS = 200
"""The maximum number of partitions whose rows one task writes. Each has an open file."""
PENDING_BYTES = 2 * ROW_GROUP_BYTES
"""The maximum size, in Arrow bytes, of the rows that are not written yet, in all partitions together."""


class PartitionedWriter(ParquetWriter):
    """A `ParquetWriter` that writes the rows of each partition to separate files.

    :param run: the folder that ``name`` is relative to.
    :param name: the prefix of the names of the files.
    :param schema: the schema of the files.
    :param fields: the partitioning, by columns of ``schema``.
    :param compression: ``digests`` and ``key``: as in `ParquetWriter`.
    """

    def __init__(
        self,
        run: Storage,
        name: str,
        schema: pa.Schema,
        fields: Sequence[PartitionField],
        compression: str = COMPRESSION,
        *,
        digests: bool = False,
        key: str = "",
    ) -> None:
        super().__init__(run, name, schema, compression=compression, digests=digests, key=key)
        self._fields = fields
        self._writers: dict[tuple[PartitionValue, ...], ParquetWriter] = {}

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        for values, part in divided(rows.cast(self._schema), self._fields):
            self._writer(values).write(part)
            while sum(writer.pending_bytes for writer in self._writers.values()) > PENDING_BYTES:
                max(self._writers.values(), key=lambda writer: writer.pending_bytes).flush()

    def _writer(self, values: tuple[PartitionValue, ...]) -> ParquetWriter:
        if values not in self._writers:
            if len(self._writers) == MOST_PARTITIONS:
                raise ConfigurationError(
                    f"a task has rows of more than {MOST_PARTITIONS} partitions (Table.partition_by: "
                    f"{described(self._fields)}), and each needs a file",
                    where=self._run.uri,
                    hint="choose fewer partitions: month(…) or year(…) in place of day(…), or fewer buckets",
                )
            name = f"{self._name}-p{len(self._writers)}"
            self._writers[values] = ParquetWriter(
                self._run,
                name,
                self._schema,
                self._file_bytes,
                compression=self._compression,
                digests=self._digests,
                key=self._key,
            )
        return self._writers[values]

    def close(self) -> None:
        for values, writer in self._writers.items():
            writer.close()
            self.files += [_in_partition(file, values) for file in writer.files]

    def abort(self) -> None:
        for writer in self._writers.values():
            writer.abort()


def _in_partition(file: StagedFile, values: Sequence[PartitionValue]) -> StagedFile:
    stats = FileStats.decoded(file.stats)
    return replace(file, stats=replace(stats, partition=encode_partition(values)).encoded())
