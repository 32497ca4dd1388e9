"""Follows the log, and reads only keys from it.

Each read returns the keys of the rows that were touched since the last read, and whether the rows exist afterwards. The
reads consume a temporary copy of the run's slot step by step, in one session. So the server decodes no change twice,
even if the log is read often. If the server returns a transaction beyond the requested end, the transaction is kept for
the next read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain

import pyarrow as pa

from airflow_provider_cdc.core.positions.position import LogEnd, Lsn
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.log.delta import NET_BYTES, delta_batches
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import read_catalog
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import logged_columns
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.log import walk_state
from airflow_provider_cdc.sources.postgres.log.segments import check_slot, copy_slot, log_reading, take, wait_for_log
from airflow_provider_cdc.sources.postgres.log.walker import LogWalker
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import (
    ReadingConnection,
    log_session,
    mapped_errors,
    session,
    slot_errors,
    value,
)
from airflow_provider_cdc.sources.postgres.slots.waits import parse_log_end

_SEGMENT = 0
_EVERYTHING = 2**63 - 1


class PostgresLogTail:
    """``sources.api.source.LogTail`` for a slot."""

    def __init__(
        self,
        settings: ConnectionSettings,
        reading: ReadingConnection,
        slot: str,
        publication: str,
        initial: Lsn,
        tables: Sequence[TrackedTable],
    ) -> None:
        self.settings = settings
        self._reading = reading
        self._slot, self._publication = slot, publication
        self._initial = self._reached = initial
        self._tables = tables
        self._walker = LogWalker(slot, initial, initial, tables)
        self._copy = copy_slot(reading, slot, initial)
        self._ahead: list[pa.Array] = []

    @property
    def order(self) -> int:
        return int(self._walker.state[walk_state.ORDER])

    @property
    def transactions(self) -> int:
        return int(self._walker.state[walk_state.TRANSACTIONS])

    @property
    def row_images(self) -> int:
        return int(self._walker.state[walk_state.IMAGES])

    def go_on_from(self, order: int) -> None:
        self._walker.state[walk_state.ORDER] = order

    def read(self, log_end: LogEnd | None = None) -> Iterator[pa.RecordBatch]:
        where = f"replication slot {self._slot}"
        with session(self.settings) as source, log_session(self.settings, source) as connection:
            if log_end is not None:
                end, _ = parse_log_end(log_end)
            else:
                end = Lsn.parse(value(source, "pg_current_wal_flush_lsn()::text"))
            check_slot(connection, self._slot, self._initial, end)
        wait_for_log(self.settings, self._reading, end)
        # Without a given end, use every transaction that the server returns.
        self._walker.state[walk_state.STOP] = int(end) if log_end is not None else _EVERYTHING
        with mapped_errors(where), slot_errors(where):
            for _ in self._walk(end):
                if self._walker.change.used_bytes > NET_BYTES:
                    yield from self._net_change()
            self._walker.close()
            yield from self._net_change()
        self._reached = end
        # Leave one unused number between the changes of this read and the changes of the next read.
        self._walker.state[walk_state.ORDER] += 1

    def _walk(self, end: Lsn) -> Iterator[None]:
        ahead, self._ahead = self._ahead, []
        messages = take(self._reading, self._copy, self._publication, self._reached, end)
        with closing(messages):
            for batch in chain(ahead, messages):
                if batch.type != pa.binary():
                    raise DecodeError(f"the messages are of type {batch.type}", where=self._walker.where)
                if self._ahead:
                    self._ahead.append(batch)
                elif self._walker.run(batch):
                    self._ahead.append(batch.slice(int(self._walker.state[walk_state.AT])))
                yield

    def _net_change(self) -> Iterator[pa.RecordBatch]:
        yield from delta_batches(self._walker.change, self._tables, _SEGMENT, decode_images)
        self._walker.change.clear()


@contextmanager
def open_tail(
    settings: ConnectionSettings, start: Lsn, facts: PostgresFacts, tables: Sequence[TrackedTable]
) -> Iterator[PostgresLogTail]:
    """Follow the log from ``start`` on.

    :param facts: has the names of the slots and the publications.
    :param tables: the tables whose log is read. Either all of these tables are rolled ``forward``, or none of them,
        because the log for rolling forward is in another slot.
    :raises LogGone: the slot is gone, or was advanced.
    :raises SourceUnavailable: the server cannot be reached.
    """
    if any(tracked_table.forward for tracked_table in tables):
        facts = facts.of_copies(start)
    slot, publication = facts.slot, facts.publication.name
    with session(settings) as connection:
        columns = read_catalog(connection, lambda catalog: logged_columns(catalog, publication))
    relations = [
        replace(
            tracked_table,
            table=as_logged(tracked_table.table, columns(tracked_table.table)),
            keys_only=True,
            forward=False,
        )
        for tracked_table in tables
    ]
    with log_reading(settings) as reading:
        yield PostgresLogTail(settings, reading, slot, publication, start, relations)


def as_logged(table: Table, names: Sequence[str]) -> Table:
    """Return the table without the columns that are missing in the log.

    :param names: the names of the columns that the log has.
    """
    if len(names) == len(table.columns):
        return table
    logged_indexes = [index for index, column in enumerate(table.columns) if column.name in names]
    places = {index: place for place, index in enumerate(logged_indexes)}
    leaves = [[*leaf[:6], [places[index] for index in leaf[6] if index in places]] for leaf in table.details["leaves"]]
    columns = tuple(table.columns[index] for index in logged_indexes)
    return replace(table, columns=columns, details={**table.details, "leaves": leaves})
