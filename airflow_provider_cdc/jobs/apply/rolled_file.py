"""A file of the base copy. Some of its rows may have been deleted by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.parquet.lake_types import to_published
from airflow_provider_cdc.core.parquet.position_deletes import Int64s, read_positions
from airflow_provider_cdc.core.run.staging import StagedFile, difference
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.published import published_schema
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.jobs.apply.touched_rows import BoolArray, MarkedFile, TouchedKeys, TouchedRowGroup
from airflow_provider_cdc.sources.api.source import Source

# Hints of the errors that a roll-forward raises.


DAMAGED = (
    "another program changed the file, or the storage lost it: clear preflight and the tasks after it, or wait for the "
    "next run; with refresh=auto, the table is then read in full"
)
FOREIGN = (
    "the copy's files were changed, or the table was changed without an entry in the log (sql_log_bin=0): read the "
    "table in full (refresh=full), and report the error if it recurs"
)


class RolledFile(MarkedFile):
    """A file of the base copy. Rows that an earlier run deleted are never marked."""

    def __init__(self, folder: Storage, staged: StagedFile, published: pa.Schema) -> None:
        super().__init__(folder, staged, published)
        self._place = folder

    @cached_property
    def first_positions(self) -> Int64s:
        """The position of the first row of each row group, and the number of rows of the file."""
        metadata = self.parquet.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return np.cumsum([0, *rows], dtype=np.int64)

    @cached_property
    def deleted(self) -> Int64s:
        """The sorted positions of the rows that earlier runs deleted.

        :raises FileDamaged: the delete file differs from its record.
        """
        return read_positions(self._place, self.staged, DAMAGED)

    def gone(self, group: int) -> BoolArray | None:
        if self.staged.deletes is None:
            return None
        first, end = self.first_positions[group : group + 2]
        start, stop = np.searchsorted(self.deleted, [first, end])
        mask: BoolArray = np.zeros(int(end - first), np.bool_)
        mask[self.deleted[start:stop] - first] = True
        return mask

    @property
    def marked(self) -> int:
        """The number of rows that are to be removed."""
        return sum(int(mask.sum()) for mask in self.marks.values())

    def deleted_and_marked(self) -> Int64s:
        """Return the sorted positions of the rows that earlier runs deleted, and of those that are to be removed."""
        marked = [np.flatnonzero(mask) + self.first_positions[group] for group, mask in self.marks.items()]
        return np.sort(np.concatenate([self.deleted, *marked]))

    def remaining_rows(self, group: int) -> pa.Table:
        """Read the rows of a row group that earlier runs did not delete."""
        rows, gone = self.read(group), self.gone(group)
        return rows if gone is None else rows.filter(pa.array(~gone))

    def check_whole(self) -> None:
        """Read the whole file, and its deletes, and compare them with their records.

        :raises FileDamaged: a file differs from its record.
        """
        for part in self.staged.parts:
            if what := difference(self._place, part.name, part):
                raise FileDamaged(
                    f"a file of the copy that is rolled forward: {what}",
                    where=self._place.uri_of(part.name),
                    hint=DAMAGED,
                )


# A file of a base copy whose table was altered since. It is read as rows of the present table.
#
# A column that was renamed keeps its values, a dropped column is left out, and a new column has the constant that the
# statement gave to all rows. Such a file is always written again: its readers expect the present columns.


@dataclass(frozen=True)
class BaseColumns:
    """The columns of a base copy. ``published`` is its schema. ``names`` has, for each present column, its name in the
    base copy, or an empty text. ``constants`` has one value for each column that the base copy does not have."""

    published: pa.Schema
    names: Mapping[str, str]
    constants: Mapping[str, pa.Array]


def base_columns(source: Source, table: Table) -> BaseColumns | None:
    """Return the columns of a table's base copy. None: the table was not altered since."""
    if not table.eras:
        return None
    era = table.eras[0]
    new = source.new_columns(table, era)
    published = published_schema(table.of_base, source.arrow_schema(table.of_base))
    names = {one.name: one.was for one in era.fields}
    return BaseColumns(published, names, dict(zip(new.schema.names, new.columns, strict=True)))


class AlteredFile(RolledFile):
    """A file of a base copy with other columns."""

    def __init__(self, folder: Storage, staged: StagedFile, published: pa.Schema, base: BaseColumns) -> None:
        super().__init__(folder, staged, published)
        self._base = base

    def groups(self, key: Sequence[str], touched: TouchedKeys) -> Iterator[TouchedRowGroup]:
        in_file = [self._base.names[name] for name in key if self._base.names[name]]
        if self._base.names[key[0]]:
            yield from super().groups(in_file, touched)
            return
        # All rows have one value in the first column, so no row group can be ruled out.
        for number in range(self.parquet.metadata.num_row_groups):
            group = self.parquet.metadata.row_group(number)
            yield TouchedRowGroup(self, number, group.num_rows, group.total_byte_size)

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        wanted = list(columns) if columns is not None else self._published.names
        in_file = [self._base.names[name] for name in wanted if self._base.names[name]]
        # Read one column at least, because a table without columns has no row count.
        read = in_file or self._base.published.names[:1]
        rows = to_published(self.parquet.read_row_group(group, columns=read), self._base.published)
        schema = pa.schema([self._published.field(name) for name in wanted])
        return pa.table([self._values(rows, field) for field in schema], schema)

    def _values(self, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        was = self._base.names[field.name]
        if was:
            values = rows[was]
            return values if values.type == field.type else values.cast(field.type)
        constant = self._base.constants[field.name]
        values = constant.take(pa.array([0] * rows.num_rows, pa.int64()))
        return pa.chunked_array([values], field.type)
