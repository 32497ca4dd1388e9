"""Reads rows of a table by COPY, from the socket into Arrow buffers.

libpq opens the session. After that, this module receives bytes into one buffer. Kernels locate the values in the buffer
and decode them column by column, without creating a Python object for a value. If the session is encrypted and only
libpq can decrypt it (see `verified_tls`), ADBC reads the rows. The arrays are the same, but reading is slower.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int32s,
    Int64s,
    copy_bytes,
    inner,
    kernel,
    load8,
    load16be,
    load32be,
    load64be,
    multiply_add_128,
    negative_128,
    store16,
    store32,
    store64,
    wrapping_add,
)
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import DecodeError, SchemaChanged
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.log.netting import ALL_GOOD, LARGEST, OVERRUN, Located, copy_values
from airflow_provider_cdc.sources.postgres.catalog import types
from airflow_provider_cdc.sources.postgres.catalog.types import ColumnType, Family
from airflow_provider_cdc.sources.postgres.decode import stream as packets
from airflow_provider_cdc.sources.postgres.decode.columns import NO_NUMBER, finish_batch
from airflow_provider_cdc.sources.postgres.decode.image_cells import texts
from airflow_provider_cdc.sources.postgres.decode.stream import CopyStream, is_plain, socket_of
from airflow_provider_cdc.sources.postgres.server import session, session_setup, verified_tls
from airflow_provider_cdc.sources.session import Kept, session_of, without_frames

# Makes Arrow arrays from the values of a COPY in binary format. ADBC would make the same arrays.
#
# So the next step (``columns.finish``) is the same for rows from this module and for rows from ADBC. The types' send
# functions determine the formats: numbers are big-endian, and days and microseconds are counted from 2000-01-01.


_EPOCH_DAYS = 10_957
_EPOCH_MICROS = 946_684_800_000_000
_JSONB_VERSION = 1
_UUID_BYTES = 16

# Signs of a numeric.
_NEGATIVE, _NAN, _INFINITE, _MINUS_INFINITE = 0x4000, 0xC000, 0xD000, 0xF000


def width(column: ColumnType) -> int:
    """Return the size in bytes of each value of a column. -1: the sizes differ."""
    match column.family:
        case Family.BOOL:
            return 1
        case Family.UUID:
            return _UUID_BYTES
        case Family.INTEGER | Family.FLOAT | Family.DATE | Family.TIMESTAMP | Family.TIME:
            return int(column.arrow.bit_width) // 8
    return -1


def row_array(where: str, column: ColumnType, jsonb: bool, located: Located, index: int) -> pa.Array:
    """Return column ``index`` of a batch of rows, as ADBC would read it.

    :param where: the column's name, for messages.
    :param jsonb: whether a byte with the version of the format precedes each text.
    :raises DecodeError: a value is not in the format of a send function.
    """
    rows, starts, lengths = located.rows, located.starts[index], located.lengths[index]
    match column.family:
        case Family.DECIMAL:
            decimals: Int64s = np.zeros(2 * rows, np.int64)
            whole = column.precision - column.scale
            bad = _copy_numerics(located.data, starts, lengths, rows, whole, column.scale, decimals)
            if bad != ALL_GOOD:
                raise DecodeError(f"the value in row {bad} of the batch is not a {column.arrow}", where=where)
            return located.array(index, column.arrow, decimals)
        case Family.TEXT | Family.OUTPUT | Family.LIST:
            if jsonb and _skip_versions(located.data, starts, lengths, rows) != ALL_GOOD:
                raise DecodeError("a jsonb value has another version than 1", where=where)
            if jsonb:
                located.totals[index] -= rows - located.nulls[index]
            return texts(where, located, index)
        case Family.BYTES:
            return _binaries(where, located, index)
        case Family.UUID:
            uuids: Bytes = np.zeros(rows * _UUID_BYTES, np.uint8)
            _copy_uuids(located.data, starts, rows, uuids)
            return located.array(index, pa.binary(_UUID_BYTES), uuids)
        case Family.BOOL:
            bits: Bytes = np.zeros((rows + 7) // 8, np.uint8)
            if _copy_bools(located.data, starts, rows, bits) != ALL_GOOD:
                raise DecodeError("a value is neither true nor false", where=where)
            return located.array(index, column.arrow, bits)
    size = width(column)
    epoch = {Family.DATE: _EPOCH_DAYS, Family.TIMESTAMP: _EPOCH_MICROS}.get(column.family, 0)
    numbers: Bytes = np.empty(rows * size, np.uint8)
    _copy_numbers(located.data, starts, rows, size, epoch, numbers)
    return located.array(index, column.arrow, numbers)


def _binaries(where: str, located: Located, index: int) -> pa.Array:
    total = int(located.totals[index])
    if total > LARGEST:
        raise DecodeError(
            f"the rows have {total} bytes in this column, which is more than an Arrow array can hold", where=where
        )
    offsets: Int32s = np.empty(located.rows + 1, np.int32)
    values = pa.allocate_buffer(total + OVERRUN)
    copy_values(
        located.data, located.starts[index], located.lengths[index], located.rows, offsets,
        np.frombuffer(values, np.uint8),
    )  # fmt: skip
    buffers = [located.validity(index), pa.py_buffer(offsets), values.slice(0, total)]
    return pa.Array.from_buffers(pa.binary(), located.rows, buffers, int(located.nulls[index]))


@kernel
def _copy_numbers(data: Bytes, starts: Int32s, rows: int, size: int, epoch: int, out: Bytes) -> None:
    """Copy numbers of 2, 4 or 8 bytes, and add ``epoch`` to each. As in ADBC, sums that do not fit wrap around."""
    if size == 8:
        for row in range(rows):
            start = int(starts[row])
            store64(out, 8 * row, wrapping_add(load64be(data, start), epoch) if start >= 0 else 0)
    elif size == 4:
        for row in range(rows):
            start = int(starts[row])
            store32(out, 4 * row, load32be(data, start) + epoch if start >= 0 else 0)
    else:
        for row in range(rows):
            start = int(starts[row])
            store16(out, 2 * row, load16be(data, start) if start >= 0 else 0)


@inner
def _power(exponent: int) -> int:
    value = 1
    for _ in range(exponent):
        value *= 10
    return value


@kernel
def _copy_numerics(
    data: Bytes, starts: Int32s, lengths: Int32s, rows: int, whole_digits: int, scale: int, out: Int64s
) -> int:
    """Multiply the values by 10^scale and write them as 128-bit integers. Return the index of the first malformed
    value, or ALL_GOOD.

    A numeric has four two-byte numbers (the number of digits, the weight of the first digit, the sign, and the number
    of decimals to show), and then its digits, in base 10000, two bytes each. Source: numeric_send in PostgreSQL's
    numeric.c.
    """
    for row in range(rows):
        at = int(starts[row])
        if at < 0:
            continue
        length = int(lengths[row])
        if length < 8:
            return row
        digits, sign = load16be(data, at), load16be(data, at + 4)
        weight = load16be(data, at + 2)
        if weight >= 0x8000:
            weight -= 0x10000
        if length != 8 + 2 * digits:
            return row
        if sign != 0 and sign != _NEGATIVE:
            if digits != 0 or (sign != _NAN and sign != _INFINITE and sign != _MINUS_INFINITE):
                return row
            out[2 * row] = sign
            out[2 * row + 1] = NO_NUMBER
            continue
        low = high = 0
        if digits > 0:
            first = load16be(data, at + 8)
            whole = 4 * weight + (1 if first < 10 else 2 if first < 100 else 3 if first < 1000 else 4)
            # The number of decimal places after the last digit. If this number is negative, the value has digits beyond
            # the scale. These digits must be zeros.
            shift = scale + 4 * (weight - digits + 1)
            if whole > whole_digits or shift < -3 or shift > 38:
                return row
            for index in range(digits):
                digit = load16be(data, at + 8 + 2 * index)
                if digit > 9999:
                    return row
                if shift < 0 and index == digits - 1:
                    beyond = _power(-shift)
                    if digit % beyond != 0:
                        return row
                    low, high = multiply_add_128(low, high, _power(4 + shift), digit // beyond)
                else:
                    low, high = multiply_add_128(low, high, 10_000, digit)
            while shift > 0:
                step = min(shift, 18)
                low, high = multiply_add_128(low, high, _power(step), 0)
                shift -= step
        if sign == _NEGATIVE:
            low, high = negative_128(low, high)
        out[2 * row] = low
        out[2 * row + 1] = high
    return ALL_GOOD


@kernel
def _copy_bools(data: Bytes, starts: Int32s, rows: int, out: Bytes) -> int:
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            value = load8(data, start)
            if value > 1:
                return row
            out[row >> 3] |= value << (row & 7)
    return ALL_GOOD


@kernel
def _copy_uuids(data: Bytes, starts: Int32s, rows: int, out: Bytes) -> None:
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            copy_bytes(out, 16 * row, data, start, 16)


@kernel
def _skip_versions(data: Bytes, starts: Int32s, lengths: Int32s, rows: int) -> int:
    for row in range(rows):
        start = int(starts[row])
        if start >= 0:
            if lengths[row] < 1 or load8(data, start) != _JSONB_VERSION:
                return row
            starts[row] = start + 1
            lengths[row] -= 1
    return ALL_GOOD


_BATCH_ROWS = 65_560
"""Maximum number of rows in a batch. With a large power of two, all locations of a row would compete for the same set
of the CPU cache."""
_BATCH_CELLS = 1_000_000
"""Approximate maximum number of values in a batch. This maximum limits the memory for the locations of values in wide
rows (8 bytes per value)."""
_JSONB = 3802

_log = logging.getLogger(__name__)


class RowReader(Protocol):
    """Reads rows of one table in one session.

    ``nulled``: for each column, how many values have been replaced by null so far, because of the policy ``null``.
    ``odd``: the values of the last batch that were replaced by a placeholder, because of the policy ``error``.
    """

    @property
    def nulled(self) -> Mapping[str, int]: ...

    @property
    def odd(self) -> list[OddValue]: ...

    def run(self, sql: str) -> None:
        """Run a statement, and ignore its result."""

    def ask(self, sql: str) -> list[tuple[str | None, ...]]:
        """Return the rows of a query whose columns are all text."""

    def read(self, source: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``source`` (SQL that follows FROM), as batches of ``types.arrow_schema``.

        :raises ValueNotRepresentable: the Arrow type cannot represent a value, and the policy is ``error``.
        :raises SchemaChanged: the rows have other columns than the table.
        :raises DecodeError: the bytes are not values of the columns' types.
        """


