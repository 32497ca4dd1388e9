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

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    kernel,
    load8,
    load16,
    load32,
    multiply_add_128,
    negative_128,
)
from airflow_provider_cdc.core.tables.chunk import KeyValue
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError, DecodeError
from airflow_provider_cdc.sources.api.unrepresentable import OddValue, check_noted
from airflow_provider_cdc.sources.mysql.decode import stream as packets
from airflow_provider_cdc.sources.mysql.decode.cells import (
    ALL_GOOD,
    Cells,
    Located,
    bit_cells,
    byte_cells,
    check,
    fixed_cells,
    integer_cells,
    number_cells,
    pack_datetime,
    wide_row_cells,
)
from airflow_provider_cdc.sources.mysql.decode.columns import finish
from airflow_provider_cdc.sources.mysql.decode.prepared import PreparedStatement
from airflow_provider_cdc.sources.mysql.decode.stream import MOST_WARNINGS, ResultStream
from airflow_provider_cdc.sources.mysql.server.driver import RESULT_TOO_LONG, mapped_errors
from airflow_provider_cdc.sources.mysql.server.session import Connection, end, query, quote, table_sql
from airflow_provider_cdc.sources.mysql.tables.generated import has_bounded_results
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, arrow_schema, column_types

# Converts values in the rows of a prepared statement's result to cells.
#
# The format is described in MySQL's documentation of "Binary Protocol Value". Decimals are sent as text. Dates and
# times are sent as structs of 0 to 12 bytes. Trailing parts that are zero are omitted.


def row_cells(located: Located, index: int, column: ColumnType) -> Cells:
    """Return the cells of column ``index`` of a batch of result rows.

    :raises DecodeError: a value does not follow the format.
    """
    match column.family:
        case Family.NUMBER | Family.YEAR:
            return number_cells(located, index, column, column.row_width)
        case Family.ENUM | Family.SET:
            return integer_cells(located, index, column.row_width)
        case Family.BITS:
            return bit_cells(located, index, column, located.lengths[index])
        case Family.DECIMAL:
            return _decimal_cells(located, index, column)
        case Family.WIDE_DECIMAL:
            return wide_row_cells(located, index, column)
        case Family.DATE | Family.DATETIME | Family.TIMESTAMP | Family.TIME:
            return _temporal_cells(located, index, column)
        case Family.BYTES | Family.TEXT | Family.JSON | Family.VECTOR:
            return byte_cells(located, index, column)


def _decimal_cells(located: Located, index: int, column: ColumnType) -> Cells:
    values = pa.allocate_buffer(located.rows * 16)
    bad = _parse_decimals(
        located.data,
        located.starts[index],
        located.lengths[index],
        located.rows,
        column.precision,
        column.scale,
        np.frombuffer(values, np.int64),
    )
    check(bad, column, f"not a decimal({column.precision},{column.scale})")
    return fixed_cells(located, index, values)


def _temporal_cells(located: Located, index: int, column: ColumnType) -> Cells:
    values = pa.allocate_buffer(located.rows * 8)
    parse = _parse_times if column.family is Family.TIME else _parse_datetimes
    bad = parse(
        located.data,
        located.starts[index],
        located.lengths[index],
        located.rows,
        np.frombuffer(values, np.int64),
    )
    check(bad, column, f"not a {column.family.value}")
    return fixed_cells(located, index, values)


@kernel
def _parse_decimals(
    data: Bytes, starts: Int32s, lengths: Int32s, rows: int, precision: int, scale: int, out: Int64s
) -> int:
    for row in range(rows):
        start = int(starts[row])
        low = high = 0
        if start >= 0:
            length = int(lengths[row])
            # The precision does not count three characters that the text may have: a sign, a point, and a zero before
            # the point.
            if length == 0 or length > precision + 3:
                return row
            end = start + length
            negative = load8(data, start) == 45
            position = start + 1 if negative else start
            while position < end and load8(data, position) == 48:
                position += 1
            group, power, digits, point = 0, 1, 0, -1
            while position < end:
                character = load8(data, position)
                position += 1
                if character == 46 and point < 0:
                    point = position
                    continue
                if character < 48 or character > 57:
                    return row
                digits += 1
                group = group * 10 + (character - 48)
                power *= 10
                if power == 1_000_000_000_000_000_000:
                    low, high = multiply_add_128(low, high, power, group)
                    group, power = 0, 1
            if digits > precision or (end - point if point >= 0 else 0) != scale:
                return row
            low, high = multiply_add_128(low, high, power, group)
            if negative:
                low, high = negative_128(low, high)
        out[2 * row] = low
        out[2 * row + 1] = high
    return ALL_GOOD


