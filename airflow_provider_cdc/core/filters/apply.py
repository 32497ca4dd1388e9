"""Takes the part of rows that is copied: of those that were read, and of those that the log puts back.

That both go through here is what makes the filter exact: see docs/design/parts-of-tables.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_provider_cdc.core.filters.evaluator import holds
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Table


def published_schema(table: Table, schema: pa.Schema) -> pa.Schema:
    """What the copy of ``table``, whose rows have ``schema``, is published as."""
    if not table.selection.columns:
        return schema
    return pa.schema([schema.field(name) for name in table.published_columns])


def published_columns(table: Table, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows without the columns that are not published."""
    return rows.select(table.published_columns) if table.selection.columns else rows


def matching(
    table: Table, rows: pa.RecordBatch, unknown: Mapping[str, Sequence[int]] | None = None
) -> pa.BooleanArray | None:
    """Which of a table's ``rows`` (with all columns that the condition looks at) are copied; None: all of them.

    :param unknown: by column, the rows with a value that no Arrow type holds: to the condition it is null.
    """
    return None if table.selection.where is None else holds(table.selection.where, rows, unknown)


def published_keys(table: Table, rows: pa.RecordBatch) -> pa.BinaryArray:
    """What tells the published rows of a keyless table apart: all of their columns."""
    return row_bytes.encode(rows, table.published_columns)
