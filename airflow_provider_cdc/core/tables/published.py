"""Selects the rows and columns to copy. It is used for rows that were read from the table, and for rows that were
restored from the log.

The filter is exact because this code filters both kinds of rows: see docs/design/parts-of-tables.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_provider_cdc.core.filters.evaluator import holds
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.merged import merged_rows, merged_schema
from airflow_provider_cdc.core.tables.table import Table


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


def published_keys(table: Table, rows: pa.RecordBatch) -> pa.BinaryArray:
    """Return the canonical bytes of the published rows of a keyless table. All columns together identify a row of a
    keyless table."""
    return row_bytes.encode(rows, table.published_columns)
