"""Reads the rows of copies, in the columns and types in which they are compared."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import comb
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from airflow_provider_cdc.core.digest.digest import UInt64s, row_hashes
from airflow_provider_cdc.core.parquet.lake_types import to_published
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage.filesystems import convert_store_errors
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.errors import ConfigurationError, FileDamaged
from airflow_provider_cdc.jobs.changes import net_change_files

# Samples of a table: ranges of the first column of the key, drawn at random.
#
# Only keys whose first column is a whole number are sampled, because every program sorts such values in the same way.
# The ranges cover all keys: the first and the last range are unbounded. How many rows a range has affects only the
# work.


MOST_RANGES = 20_000
_LARGEST = 2**63 - 1
"""The largest bound: sources take bounds as signed integers."""
_SURE = 0.95


@dataclass(frozen=True)
class KeyRange:
    """The keys from ``low`` (included) to ``high`` (excluded). None: unbounded."""

    low: int | None
    high: int | None


@dataclass(frozen=True)
class Sample:
    """Some ranges of the column ``column``, in ascending order, of ``total`` ranges of the table."""

    column: str
    ranges: tuple[KeyRange, ...]
    total: int

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows are in one of the ranges. A null is in no range."""
        column = rows.column(self.column)
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        found = np.zeros(len(values), bool)
        for one in self.ranges:
            inside = np.ones(len(values), bool)
            if one.low is not None:
                inside &= values >= one.low
            if one.high is not None:
                inside &= values < one.high
            found |= inside
        return pc.and_(pa.array(found), column.is_valid())

    def may_have(self, least: Any, greatest: Any) -> bool:
        """Return whether a value from ``least`` to ``greatest`` may be in one of the ranges."""
        return any(
            (one.low is None or greatest >= one.low) and (one.high is None or least < one.high) for one in self.ranges
        )

    @property
    def confidence(self) -> str:
        """A statement of the faults that this sample finds."""
        drawn, total = len(self.ranges), self.total
        least = next(count for count in range(1, total + 1) if chance_to_find(drawn, total, count) >= _SURE)
        return (
            f"{drawn:,} of {total:,} ranges: a fault in one range is found with a chance of {drawn / total:.1%}, and "
            f"faults in {least / total:.1%} of the ranges with a chance of {_SURE:.0%}"
        )


def chance_to_find(drawn: int, total: int, faulty: int) -> float:
    """Return the chance that a sample has at least one of the faulty ranges."""
    return 1 - comb(total - faulty, drawn) / comb(total, drawn)