Reading: TypeAlias = "CopyStream | session.ReadingConnection"
"""A session that reads rows of tables, without libpq (`CopyStream`) or with ADBC."""


@contextmanager
def open_rows(settings: ConnectionSettings, table: Table, kept: Kept | None = None) -> Iterator[RowReader]:
    """Open a session that reads rows of ``table``. The session ends with the block, unless it is ``kept``."""
    with session_of(kept, "reading", lambda: open_reading(settings)) as reading:
        yield rows_of(reading, table)


def rows_of(reading: Reading, table: Table) -> RowReader:
    """Return a reader of rows of ``table`` in an open session."""
    if isinstance(reading, CopyStream):
        reading.where = str(table.name)
        return CopyReader(reading, table)
    return AdbcReader(reading, table)


def ask(reading: Reading, sql: str) -> list[tuple[str | None, ...]]:
    """Return the rows of a query whose columns are all text."""
    if isinstance(reading, CopyStream):
        return reading.ask(sql)
    # Several columns may have the same name.
    return [
        row
        for batch in session.read(reading, sql)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


@contextmanager
def open_reading(settings: ConnectionSettings) -> Iterator[Reading]:
    """Open a session that reads rows of tables."""
    if verified_tls.applies(settings):
        with suppress(_NotOpened), _verified(settings) as stream:
            yield stream
            return
    with session.session(settings) as connection:
        if is_plain(connection):
            stream = CopyStream(socket_of(connection), settings.address)
            try:
                yield stream
            finally:
                stream.close()
            return
    with session.reading_session(settings) as reading:
        yield reading


class _NotOpened(Exception):
    """A session over verified TLS could not be opened. In that case, libpq opens its own session, or reports why it
    cannot open a session."""


@contextmanager
def _verified(settings: ConnectionSettings) -> Iterator[CopyStream]:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(verified_tls.open_session(settings))
        except (OSError, psycopg.Error) as error:
            _log.info("%s: reading with ADBC, because a session without libpq failed: %s", settings.address, error)
            raise _NotOpened from without_frames(error)
        with session.mapped_errors(settings.address):
            stream = CopyStream(opened.socket, settings.address, opened.received)
            (row,) = stream.ask(session_setup.statement(settings))
            session_setup.check(settings, row)
            yield stream
            stream.end()


class AdbcReader:
    """A ``RowReader`` that uses ADBC."""

    def __init__(self, reading: session.ReadingConnection, table: Table) -> None:
        self.nulled: dict[str, int] = {}
        self.odd: list[OddValue] = []
        self._reading = reading
        self._table = table

    def run(self, sql: str) -> None:
        session.run(self._reading, sql)

    def ask(self, sql: str) -> list[tuple[str | None, ...]]:
        return ask(self._reading, sql)

    def read(self, source: str) -> Iterator[pa.RecordBatch]:
        for batch in session.read(self._reading, f"SELECT {types.select_list(self._table)} FROM {source}"):
            if batch.num_rows:
                self.odd.clear()
                yield finish_batch(self._table, batch, self.nulled, self.odd)


class CopyReader:
    """A ``RowReader`` that reads the socket directly."""

    def __init__(self, stream: CopyStream, table: Table) -> None:
        self.nulled: dict[str, int] = {}
        self.odd: list[OddValue] = []
        self._stream = stream
        self._table = table
        self._types = types.column_types(table)
        self._jsonb = [types.base_type(column)[0] == _JSONB for column in table.columns]
        self._widths = np.array([width(column) for column in self._types], np.int32)
        capacity = max(min(_BATCH_ROWS, _BATCH_CELLS // max(1, len(self._types))), 256)
        self._places: Int32s = np.empty((2, len(self._types), capacity), np.int32)

    def run(self, sql: str) -> None:
        self._stream.run(sql)

    def ask(self, sql: str) -> list[tuple[str | None, ...]]:
        return self._stream.ask(sql)

    def read(self, source: str) -> Iterator[pa.RecordBatch]:
        stream, state = self._stream, self._stream.state
        stream.copy(f"SELECT {types.select_list(self._table, decimals=True)} FROM {source}")
        ended = False
        while not ended:
            nulls: Int64s = np.zeros(len(self._types), np.int64)
            totals: Int64s = np.zeros(len(self._types), np.int64)
            starts, lengths = self._places
            state[packets.STATE_ROWS] = 0
            # A batch must be emitted before the content of the buffer changes, because its values are in the buffer.
            while True:
                code = packets.locate_rows(stream.buffer, state, self._widths, starts, lengths, nulls, totals)
                if code == packets.BAD_ROW:
                    raise SchemaChanged(
                        "the columns of the rows, or their types, differ from the recorded table",
                        where=str(self._table.name),
                        hint="the table changed since the run began: trigger a new run",
                    )
                if code == packets.AT_OTHER:
                    # Emit the located rows first, because the bytes in the buffer may move when the message is read.
                    if state[packets.STATE_ROWS]:
                        break
                    if ended := stream.at_other():
                        break
                if code == packets.NEEDS_ROOM or (code == packets.NEEDS_BYTES and not stream.receive()):
                    break
            rows = int(state[packets.STATE_ROWS])
            if rows:
                yield self._batch(Located(stream.buffer, starts, lengths, nulls, totals, rows))
            elif not ended:
                stream.make_room()
                if not stream.receive():
                    stream.grow()
                continue
            stream.make_room()

    def _batch(self, located: Located) -> pa.RecordBatch:
        name = self._table.name
        arrays = [
            row_array(f"{name}.{column.name}", column, jsonb, located, index)
            for index, (column, jsonb) in enumerate(zip(self._types, self._jsonb, strict=True))
        ]
        names = [column.name for column in self._types]
        self.odd.clear()
        return finish_batch(self._table, pa.RecordBatch.from_arrays(arrays, names), self.nulled, self.odd)
