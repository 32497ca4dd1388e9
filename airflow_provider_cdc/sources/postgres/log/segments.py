"""The log as a source of net changes: a replication slot, read by SQL as often as need be.

The slot is only looked into (``peek``), so it stays where it is, and every try reads the same. The server hands out
whole transactions, in the order of their commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa

from airflow_provider_cdc.core.lsn import Lsn
from airflow_provider_cdc.errors import DecodeError, LogGone
from airflow_provider_cdc.sources.base import ConnectionSettings, LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.delta import delta_batches
from airflow_provider_cdc.sources.postgres import slots
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.log import walk_state
from airflow_provider_cdc.sources.postgres.log.walker import LogWalker
from airflow_provider_cdc.sources.postgres.session import (
    Connection,
    ReadingConnection,
    literal,
    mapped_errors,
    quote,
    read,
    reading_session,
    session,
    value,
)

_NEW_RUN = "trigger a new run, or clear lock_and_record and the tasks after it"


def log_segments(
    settings: ConnectionSettings, initial: str, log_end: str, identity: Mapping[str, str]
) -> list[LogSegment]:
    """The one segment that holds every change after ``initial`` up to ``log_end``.

    :param initial: an LSN, the consistent point of the slot.
    :param log_end: an LSN, as ``bound_reads`` noted it.
    :param identity: names the ``slot`` and the ``publication``.
    :raises LogGone: the slot is not there any more, or not where it was.
    :raises SourceUnavailable: the server cannot be reached.
    """
    start, stop = Lsn.parse(initial), Lsn.parse(log_end)
    with session(settings) as connection:
        _check_slot(connection, identity["slot"], start, stop)
    # No slot has a colon in its name.
    return [LogSegment(0, f"{identity['slot']}:{identity['publication']}", int(start), int(stop))]


class PostgresSegmentReader:
    """``sources.base.SegmentReader`` for a slot. It reads the slot when it is iterated over, once."""

    def __init__(
        self, connection: ReadingConnection, segment: LogSegment, initial: Lsn, tables: Sequence[TrackedTable]
    ) -> None:
        assert segment.stop is not None
        self.summary = SegmentSummary(segment)
        self._connection = connection
        self._tables = tables
        self._slot, _, self._publication = segment.name.partition(":")
        self._stop = Lsn(segment.stop)
        self._walker = LogWalker(self._slot, initial, self._stop, tables)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with mapped_errors(self.summary.segment.name):
            self._read()
        yield from delta_batches(self._walker.change, self._tables, self.summary.segment.number, decode_images)

    def _read(self) -> None:
        """Walk the whole segment."""
        started = time.perf_counter()
        walker, summary = self._walker, self.summary
        with closing(read(self._connection, peek(self._slot, self._publication, self._stop))) as batches:
            for batch in batches:
                messages = batch.column(0)
                if messages.type != pa.binary():
                    raise DecodeError(f"the messages are of type {messages.type}", where=walker.where)
                summary.bytes += messages.nbytes
                if walker.run(messages):
                    break
        walker.close()
        summary.transactions = int(walker.state[walk_state.TRANSACTIONS])
        summary.row_images = int(walker.state[walk_state.IMAGES])
        summary.seconds = time.perf_counter() - started


def peek(slot: str, publication: str, stop: Lsn) -> str:
    """The query for a slot's messages, one row each: those of all transactions whose commit record ends at ``stop`` or
    before, and perhaps of some that follow."""
    names = literal(quote(publication))
    return (
        f"SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes({literal(slot)}, {literal(str(stop))}, NULL, "
        f"'proto_version', '1', 'publication_names', {names})"
    )


@contextmanager
def open_segment(
    settings: ConnectionSettings, segment: LogSegment, initial: str, tables: Sequence[TrackedTable]
) -> Iterator[PostgresSegmentReader]:
    """Open one segment of the log.

    :param initial: an LSN, the consistent point of the slot.
    :raises LogGone: the slot is not there any more, or not where it was.
    :raises SourceUnavailable: the server cannot be reached.
    :raises ConfigurationError: the privilege REPLICATION is missing.
    """
    start, stop = Lsn.parse(initial), Lsn(segment.stop or 0)
    with session(settings) as connection:
        _check_slot(connection, segment.name.partition(":")[0], start, stop)
    with reading_session(settings) as reading:
        yield PostgresSegmentReader(reading, segment, start, tables)


def _check_slot(connection: Connection, name: str, initial: Lsn, stop: Lsn) -> None:
    """Make sure that a slot still has everything from ``initial`` on, and that the log reaches to ``stop``.

    :raises LogGone: it has not, or does not.
    """
    slot, where = slots.state(connection, name), f"replication slot {name}"
    if slot is None or slot.lost:
        what = "is gone" if slot is None else f"has lost its log ({slot.wal_status})"
        raise LogGone(f"the slot that kept the log for this run {what}", where=where, mend=_NEW_RUN)
    if slot.confirmed != initial:
        raise LogGone(
            f"the slot was moved from {initial} to {slot.confirmed}: someone else reads from it",
            where=where,
            mend=f"leave the slots that are called {slots.PREFIX}… alone, and {_NEW_RUN}",
        )
    # Where the log ends early, the slot would simply give less.
    flushed = Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
    if flushed < stop:
        raise LogGone(
            f"the log reaches to {flushed} only, and once it did to {stop}",
            where=where,
            mend=f"the server lost what it had, or another one is in its place: {_NEW_RUN}",
        )