def cut(groups: Iterable[tuple[int, int, int]], range_rows: int) -> list[KeyRange]:
    """Divide the keys into ranges of about ``range_rows`` rows.

    :param groups: the least key, the greatest key and the number of rows of each group of rows, such as a row group.
    """
    ordered = sorted(groups)
    rows = max(range_rows, -(-sum(group[2] for group in ordered) // MOST_RANGES))
    bounds: set[int] = set()
    for least, greatest, count in ordered:
        pieces = -(-count // rows)
        bounds.update(least + (greatest - least) * piece // pieces for piece in range(pieces))
    edges: list[int | None] = [None, *sorted(bound for bound in bounds if bound <= _LARGEST)[1:], None]
    return [KeyRange(low, high) for low, high in pairwise(edges)]


def draw(column: str, ranges: Sequence[KeyRange], count: int, seed: int, table: str) -> Sample | None:
    """Draw ``count`` ranges. None: all rows are to be compared, because the sample would have all ranges."""
    if not count or count >= len(ranges):
        return None
    chosen = sorted(random.Random(f"{seed} {table}").sample(range(len(ranges)), count))
    return Sample(column, tuple(ranges[index] for index in chosen), len(ranges))


BATCH_ROWS = 65_536
_KEYS = "key"
_UNREADABLE = re.compile(r"corrupt|deserialize|decompress|unexpected end|thrift|invalid|malformed|magic", re.IGNORECASE)
"""Texts in the errors with which Arrow rejects the content of a file. Its other `OSError` are errors of the store."""


@dataclass(frozen=True)
class RangeRows:
    """A file of a copy: Parquet, or CSV with a line of column names."""

    folder: Storage
    name: str
    bytes: int = 0

    @property
    def is_csv(self) -> bool:
        return self.name.lower().endswith(".csv")

    @property
    def uri(self) -> str:
        return self.folder.uri_of(self.name)

    def schema(self) -> pa.Schema:
        """Return the columns of the file."""
        with convert_store_errors(self.uri):
            if self.is_csv:
                with self.folder.filesystem.open_input_stream(self.folder.path(self.name)) as stream:
                    return csv.open_csv(stream).schema
            with self._open() as file:
                return file.schema_arrow

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.folder.path(self.name), filesystem=self.folder.filesystem)
        except FileNotFoundError as error:
            raise FileDamaged("it is gone", where=self.uri) from error
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and not _UNREADABLE.search(str(error)):
                raise
            raise FileDamaged(f"it is not a Parquet file: {error}", where=self.uri) from error

    def groups(self, column: str) -> list[tuple[int, int, int]] | None:
        """Return the least and the greatest value of an integer column, and the rows, of each row group; None: the file
        does not tell."""
        if self.is_csv:
            return None
        found = []
        with convert_store_errors(self.uri), self._open() as file:
            if not pa.types.is_integer(file.schema_arrow.field(column).type):
                return None
            at = file.schema_arrow.names.index(column)
            if file.metadata.num_columns != len(file.schema_arrow.names):
                return None
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                statistics = group.column(at).statistics
                if not group.num_rows:
                    continue
                if statistics is None or not statistics.has_min_max:
                    return None
                found.append((int(statistics.min), int(statistics.max), group.num_rows))
        return found

    def batches(
        self, columns: Mapping[str, pa.DataType], key: str = "", sample: Sample | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns of all rows; with a sample, at least of the rows in the sample.

        :param columns: the names of the columns in the file, with the types that their values shall have.
        :param key: the name in the file of the first column of the key.
        """
        with convert_store_errors(self.uri):
            if self.is_csv:
                yield from self._csv(columns)
                return
            with self._open() as file:
                numbers = list(range(file.num_row_groups))
                if sample is not None and (groups := self.groups(key)) is not None and len(groups) == len(numbers):
                    numbers = [at for at, (least, greatest, _) in enumerate(groups) if sample.may_have(least, greatest)]
                try:
                    yield from file.iter_batches(BATCH_ROWS, row_groups=numbers, columns=list(columns))
                except (pa.ArrowInvalid, OSError) as error:
                    if isinstance(error, OSError) and not _UNREADABLE.search(str(error)):
                        raise
                    raise FileDamaged(f"it cannot be read: {error}", where=self.uri) from error

    def _csv(self, columns: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        kinds = {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in columns.items()}
        options = csv.ConvertOptions(
            column_types=kinds,
            include_columns=list(columns),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=["", "\\N"],
            true_values=["t", "true", "True", "TRUE", "1"],
            false_values=["f", "false", "False", "FALSE", "0"],
        )
        with self.folder.filesystem.open_input_stream(self.folder.path(self.name)) as stream:
            try:
                yield from csv.open_csv(stream, convert_options=options)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConfigurationError(f"it cannot be read as CSV: {error}", where=self.uri) from error


@dataclass(frozen=True)
class LeftOut:
    """The keys of one table that a window touched, in the files of its net change."""

    folder: Storage
    files: tuple[StagedFile, ...]
    table: int

    def hashes(self) -> UInt64s:
        """Return the hashes of the keys, sorted."""
        return _hashes(self)


@lru_cache(maxsize=2)
def _hashes(keys: LeftOut) -> UInt64s:
    batches = net_change_files.read(
        keys.folder, keys.files, [_KEYS], schema=net_change_files.NET_SCHEMA, table=keys.table
    )
    hashes = [row_hashes(batch)[0] for batch in batches]
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))


@dataclass(frozen=True)
class RowsToRead:
    """How the rows of one copy are read.

    ``schema`` has the columns that are compared, and their types. ``key`` has the columns of the key; empty: there is
    no key. ``columns`` has the names in the copy of columns that have another name there.
    """

    label: str
    schema: pa.Schema
    key: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    sample: Sample | None = None
    left_out: LeftOut | None = None

    def name_of(self, column: str) -> str:
        """Return the name of a column in the copy."""
        return self.columns.get(column, column)

    def pieces(self, pieces: Iterable[RangeRows]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows of files as `batches` does."""
        columns = {self.name_of(column.name): column.type for column in self.schema}
        first = self.name_of(self.key[0]) if self.key else ""
        for piece in pieces:
            yield from self.batches(piece.batches(columns, first, self.sample))

    def batches(self, found: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the rows to compare, and how many rows were left out because their keys were touched."""
        for batch in found:
            rows = self._shaped(batch)
            if self.sample is not None:
                rows = rows.filter(self.sample.mask(rows))
            count = rows.num_rows
            if self.left_out is not None and count:
                keys = row_bytes.encode(rows, self.key)
                hashes, _ = row_hashes(pa.record_batch([keys], [_KEYS]))
                rows = rows.filter(pa.array(~np.isin(hashes, self.left_out.hashes())))
            yield rows, count - rows.num_rows

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [self._cast(batch.column(self.name_of(column.name)), column) for column in self.schema]
        return pa.RecordBatch.from_arrays(arrays, names=self.schema.names)

    def _cast(self, values: pa.Array, column: pa.Field) -> pa.Array:
        if values.type == column.type:
            return values
        try:
            one = pa.table({column.name: values})
            return to_published(one, pa.schema([column.with_nullable(True)]))[column.name].combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigurationError(
                f"the column {self.name_of(column.name)} has the type {values.type}, and a value cannot be compared as "
                f"{column.type}: {error}",
                where=self.label,
                hint="leave the column out of the mapping, or export it in the type of the source",
            ) from error
