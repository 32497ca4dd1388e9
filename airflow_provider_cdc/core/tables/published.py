"""Selects the rows and columns to copy. It is used for rows that were read from the table, and for rows that were
restored from the log.

The filter is exact because this code filters both kinds of rows: see docs/design/parts-of-tables.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.filters.evaluator import holds
from airflow_provider_cdc.core.tables.table import Column, MergedColumn, Shard, Table, TableName

# The columns of merged tables: the schema that all shards share, and the rows of one shard in this schema.


def merged_schema(shard: Shard, schema: pa.Schema) -> pa.Schema:
    """Return the schema of the copies of a merged table.

    :param schema: the schema of the shard's own rows.
    """
    own = [schema.field(column.name).with_nullable(column.nullable) for column in shard.columns]
    return pa.schema([*own, *(pa.field(name, pa.string(), nullable=False) for name in shard.origin_columns)])


def merged_rows(shard: Shard, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a shard in the schema of the merged table, with their origin."""
    own = [rows.column(column.name) for column in shard.columns]
    origin = [pa.repeat(pa.scalar(shard.origin[name], pa.string()), rows.num_rows) for name in shard.origin_columns]
    return pa.RecordBatch.from_arrays([*own, *origin], schema=merged_schema(shard, rows.schema))


def columns_of(table: Table, schema: pa.Schema) -> tuple[MergedColumn, ...]:
    """Return the published columns of a table, as columns of a merged table.

    :param schema: the result of `Source.arrow_schema` for the table.
    """
    columns = (table.column(name) for name in table.published_columns)
    return tuple(_column(column, schema.field(column.name), in_key=column.name in table.key) for column in columns)


def _column(column: Column, published: pa.Field, *, in_key: bool) -> MergedColumn:
    collation = str(column.details.get("collation", "")) if in_key else ""
    return MergedColumn(column.name, _type(column), str(published.type), published.nullable, collation)


def _type(column: Column) -> str:
    """Return the declared type of a column, with the facts that its text leaves out."""
    generated, labels = column.details.get("generated"), column.details.get("labels")
    more = f" generated ({generated})" if generated else ""
    # MySQL's text of an ENUM does not show labels in some character sets.
    hidden = f" {labels}" if labels and column.type.lower().startswith(("enum", "set")) else ""
    return f"{column.type}{more}{hidden}"


def shard_of(
    merged: TableName, tables: Sequence[Table], columns: Sequence[Sequence[MergedColumn]], *, by_name: bool
) -> Shard:
    """Return what the shards of a merged table share: the columns and the key of the first shard.

    :param columns: the result of `columns_of` for each of ``tables``.
    :param by_name: whether the columns are in the order of their names, after those of the key.
    """
    first = tables[0]
    # Columns outside of the key may be null, whatever the shards declare, so that shards can join and become nullable.
    required = {*first.key} - {column.name for own in columns for column in own if column.nullable}
    ordered = list(columns[0])
    if by_name:
        ordered.sort(key=lambda column: (column.name not in first.key, column.name))
        ordered[: len(first.key)] = sorted(ordered[: len(first.key)], key=lambda column: first.key.index(column.name))
    return Shard(merged, tuple(replace(column, nullable=column.name not in required) for column in ordered), first.key)


def differences(columns: Sequence[MergedColumn], key: Sequence[str], other: Shard) -> list[str]:
    """Return how the columns and the key of a table differ from those of a merged table, in a way that is not
    reconciled. The order of the columns may differ. A column may be nullable in the merged table alone.
    """
    wanted: Mapping[str, MergedColumn] = {column.name: column for column in other.columns}
    own = {column.name: column for column in columns}
    found = [f"it has no column {name}" for name in wanted if name not in own]
    found += [f"its column {name} is not in the merged table" for name in own if name not in wanted]
    for name, column in own.items():
        if name not in wanted:
            continue
        merged = wanted[name]
        if (column.type, column.published) != (merged.type, merged.published):
            shown = f" ({column.published}, not {merged.published})" if column.type == merged.type else ""
            found.append(f"its column {name} has the type {column.type}, not {merged.type}{shown}")
        elif column.collation != merged.collation:
            found.append(f"its key column {name} has the collation {column.collation}, not {merged.collation}")
        elif column.nullable and not merged.nullable:
            found.append(f"its column {name} is nullable now")
    if tuple(key) != other.key:
        found.append(f"its key is ({', '.join(key)}), not ({', '.join(other.key)})")
    return found


def published_schema(table: Table, schema: pa.Schema) -> pa.Schema:
    """Return the schema of the published copy of ``table``. The rows of the table have ``schema``."""
    if table.shard is not None:
        return merged_schema(table.shard, schema)
    if not table.selection.columns:
        return schema
    return pa.schema([schema.field(name) for name in table.published_columns])


def published_columns(table: Table, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``rows`` without the columns that are not published, in the form of the copy."""
    if table.shard is not None:
        return merged_rows(table.shard, rows)
    return rows.select(table.published_columns) if table.selection.columns else rows


def matching(
    table: Table, rows: pa.RecordBatch, unknown: Mapping[str, Sequence[int]] | None = None
) -> pa.BooleanArray | None:
    """Return a mask of the ``rows`` that are copied; None: all rows are copied. ``rows`` must have all columns of the
    condition.

    :param unknown: for each column, the rows with a value that no Arrow type can hold. The condition treats such a
        value as null.
    """
    return None if table.selection.where is None else holds(table.selection.where, rows, unknown)


# Values of rows as Python objects, to show them.


def plain_value(scalar: pa.Scalar) -> Any:
    """Return a value as a Python object.

    Dates and times before the year 1 or after the year 9999 become text, because Python cannot hold them.
    """
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_nested(scalar.type):
            return [plain_value(element) for element in scalar.values]
        return f"{scalar.value:,} {'days' if pa.types.is_date(scalar.type) else 'microseconds'} after 1970-01-01"
