"""Reads rows of a table by COPY, from the socket into Arrow buffers.

libpq opens the session. After that, this module receives bytes into one buffer. Kernels locate the values in the buffer
and decode them column by column, without creating a Python object for a value. If the session is encrypted and only
libpq can decrypt it (see `verified_tls`), ADBC reads the rows. The arrays are the same, but reading is slower.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol

import numpy as np
import psycopg
import pyarrow as pa

from airflow_provider_cdc.core.kernels.compile import Int32s, Int64s
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.log.located_values import Located
from airflow_provider_cdc.sources.postgres.catalog import types
from airflow_provider_cdc.sources.postgres.decode import packets
from airflow_provider_cdc.sources.postgres.decode.columns import finish_batch
from airflow_provider_cdc.sources.postgres.decode.row_cells import row_array, width
from airflow_provider_cdc.sources.postgres.decode.stream import CopyStream, is_plain, socket_of
from airflow_provider_cdc.sources.postgres.server import session, session_setup, verified_tls
from airflow_provider_cdc.sources.session.kept_sessions import Kept, session_of
from airflow_provider_cdc.sources.session.trust import without_frames

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


@contextmanager
def open_rows(settings: ConnectionSettings, table: Table, kept: Kept | None = None) -> Iterator[RowReader]:
    """Open a session that reads rows of ``table``. The session ends with the block, unless it is ``kept``."""
    with session_of(kept, "reading", lambda: _reading(settings)) as reading:
        if isinstance(reading, CopyStream):
            reading.where = str(table.name)
            yield CopyReader(reading, table)
        else:
            yield AdbcReader(reading, table)


@contextmanager
def _reading(settings: ConnectionSettings) -> Iterator[CopyStream | session.ReadingConnection]:
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
        return [tuple(row.values()) for batch in session.read(self._reading, sql) for row in batch.to_pylist()]

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
