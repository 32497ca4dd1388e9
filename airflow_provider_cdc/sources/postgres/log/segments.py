"""Reads a replication slot by SQL, and computes the net change.

Changes are read from a temporary copy of the slot. So the slot can be read any number of times, and every try reads the
same changes. The server returns whole transactions, in the order of their commits.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial

import psycopg
import pyarrow as pa

from airflow_provider_cdc.core.positions.position import LogEnd, Lsn, Position
from airflow_provider_cdc.errors import DecodeError, LogGone
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Waiting
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.log.changes import LOG_BYTES
from airflow_provider_cdc.sources.log.delta import NET_BYTES, delta_batches
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.decode.rows import ask
from airflow_provider_cdc.sources.postgres.log import walk_state
from airflow_provider_cdc.sources.postgres.log.walker import LogWalker
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import (
    Connection,
    ReadingConnection,
    literal,
    mapped_errors,
    query,
    quote,
    read,
    reading_session,
    session,
    slot_errors,
    value,
)
from airflow_provider_cdc.sources.postgres.server.session_setup import of_log
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standbys import StandbySession
from airflow_provider_cdc.sources.postgres.slots.waits import EndMark, parse_log_end

FIRST_PART = 20_000
"""The number of messages that the first call for a part of a long window returns. Later calls return at least as
many."""
PART_BYTES = 512 * 2**20
"""Approximate size, in bytes, of the messages that each later call returns. A stretch of the log up to this size is
read by one call."""

_LARGEST_INT = 2**31 - 1
_FLUSHED = "CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() END"
_NEW_RUN = "trigger a new run, or clear the task `lock_and_record` and all tasks after it"


def log_segments(
    settings: ConnectionSettings, start: Lsn, log_end: LogEnd, facts: PostgresFacts, number: int = 0
) -> list[LogSegment]:
    """Return a list with a single segment. The segment has every change from ``start`` up to ``log_end``.

    :param start: the consistent point of the slot, or the end of a recorded piece.
    :param log_end: the end that ``bound_reads`` recorded, or the place of a position.
    :param facts: has the names of the ``slot`` and the ``publication``.
    :raises LogGone: the slot is gone, or was advanced.
    :raises SourceUnavailable: the server cannot be reached.
    """
    stop, mark = parse_log_end(log_end)
    with session(of_log(settings)) as connection:
        check_slot(connection, facts.slot, start, stop)
    return [segment_of(facts.slot, facts.publication.name, start, stop, mark, number)]


def segment_of(slot: str, publication: str, start: Lsn, stop: Lsn, mark: str = "", number: int = 0) -> LogSegment:
    """Return a segment with the transactions whose commit records begin from ``start`` up to ``stop``."""
    # The names of slots contain no colon.
    return LogSegment(number, f"{slot}:{publication}", int(start), int(stop), mark, bytes=int(stop) - int(start))


class PostgresSegmentReader:
    """``sources.sources.api.log.SegmentReader`` for a slot. Iterate over it once to read the slot."""

    def __init__(
        self,
        connection: ReadingConnection,
        segment: LogSegment,
        initial: Lsn,
        tables: Sequence[TrackedTable],
        changes: Callable[[pa.RecordBatch], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        assert segment.stop is not None
        self.summary = SegmentSummary(segment)
        self._emit = changes
        self._progress = progress
        self._connection = connection
        self._tables = tables
        self._slot, _, self._publication = segment.name.partition(":")
        # A piece of a spooled log begins after the initial position.
        self._initial, self._stop = max(initial, Lsn(segment.start)), Lsn(segment.stop)
        self._mark = EndMark.parse(segment.mark) if segment.mark else None
        self._walker = LogWalker(self._slot, self._initial, self._stop, tables, self._mark)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        change = self._walker.change
        where = self.summary.segment.name
        with mapped_errors(where), slot_errors(where):
            for _ in self._read():
                # The log of a slot is read as a single segment, which may be long. So emit the net change in parts.
                if change.used_bytes > NET_BYTES:
                    yield from self._net_change()
                    change.clear()
                    self.summary.parts += 1
                if self._walker.changes.used_bytes > LOG_BYTES:
                    self._emit_changes()
        self._emit_changes()
        yield from self._net_change()

    def _net_change(self) -> Iterator[pa.RecordBatch]:
        return delta_batches(self._walker.change, self._tables, self.summary.segment.number, decode_images)

    def _emit_changes(self) -> None:
        if self._emit is not None and self._walker.changes.wanted:
            for batch in self._walker.changes.batches():
                self._emit(batch)

    def _read(self) -> Iterator[None]:
        """Walk the whole segment. Yield after each batch of messages."""
        started = time.perf_counter()
        walker, summary = self._walker, self.summary
        slot = self._slot, self._publication, self._initial
        parts = messages(self._connection, *slot, self._stop, marked=self._mark is not None)
        with closing(parts):
            for batch in parts:
                if batch.type != pa.binary():
                    raise DecodeError(f"the messages are of type {batch.type}", where=walker.where)
                summary.bytes += batch.nbytes
                ended = walker.run(batch)
                if self._progress is not None:
                    reached = int(walker.state[walk_state.COMMIT]) - int(self._initial)
                    self._progress(max(0, reached), int(walker.state[walk_state.IMAGES]))
                if ended:
                    break
                yield
        walker.close()
        summary.transactions = int(walker.state[walk_state.TRANSACTIONS])
        summary.row_images = int(walker.state[walk_state.IMAGES])
        summary.seconds = time.perf_counter() - started


def messages(
    connection: ReadingConnection, slot: str, publication: str, initial: Lsn, stop: Lsn, *, marked: bool = False
) -> Generator[pa.Array]:
    """Yield the messages of a slot from the position ``initial`` on. The slot is at this position or before it.

    The messages cover all transactions whose commit record ends at ``stop`` or before, and perhaps some later
    transactions. The server keeps the result of a call, in temporary files if necessary, until all of it is decoded. If
    the log is long, one result could fill the server's disk. So a copy of the slot is read in parts. Each call first
    decodes the log again from the beginning of the oldest open transaction. So each part is at least as large as the
    log that is decoded again.

    :param marked: also return the messages that applications wrote. One of these messages is the run's mark
        (`end_mark`).
    :raises LogGone: the slot is gone, or is at another position.
    """
    yield from take(connection, copy_slot(connection, slot, initial), publication, initial, stop, marked=marked)


def copy_slot(connection: ReadingConnection, slot: str, initial: Lsn) -> str:
    """Create a temporary copy of the slot at the position ``initial``. Return the copy's name. The server drops the
    copy when the session ends.

    If the slot is before this position, the copy is advanced. The slot of a run whose log is spooled follows the
    recorded pieces later, and a crash of the server may set it back.

    :raises LogGone: the slot or its log is gone, or the slot is after this position.
    """
    copy = f"{slots.PREFIX}delta_{uuid.uuid4().hex[:12]}"
    sql = f"SELECT lsn::text FROM pg_catalog.pg_copy_logical_replication_slot({literal(slot)}, '{copy}', true)"
    # The server may have removed the slot's log after the last check.
    with slot_errors(f"replication slot {slot}"):
        (batch,) = read(connection, sql)
    at = Lsn.parse(batch.column(0)[0].as_py())
    _check_place(slot, at, initial)
    if at < initial:
        for _ in read(connection, f"SELECT end_lsn::text FROM pg_replication_slot_advance('{copy}', '{initial}')"):
            pass
    return copy


def take(
    connection: ReadingConnection, copy: str, publication: str, start: Lsn, stop: Lsn, *, marked: bool = False
) -> Generator[pa.Array]:
    """Yield and consume the messages of this session's temporary slot ``copy``, whose position is ``start``."""
    # The messages are about as large as the part of the log that is decoded.
    most = FIRST_PART if int(stop) - int(start) > PART_BYTES else _LARGEST_INT
    more = ", 'messages', 'true'" if marked else ""
    while True:
        count = size = 0
        sql = (
            f"SELECT data FROM pg_catalog.pg_logical_slot_get_binary_changes('{copy}', {literal(str(stop))}, {most}, "
            f"'proto_version', '1', 'publication_names', {literal(quote(publication))}{more})"
        )
        for batch in read(connection, sql):
            count += batch.num_rows
            size += batch.nbytes
            yield batch.column(0)
        if count < most:
            return
        most = min(max(FIRST_PART, max(PART_BYTES, _decoded_again(connection, copy)) * count // size), _LARGEST_INT)


def _decoded_again(connection: ReadingConnection, slot: str) -> int:
    """Return how many bytes of log the server must decode again before it reaches the next change of a slot."""
    (batch,) = read(
        connection,
        f"SELECT (confirmed_flush_lsn - restart_lsn)::int8 FROM pg_replication_slots WHERE slot_name = '{slot}'",
    )
    (size,) = batch.column(0).to_pylist()
    return int(size)


@contextmanager
def open_segment(
    settings: ConnectionSettings,
    segment: LogSegment,
    start: Lsn,
    tables: Sequence[TrackedTable],
    changes: Callable[[pa.RecordBatch], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[PostgresSegmentReader]:
    """Open one segment of the log.

    :param start: the initial position.
    :param changes, progress: as in `Source.read_segment`.
    :raises LogGone: the slot is gone, or was advanced.
    :raises SourceUnavailable: the server cannot be reached.
    :raises ConfigurationError: the privilege REPLICATION is missing.
    """
    stop = Lsn(segment.stop or 0)
    with session(of_log(settings)) as connection:
        check_slot(connection, segment.name.partition(":")[0], max(start, Lsn(segment.start)), stop)
    with log_reading(settings) as reading:
        wait_for_log(settings, reading, stop)
        yield PostgresSegmentReader(reading, segment, start, tables, changes, progress)


def check_slot(connection: Connection, name: str, initial: Lsn, stop: Lsn) -> None:
    """Check that a slot still has all of the log from ``initial`` on, and that the log reaches ``stop``. The log of a
    standby need not reach it yet (`wait_for_log`).

    :raises LogGone: the slot is gone or was advanced further, or the log ends before ``stop``.
    """
    slot, where = slots.state(connection, name), f"replication slot {name}"
    if slot is None or slot.lost:
        what = "is gone" if slot is None else f"has lost its log ({slot.wal_status})"
        raise LogGone(f"the slot that kept the log for this run {what}", where=where, hint=_NEW_RUN)
    _check_place(name, slot.confirmed, initial)
    # If the log ended before ``stop``, the slot would return fewer changes, and no error.
    flushed = value(connection, f"{_FLUSHED}::text")
    if flushed is not None and Lsn.parse(flushed) < stop:
        raise LogGone(
            f"the log ends at {flushed}, but earlier its end was at {stop}",
            where=where,
            hint=f"the server lost a part of its log, or another server answers in its place: {_NEW_RUN}",
        )


def log_reading(settings: ConnectionSettings) -> AbstractContextManager[ReadingConnection]:
    """Open a session that reads the run's slot, on the source or on a standby."""
    return reading_session(of_log(settings))


def wait_for_log(settings: ConnectionSettings, reading: ReadingConnection, stop: Lsn) -> None:
    """Wait until the server of the session ``reading`` has the log of the source up to ``stop``. Only a standby may
    lack some of it.

    :raises ExactnessError: the standby does not replay the log of the source.
    :raises SourceUnavailable: the standby does not have the log in time, or was promoted.
    """
    if settings.log_server is not None:
        standby, seconds = settings.log_server, settings.replica_wait_seconds
        StandbySession(partial(ask, reading), settings, standby, seconds).wait_for_log(stop)


def _check_place(slot: str, confirmed: Lsn | None, initial: Lsn) -> None:
    if confirmed is None or confirmed > initial:
        raise LogGone(
            f"the slot was moved from {initial} to {confirmed}: another client reads from it",
            where=f"replication slot {slot}",
            hint=f"do not use slots whose names begin with {slots.PREFIX} in other programs, and {_NEW_RUN}",
        )


# Pieces of the log that a run's slot keeps. The slot follows the recorded pieces, so the server can remove their log.
#
# A piece is a range of LSNs. A transaction belongs to the piece in which its commit record begins. The slot may be at
# any position before the piece: the reader skips older transactions by their positions. So it does no harm if a crash
# sets the slot back.


_RESTART = "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s AND database = current_database()"


def waiting(settings: ConnectionSettings, initial: Lsn, facts: PostgresFacts, place: LogEnd) -> Waiting:
    """`Source.waiting`."""
    start = parse_log_end(place)[0] if place else initial
    with session(of_log(settings)) as connection:
        flushed = Lsn.parse(value(connection, f"COALESCE({_FLUSHED}, pg_last_wal_replay_lsn())::text"))
        rows = query(connection, _RESTART, (facts.slot,))
        limit, used = slots.room(connection, "max_replication_slots", 0)
    restart = Lsn.parse(rows[0][0]) if rows and rows[0][0] else start
    obstacle = ""
    if limit - used < 2:
        # An exported snapshot needs a slot when it begins, or begins again. It must not wait for a long piece.
        obstacle = f"fewer than 2 replication slots are free (max_replication_slots = {limit})"
    return Waiting(max(0, int(flushed) - int(start)), max(0, int(start) - int(restart)), obstacle)


def check_joined(settings: ConnectionSettings, start: LogEnd, end: LogEnd, initial: Lsn, facts: PostgresFacts) -> None:
    """`Source.check_joined`. The log must still have the mark that was written before ``end``."""
    begin, (stop, mark) = parse_log_end(start)[0] if start else initial, parse_log_end(end)
    slot, publication = facts.slot, facts.publication.name
    if not mark:
        # The piece ends at a position to which the run moved. No mark was written there.
        raise LogGone(
            "the server restarted, and no mark shows that it still has the log of the last piece",
            where=f"replication slot {slot}, before {stop}",
        )
    with session(of_log(settings)) as connection:
        check_slot(connection, slot, begin, stop)
    walker = LogWalker(slot, begin, stop, [], EndMark.parse(mark))
    with log_reading(settings) as reading, mapped_errors(slot), slot_errors(slot):
        wait_for_log(settings, reading, stop)
        with closing(messages(reading, slot, publication, begin, stop, marked=True)) as parts:
            for batch in parts:
                if walker.run(batch):
                    break
        walker.close()


def place_is_before(one: LogEnd, other: LogEnd) -> bool:
    """`Source.is_before`."""
    return parse_log_end(one)[0] < parse_log_end(other)[0]


def is_within(position: str, upper: Position) -> bool:
    """`Source.is_within`. A transaction is in a position if its commit record begins before it."""
    return Lsn.parse(position) < Lsn.expect(upper)


def acknowledge(settings: ConnectionSettings, facts: PostgresFacts, end: LogEnd) -> None:
    """`Source.acknowledge`."""
    name, target = facts.slot, parse_log_end(end)[0]
    with session(of_log(settings)) as connection:
        slot = slots.state(connection, name)
        if slot is None or slot.lost or slot.confirmed is None or slot.confirmed >= target:
            return
        try:
            query(connection, "SELECT pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)", (name, str(target)))
        except (psycopg.errors.ObjectInUse, psycopg.errors.ObjectNotInPrerequisiteState):
            # Another attempt acknowledges at the same time, or has already advanced the slot further.
            return