@kernel
def _parse_datetimes(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        packed = 0
        if start >= 0:
            length = lengths[row]
            if length != 0 and length != 4 and length != 7 and length != 11:
                return row
            if length:
                year, month, day = load16(data, start), load8(data, start + 2), load8(data, start + 3)
                hour = minute = second = micro = 0
                if length > 4:
                    hour, minute, second = load8(data, start + 4), load8(data, start + 5), load8(data, start + 6)
                if length > 7:
                    micro = load32(data, start + 7)
                if year > 9999 or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
                    return row
                packed = pack_datetime(year, month, day, hour, minute, second, micro)
        out[row] = packed
    return ALL_GOOD


@kernel
def _parse_times(data: Bytes, starts: Int32s, lengths: Int32s, rows: int, out: Int64s) -> int:
    for row in range(rows):
        start = int(starts[row])
        value = 0
        if start >= 0:
            length = lengths[row]
            if length != 0 and length != 8 and length != 12:
                return row
            if length:
                negative, days = load8(data, start), load32(data, start + 1)
                hour, minute, second = load8(data, start + 5), load8(data, start + 6), load8(data, start + 7)
                micro = load32(data, start + 8) if length > 8 else 0
                if negative > 1 or days > 34 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
                    return row
                value = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + micro
                if negative:
                    value = -value
        out[row] = value
    return ALL_GOOD


# Detects values that the server left out because they are longer than its ``max_allowed_packet``.
#
# Instead of such a value, the server returns NULL for the result of a function (for example, in a VIRTUAL column), and
# the empty text for a JSON document. The statement does not fail; the server only adds a warning. The log has no such
# limit. So a copy would contain the value in rows from the log, but not in rows from a SELECT.


def check_whole(connection: Connection, table: Table, warnings: int) -> None:
    """Check the warnings of the last statement, to make sure that the server left out no value in the result.

    :param warnings: the number of warnings.
    :raises ConfigurationError: a value was left out, or the statement had too many warnings to exclude this.
    """
    listed = query(connection, "SHOW WARNINGS")
    if messages := [str(text) for _, code, text in listed if code == RESULT_TOO_LONG]:
        raise ConfigurationError(
            f"a value is too long for the server to send: {messages[0]} (MySQL warning {RESULT_TOO_LONG})",
            where=str(table.name),
            hint="raise max_allowed_packet on the server, to at most 1G; if the value is longer than that, leave its "
            "column out",
        )
    listed_all = len(listed) == warnings < MOST_WARNINGS
    if not listed_all and _may_be_left_out(connection, table):
        raise ConfigurationError(
            f"a SELECT had {warnings:,} warnings, of which the server lists {len(listed):,}: another may say that a "
            f"value was left out because it is longer than max_allowed_packet (MySQL warning {RESULT_TOO_LONG})",
            where=str(table.name),
            hint=f"raise max_error_count on the server (to at most {MOST_WARNINGS - 1}), decrease the option "
            "`Read.chunk_rows`, or leave out the VIRTUAL column that causes the warnings"
            + (f": {listed[0][2]}" if listed else ""),
        )


def _may_be_left_out(connection: Connection, table: Table) -> bool:
    virtual = {column.name for column in table.columns if column.details.get("generated") == "virtual"}
    expressions = query(
        connection,
        "SELECT COLUMN_NAME, GENERATION_EXPRESSION FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (table.name.schema, table.name.name),
    )
    return any(column.type == "json" for column in table.columns) or not all(
        has_bounded_results(str(expression)) for name, expression in expressions if name in virtual
    )


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
        left before its end, the session is closed, because the server would continue to send. The session is also
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
