"""Reads rows of a table with prepared statements, from the socket into Arrow buffers.

PyMySQL opens the session and handles the protocol until the rows arrive. After that, this module receives the bytes
into one buffer. Kernels locate the values in it and decode them, column by column. No value becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError, DecodeError
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, check_noted
from airflow_provider_cdc.sources.mysql.decode import packets
from airflow_provider_cdc.sources.mysql.decode.cells import Located
from airflow_provider_cdc.sources.mysql.decode.columns import finish
from airflow_provider_cdc.sources.mysql.decode.prepared import PreparedStatement
from airflow_provider_cdc.sources.mysql.decode.row_cells import row_cells
from airflow_provider_cdc.sources.mysql.decode.stream import ResultStream
from airflow_provider_cdc.sources.mysql.decode.too_long import check_whole
from airflow_provider_cdc.sources.mysql.server.driver_errors import mapped_errors
from airflow_provider_cdc.sources.mysql.server.session import Connection, end, query, quote
from airflow_provider_cdc.sources.mysql.tables.schema import table_sql
from airflow_provider_cdc.sources.mysql.tables.types import arrow_schema, column_types

_BATCH_ROWS = 65_560
"""The maximum number of rows per batch. This number is not a large power of two, because then all locations of a row
would compete for the same set of the CPU cache."""
_BATCH_CELLS = 1_000_000
"""Limits the memory for the locations of values in rows of a wide table, at 8 bytes per value."""


class StatementReader:
    """Reads rows of one table on one session. Nothing else may use the session while a ``read`` is being iterated.

    The session must be from ``session.connect(reading=True)``. Statements stay prepared for the next ``read`` with the
    same condition, until ``close`` or the end of the session.

    ``nulled``: for each column, the number of values that the policy ``null`` has made null so far. ``odd``: the values
    of the last batch that a placeholder replaces because of the policy ``error``, and other values that the table's
    condition treats as null.

    :raises ConfigurationError: the session would convert text or shift times, or a column's type is not in the table of
        types.
    """

    def __init__(self, connection: Connection, table: Table) -> None:
        self.schema = arrow_schema(table)
        self.nulled: dict[str, int] = {}
        self.odd: list[OddValue] = []
        self._connection = connection
        self._table = table
        self._name = str(table.name)
        self._types = column_types(table)
        looked_at = table.selection.where.columns if table.selection.where is not None else ()
        # A value that is published as text does not stop the run, but the condition on the table treats the value as
        # null.
        self._noted = [column.policy == "error" or column.name in looked_at for column in self._types]
        self._widths = np.array([column.row_width for column in self._types], np.int32)
        self._statements: dict[str, PreparedStatement] = {}
        self._stream = ResultStream(connection, self._name)
        capacity = max(min(_BATCH_ROWS, _BATCH_CELLS // len(self._types)), 256)
        self._places = np.empty((2, len(self._types), capacity), np.int32)
        with mapped_errors(self._name):
            (results, zone), *_ = query(connection, "SELECT @@character_set_results, @@time_zone")
        if results is not None or zone != "+00:00":
            raise ConfigurationError(
                f"the session has character_set_results={results} and time_zone={zone}",
                where=self._name,
                hint="open it with session.connect(reading=True)",
            )

    def read(self, where: str, params: Sequence[KeyValue]) -> Iterator[pa.RecordBatch]:
        """Yield the rows for which ``where`` is true, in batches of ``schema``.

        The memory use is limited to some megabytes, or to a few times the size of the largest row. If the iterator is
        abandoned before its end, the session is closed, because the server would continue to send. The session is also
        closed after any error that the server did not report itself.

        :param where: an SQL condition with a ``?`` for each of ``params``; empty: all rows.
        :raises SourceUnavailable: the session broke.
        :raises TableUnreadable: the server cannot read the table.
        :raises SchemaChanged: the table no longer has these columns.
        :raises ValueNotRepresentable: no Arrow type can hold a value.
        :raises ConfigurationError: the server left out a value that is longer than its ``max_allowed_packet``.
        :raises DecodeError: the server sent something that is not a row of the table.
        """
        with mapped_errors(self._name, table=self._name):
            statement = self._statements.get(where)
            if statement is None:
                statement = self._statements[where] = PreparedStatement(self._connection, self._sql(where))
            try:
                statement.execute(params)
                self._stream.open(self._types)
                more = True
                while more:
                    located, more = self._locate()
                    if not more and self._stream.warnings:
                        check_whole(self._connection, self._table, self._stream.warnings)
                    if located.rows:
                        yield self._decode(located)
            finally:
                if not self._stream.ended:
                    end(self._connection)

    def close(self) -> None:
        """Deallocate the statements on the server. The session stays open."""
        statements, self._statements = self._statements, {}
        if self._connection.open:
            with mapped_errors(self._name):
                for statement in statements.values():
                    statement.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sql(self, where: str) -> str:
        columns = ", ".join(column.select for column in self._types)
        condition = f" WHERE {where}" if where else ""
        return f"SELECT {columns} FROM {_rows_of(self._table)}{condition}"

    def _locate(self) -> tuple[Located, bool]:
        """Receive and locate rows until the buffer is full or a batch is complete. Return the located rows, and whether
        more rows will come."""
        stream, count = self._stream, len(self._types)
        stream.make_room()
        stream.state[packets.STATE_ROWS] = 0
        starts, lengths = self._places
        nulls, totals = np.zeros((2, count), np.int64)
        more = True
        while True:
            code = packets.locate_rows(stream.buffer, stream.state, self._widths, starts, lengths, nulls, totals)
            rows = int(stream.state[packets.STATE_ROWS])
            if code == packets.NEEDS_BYTES:
                if stream.receive():
                    continue
                if not rows:
                    stream.make_room()
                    stream.grow()
                    continue
            elif code == packets.AT_LAST:
                stream.finish()
                more = False
            elif code < 0:
                raise DecodeError("a packet that is not a row of the table", where=self._name)
            return Located(stream.buffer, starts, lengths, nulls, totals, rows), more

    def _decode(self, located: Located) -> pa.RecordBatch:
        self.odd.clear()
        arrays = [
            finish(self._name, column, row_cells(located, index, column), self.nulled, self.odd if noted else None)
            for index, (column, noted) in enumerate(zip(self._types, self._noted, strict=True))
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        check_noted(self._table, batch, self.odd)
        return batch


def _rows_of(table: Table) -> str:
    """Return the FROM item of the SELECT."""
    name = table_sql(table.name)
    if not table.selection.columns:
        return name
    # If a secondary index covers the selected columns, the server would otherwise read the rows in the order of that
    # index.
    return f"{name} FORCE INDEX ({quote(table.key_index)})" if table.key_index else f"{name} USE INDEX ()"
