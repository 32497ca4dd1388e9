"""Divides a keyless table into ranges of a column's values, so that each range can be read at a position of its own
(docs/design/resume.md).

InnoDB stores a table without a key in the order in which its rows were inserted. A column is used only if its values
come in this order, too, and if it has an index: an AUTO_INCREMENT column, or a column with the time of the INSERT. With
another column, the server would look up each row at another place on the disk.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from airflow_provider_cdc.core.tables.chunk import Chunk, KeyValue
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.core.tables.value_range import Edge, ValueRange
from airflow_provider_cdc.sources.mysql.chunking.axes import Axis, DateAxis, axis_of
from airflow_provider_cdc.sources.mysql.server.session import Connection, query
from airflow_provider_cdc.sources.mysql.tables.types import arrow_schema

_COLUMNS = """
SELECT s.COLUMN_NAME, s.INDEX_NAME FROM information_schema.STATISTICS s
JOIN information_schema.COLUMNS c USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME)
JOIN information_schema.TABLES t USING (TABLE_SCHEMA, TABLE_NAME)
WHERE (s.TABLE_SCHEMA, s.TABLE_NAME) = (%s, %s) AND s.SEQ_IN_INDEX = 1 AND s.SUB_PART IS NULL
    AND s.INDEX_TYPE = 'BTREE' AND s.IS_VISIBLE = 'YES' AND c.IS_NULLABLE = 'NO'
    AND t.CREATE_OPTIONS NOT LIKE '%%partitioned%%'
    AND (c.EXTRA LIKE '%%auto_increment%%'
        OR (c.COLUMN_DEFAULT LIKE 'CURRENT_TIMESTAMP%%' AND c.EXTRA NOT LIKE '%%on update%%'))
ORDER BY c.EXTRA LIKE '%%auto_increment%%' DESC, s.COLUMN_NAME, s.INDEX_NAME LIMIT 1
"""


def with_range_key(connection: Connection, table: Table) -> Table | None:
    """Return a keyless table as if the column by which it is divided were its key. None: it cannot be divided."""
    read = {column.name for column in table.as_read.columns}
    for name, index in query(connection, _COLUMNS, (table.name.schema, table.name.name)):
        if name in read and _can_divide(table, name):
            return replace(table, key=(name,), key_index=index)
    return None


def in_ranges(table: Table, chunks: list[Chunk]) -> list[Chunk]:
    """Return chunks of the result of `with_range_key` with their ranges of values."""
    (name,) = table.key
    kind = arrow_schema(table).field(name).type
    return [
        replace(chunk, within=ValueRange(name, *(_edge(bound, kind) for bound in chunk.bounds))) for chunk in chunks
    ]


def _can_divide(table: Table, name: str) -> bool:
    """Return whether the log and the server place each value in the same range. In a table with a condition, a value
    that no Arrow type holds does not stop the run, but it has no known range. Dates that are published as text
    (``unrepresentable``) do not sort like dates."""
    axis = axis_of(table.column(name))
    if type(axis) is Axis:
        return axis.read == "{}"
    is_date = isinstance(axis, DateAxis) and pa.types.is_temporal(arrow_schema(table).field(name).type)
    return is_date and table.selection.where is None


def _edge(bound: tuple[KeyValue, ...] | None, kind: pa.DataType) -> Edge:
    if bound is None:
        return None
    (value,) = bound
    if isinstance(value, int):
        return value
    whole, _, fraction = str(value).partition(".")
    zone = "+00:00" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
    return f"{whole}.{fraction.ljust(6, '0')}{zone}" if pa.types.is_timestamp(kind) else whole
