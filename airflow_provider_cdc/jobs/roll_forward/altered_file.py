"""A file of a base copy whose table was altered since. It is read as rows of the present table.

A column that was renamed keeps its values, a dropped column is left out, and a new column has the constant that the
statement gave to all rows. Such a file is always written again: its readers expect the present columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_cdc.core.filters.apply import published_schema
from airflow_provider_cdc.core.parquet.lake_types import to_published
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.jobs.consolidate.touched_rows import RowGroup, TouchedKeys
from airflow_provider_cdc.jobs.roll_forward.rolled_file import RolledFile
from airflow_provider_cdc.sources.api.source import Source


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

    def groups(self, key: Sequence[str], touched: TouchedKeys) -> Iterator[RowGroup]:
        in_file = [self._base.names[name] for name in key if self._base.names[name]]
        if self._base.names[key[0]]:
            yield from super().groups(in_file, touched)
            return
        # All rows have one value in the first column, so no row group can be ruled out.
        for number in range(self.parquet.metadata.num_row_groups):
            group = self.parquet.metadata.row_group(number)
            yield RowGroup(self, number, group.num_rows, group.total_byte_size)

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
