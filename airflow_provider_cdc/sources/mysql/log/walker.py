"""Reads the events of binary log files. The kernel in ``walk.py`` handles the frequent events. This module handles all
other events.

The kernel returns at every event that it cannot handle. If this module does not know the event either, the run stops.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import zstandard

from airflow_provider_cdc.core.kernels import Bytes, Int64s
from airflow_provider_cdc.core.positions.gtid import Gtid, GtidSet
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sources.api.window import (
    Committed,
    PreparedError,
    SegmentSummary,
    StatementWrite,
    TrackedTable,
)
from airflow_provider_cdc.sources.log.changes import NO_TIME, ChangeLog, Outcome
from airflow_provider_cdc.sources.log.delta import NetChange, order_base
from airflow_provider_cdc.sources.log.netting import HEADER, USED, apply_prepared
from airflow_provider_cdc.sources.mysql.log import events, refusals, walk_state
from airflow_provider_cdc.sources.mysql.log.commits import TSID_BYTES, in_set, tsid_parts
from airflow_provider_cdc.sources.mysql.log.dump import TABLES
from airflow_provider_cdc.sources.mysql.log.row_events import MOST_RECORDS, KeyRanges, layouts, parents_of
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.statements.meaning import EVERY_TABLE, Meaning, meaning
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import names_of
from airflow_provider_cdc.sources.mysql.log.walk import TableMaps, walk
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.tables.cascades import relies_on_log

# XA transactions in a log segment. The server logs the changes of an XA transaction when it is prepared. The changes
# take effect only when the transaction is committed.
#
# If a transaction is prepared and decided (committed or rolled back) in the same segment, the outcome is applied to the
# net change at the decision. For other transactions, the segment records the changes or the outcome under the
# transaction's *ids*. The ids are the XID and, for each table that was read at one position, the XID with the table's
# index. Such a table needs a separate id because a commit may be after the position of one table and before the
# position of another.


@dataclass
class PreparedTransaction:
    """An XA transaction, from XA START on.

    ``arena[start:stop]`` contains the records of the transaction, and may contain other records. ``error`` is an error
    found in its changes, if any. The error stops the run only if the changes count.
    """

    number: int
    xid: str
    start: int
    stop: int = 0
    error: CdcError | None = None


class XaLedger:
    """The XA transactions of one segment, by number."""

    def __init__(self, change: NetChange, tracked: Sequence[TrackedTable]) -> None:
        self.transactions: list[PreparedTransaction] = []
        self.undecided: dict[str, PreparedTransaction] = {}
        self.open: PreparedTransaction | None = None
        self._change = change
        self._tracked = tracked

    def begin(self, xid: str) -> PreparedTransaction:
        """Handle XA START of a transaction."""
        self.open = PreparedTransaction(len(self.transactions), xid, int(self._change.state[USED]))
        self.transactions.append(self.open)
        return self.open

    def prepare(self) -> PreparedTransaction:
        """Handle XA PREPARE, or XA COMMIT ONE PHASE, of the open transaction."""
        assert self.open is not None
        prepared, self.open = self.open, None
        prepared.stop = int(self._change.state[USED])
        self.undecided[prepared.xid] = prepared
        return prepared

    def resolve(self, xid: str, counts: Bytes, order: int) -> None:
        """Apply the outcome of a transaction that was prepared in this segment.

        :param counts: for each table, whether the commit counts; all zero for XA ROLLBACK.
        :raises CdcError: the transaction's ``error``, if its changes count.
        """
        prepared = self.undecided[xid]
        if prepared.error is not None and counts.any():
            raise prepared.error
        change = self._change
        # Each record may need a second slot in the hash table. A record has at least HEADER words, so the size of the
        # range limits the number of records in it.
        most = (prepared.stop - prepared.start) // HEADER
        if not change.has_slots(most):
            self.reserve(most, 0)
        del self.undecided[xid]
        apply_prepared(change.arrays, prepared.start, prepared.stop, prepared.number, counts, change.keyless, order)

    def reserve(self, records: int, words: int) -> None:
        """Make room in the net change. This moves the records."""
        waiting = [*self.undecided.values(), *([self.open] if self.open else [])]
        waiting.sort(key=lambda prepared: prepared.number)
        marks: Int64s = np.array(
            [mark for transaction in waiting for mark in (transaction.start, transaction.stop or transaction.start)],
            np.int64,
        )
        self._change.reserve(records, words, marks)
        for transaction, (start, stop) in zip(waiting, marks.reshape(-1, 2).tolist(), strict=True):
            transaction.start = start
            transaction.stop = stop if transaction.stop else 0

    def decided_elsewhere(
        self, xid: str, counts: Bytes, ignored: bool, order: int, summary: SegmentSummary
    ) -> list[str]:
        """Record the outcome of a transaction that was prepared in an earlier segment. Return the ids under which its
        changes count.

        :param ignored: whether the transaction was rolled back, or committed within the initial position. Such a
            transaction has no effect on tables without a bound.
        """
        outcomes = [(xid, not ignored)]
        outcomes += [
            (tracked_table.pending(xid), bool(counts[index]))
            for index, tracked_table in enumerate(self._tracked)
            if tracked_table.bounded
        ]
        for name, counted in outcomes:
            if counted:
                summary.decided[name] = order_base(summary.segment.number) + order
            else:
                summary.rolled_back.append(name)
        return [name for name, counted in outcomes if counted]

    def close(self, summary: SegmentSummary) -> None:
        """Finish the segment: record the ids of all transactions that are prepared, but not decided, in it."""
        for xid, prepared in self.undecided.items():
            names = self._ids(xid)
            summary.prepared += names
            if prepared.error is not None:
                # The transaction may have been decided in a later segment, before the initial position.
                summary.errors |= dict.fromkeys(names, PreparedError.of(prepared.error))

    def pending(self, number: int, one: TrackedTable) -> str:
        """Return the id for storing the changes that an undecided transaction made to a table."""
        xid = self.transactions[number].xid
        return one.pending(xid) if one.bounded else xid

    def _ids(self, xid: str) -> list[str]:
        return [xid, *(tracked_table.pending(xid) for tracked_table in self._tracked if tracked_table.bounded)]


_Read = TypeVar("_Read")

_KNOWN_BETWEEN_TRANSACTIONS = (log_protocol.PREVIOUS_GTIDS, log_protocol.STOP)
_MAX_FORMAT_BYTES = 1 << 16
_INNER_BYTES = 1 << 18
_MOST_NAMES = 1000


class LogWalker:
    """Computes the net change of a log file, and of the files after it (`begin_file`), from events that arrive in
    pieces.

    :param file: the name of the file.
    :param start: the position of the first event that comes from the file and is not generated for this reader.
    :param stop: the position to stop at; None: the end of the file.
    :param initial: transactions in this set are ignored.
    :param summary: receives the outcomes of XA transactions and the statements that write to tables.

    ``when`` and ``event_bytes`` are the server's timestamp and the length of the last event that the kernel passed to
    this class; for a statement, the timestamp is the time when the statement began. ``state`` is the state of
    ``walk.walk``. After ``run`` has reached the end, ``change`` and ``xa`` hold the result.
    """

    def __init__(
        self,
        file: str,
        start: int,
        stop: int | None,
        initial: GtidSet,
        tracked: Sequence[TrackedTable],
        summary: SegmentSummary,
    ) -> None:
        self._summary = summary
        tables = [tracked_table.table for tracked_table in tracked]
        parents = parents_of(tracked)
        self._parents = {parent.table.name for parent in parents}
        self._names = names_of(tables, sorted(self._parents - {table.name for table in tables}))
        self._layouts = layouts(tracked, parents, initial)
        self._maps = TableMaps(tracked, parents)
        self.change = NetChange(self._layouts.keyless)
        self.changes = ChangeLog(tracked, summary.segment.number, _gtid_text)
        self.xa = XaLedger(self.change, tracked)
        self._tsid: Bytes = np.zeros(TSID_BYTES, np.uint8)
        self._ranges = KeyRanges(*np.zeros((2, 2 * self._layouts.most_keys), np.int64))
        self._inner: Bytes = np.empty(_INNER_BYTES, np.uint8)
        self._zstd = zstandard.ZstdDecompressor()
        self._payload_position = -1
        self.when = self.event_bytes = 0
        self.state: Int64s = np.zeros(walk_state.STATE_WORDS, np.int64)
        self._begin(file, start, stop)
        self.state[walk_state.XA] = self.state[walk_state.SOURCE] = -1
        self.state[walk_state.CHANGES] = self.changes.wanted
        self.state[walk_state.RELIES] = any(map(relies_on_log, tables))
        self.state[walk_state.ONLY_LOOKS] = all(tracked_table.looked_at for tracked_table in tracked)

    def begin_file(self, file: str, stop: int | None) -> None:
        """Continue with ``file``, the next file of the log, after the current file was read to its end. From then on,
        `run` must receive the events of ``file``.

        The net change and the prepared transactions are kept. Table numbers may change their meaning in the new file;
        this is harmless, because each transaction declares its table numbers again.
        """
        self._begin(file, log_protocol.FIRST_POSITION, stop)

    def _begin(self, file: str, start: int, stop: int | None) -> None:
        self._file, self._started, self._server_version = file, False, 0
        self.state[walk_state.AT] = 0
        self.state[walk_state.POSITION] = start
        self.state[walk_state.STOP] = -1 if stop is None else stop

    @property
    def position(self) -> int:
        """The position in the file of the current event, or of the compressed transaction that contains it."""
        position = int(self.state[walk_state.POSITION])
        return position if position >= 0 else self._payload_position

    @property
    def where(self) -> str:
        """The position of the current event, for messages."""
        place = f"{self._file}:{self.position}"
        if self.state[walk_state.PHASE] == walk_state.BETWEEN:
            return place
        return f"{place}, transaction {self._gtid}"

    @property
    def _gtid(self) -> str:
        """The GTID of the current transaction."""
        return _gtid_text(int(self.state[walk_state.NUMBER]), self._tsid.tobytes())

    def run(self, data: Bytes, end: int) -> bool:
        """Process the events in ``data[state[AT]:end]`` and move ``state[AT]`` past the last complete event.

        :returns: whether the end of the segment is reached.
        :raises ExactnessError: the log contains something that makes it impossible to prove exactness.
        :raises DecodeError: the log is damaged.
        """
        while not self._started:
            if not self._prologue(data, end):
                return False
        while True:
            code = self._walk(data, end)
            if code == walk_state.MORE:
                return False
            if code == walk_state.DONE or self._handle(code, data):
                break
        if self.state[walk_state.PHASE] != walk_state.BETWEEN or self.xa.open is not None:
            raise refusals.damaged("the segment ends within a transaction", self.where)
        return True

    def _walk(self, data: Bytes, end: int) -> int:
        layouts, maps, net = self._layouts, self._maps.arrays, self.change.arrays
        tables, parents, sets = layouts.tables, layouts.parents, layouts.sets
        changes = self.changes.arrays
        return int(
            walk(data, end, self.state, self._tsid, sets, TABLES, maps, tables, parents, self._ranges, net, changes)
        )

    def _prologue(self, data: Bytes, end: int) -> bool:
        """Read the first events: a generated ROTATE, and the FORMAT_DESCRIPTION, which says whether events have
        checksums."""
        at = int(self.state[walk_state.AT])
        if end - at < log_protocol.HEADER_BYTES:
            return False
        kind = int(data[at + log_protocol.KIND_AT])
        length = int.from_bytes(data[at + log_protocol.LENGTH_AT :][:4].tobytes(), "little")
        if not log_protocol.HEADER_BYTES + log_protocol.CHECKSUM_BYTES <= length <= _MAX_FORMAT_BYTES:
            raise refusals.damaged("the log does not begin with a FORMAT_DESCRIPTION event", self.where)
        if length > end - at:
            return False
        event = data[at : at + length].tobytes()
        body = event[log_protocol.HEADER_BYTES : -log_protocol.CHECKSUM_BYTES]
        if kind == log_protocol.ROTATE:
            if not self._of_this_file(self._read(events.rotate, event[log_protocol.HEADER_BYTES :])):
                raise refusals.damaged("the server sent a different file from the one that was requested", self.where)
        elif kind == log_protocol.FORMAT_DESCRIPTION:
            described = self._read(events.format_description, body)
            # If reading starts after the beginning of the file, the server generates this event. If the other events
            # have no checksums, the generated event ends with the checksum of the original event in the file. This
            # checksum does not match the generated event.
            made_up = self.state[walk_state.POSITION] != log_protocol.FIRST_POSITION
            checksum = int.from_bytes(event[-log_protocol.CHECKSUM_BYTES :], "little")
            if (described.checksums or not made_up) and zlib.crc32(event[: -log_protocol.CHECKSUM_BYTES]) != checksum:
                raise refusals.damaged(refusals.DAMAGE[walk_state.BAD_CHECKSUM], self.where)
            self._server_version = described.server_version
            self.state[walk_state.CHECKSUM] = log_protocol.CHECKSUM_BYTES if described.checksums else 0
            if not made_up:
                self.state[walk_state.POSITION] += length
            self._started = True
        else:
            raise refusals.damaged("the log does not begin with a FORMAT_DESCRIPTION event", self.where)
        self.state[walk_state.AT] += length
        return True

    def _of_this_file(self, name: bytes) -> bool:
        # In the event, a checksum may follow the file name.
        return name in (self._file.encode(), self._file.encode() + name[-log_protocol.CHECKSUM_BYTES :])

    def _handle(self, code: int, data: Bytes) -> bool:
        """Handle the event at which the kernel returned ``code``. Return True if the event ends the file."""
        state = self.state
        if code == walk_state.NO_ROOM:
            self.xa.reserve(MOST_RECORDS, int(state[walk_state.WANTED]))
            return False
        if code == walk_state.NO_ROOM_FOR_CHANGES:
            self.changes.reserve(int(state[walk_state.WANTED]))
            return False
        if code == walk_state.WRITTEN_HERE:
            raise refusals.written_on_replica(f"{self.where}, transaction {self._gtid}")
        if code in refusals.DAMAGE:
            raise refusals.damaged(refusals.DAMAGE[code], self.where)
        at = int(state[walk_state.AT])
        kind = int(data[at + log_protocol.KIND_AT])
        self.when = int.from_bytes(data[at:][:4].tobytes(), "little")
        if code == walk_state.OUT_OF_PLACE:
            raise refusals.out_of_place(kind, self.where)
        self.event_bytes = length = int.from_bytes(data[at + log_protocol.LENGTH_AT :][:4].tobytes(), "little")
        body = data[at + log_protocol.HEADER_BYTES : at + length - int(state[walk_state.CHECKSUM])].tobytes()
        ended = False
        if code == walk_state.ODD:
            ended = self._odd(kind, bool(data[at + log_protocol.FLAGS_AT] & log_protocol.ARTIFICIAL), body)
        else:
            self._bad_rows(code, self._maps.name(int.from_bytes(body[:6], "little")))
        state[walk_state.ROW] = 0
        state[walk_state.AT] += length
        if state[walk_state.POSITION] >= 0:
            state[walk_state.POSITION] += length
        return ended

    def _bad_rows(self, code: int, table: TableName) -> None:
        """Handle unusable row images of the tracked ``table``."""
        self._breaks(refusals.bad_rows(code, table, self.where))

    def _odd(self, kind: int, artificial: bool, body: bytes) -> bool:
        """Handle an event that the kernel does not handle. Return True if the file ends here."""
        phase = self.state[walk_state.PHASE]
        if kind == log_protocol.QUERY:
            self._query(self._read(events.query, body))
        elif kind == log_protocol.EXECUTE_LOAD_QUERY and phase in (walk_state.OPEN, walk_state.XA_OPEN):
            self._query(self._read(events.execute_load_query, body))
        elif kind == log_protocol.TABLE_MAP:
            self._maps.register(self._read(events.table_map, body), body, int(self.state[walk_state.SERIAL]))
        elif kind == log_protocol.TRANSACTION_PAYLOAD and phase == walk_state.BEGUN and self._payload_position < 0:
            self._payload(body)
        elif kind == log_protocol.XA_PREPARE and phase == walk_state.XA_OPEN:
            self._xa_prepare(self._read(events.xa_prepare, body))
        elif kind == log_protocol.ROTATE and phase == walk_state.BETWEEN and self._payload_position < 0:
            return not artificial or not self._of_this_file(self._read(events.rotate, body))
        elif kind not in _KNOWN_BETWEEN_TRANSACTIONS:
            raise refusals.unknown(kind, self.where)
        elif phase != walk_state.BETWEEN:
            raise refusals.out_of_place(kind, self.where)
        return False

    def _query(self, statement: Statement) -> None:
        state = self.state
        phase = int(state[walk_state.PHASE])
        statement = replace(statement, server_version=self._server_version)
        xa = events.xa_statement(statement.text)
        if xa is not None:
            self._xa_statement(xa)
        elif phase == walk_state.BETWEEN:
            raise refusals.out_of_place(log_protocol.QUERY, self.where)
        elif phase == walk_state.OPEN and statement.text.startswith("ROLLBACK"):
            # The server logs a rolled-back transaction only if a part of the transaction could not be rolled back. The
            # log does not show which part was rolled back.
            if state[walk_state.TRACKED]:
                raise refusals.not_understood("ROLLBACK after row changes", self.where)
            if statement.text == "ROLLBACK":
                state[walk_state.PHASE] = walk_state.BETWEEN
        else:
            if phase == walk_state.XA_OPEN or not state[walk_state.IGNORED]:
                self._check(statement)
            if phase == walk_state.BEGUN:
                state[walk_state.PHASE] = walk_state.BETWEEN

    def _check(self, statement: Statement) -> None:
        """Stop the run if a statement changes or may change a copied table."""
        found = meaning(statement, self._names)
        self._remember(found)
        if (error := refusals.of_statement(found, self._parents, self.where)) is not None:
            self._breaks(error)

    def _remember(self, found: Meaning) -> None:
        """Record the tables that the statement writes to or redefines; `steps.statement_writes` checks them later."""
        summary = self._summary
        if found.write is not None:
            table, read = found.write.table, set(found.write.read)
            if (before := summary.writes.get(str(table))) is not None:
                read |= set(before.read)
            place = f"{self._file}:{self.position}"
            summary.writes[str(table)] = StatementWrite(table, tuple(sorted(read)), place)
        for table in found.redefines:
            if table not in summary.redefined:
                many = len(summary.redefined) == _MOST_NAMES
                summary.redefined = [EVERY_TABLE] if many else [*summary.redefined, table]

    def _xa_statement(self, xa: events.XaStatement) -> None:
        state = self.state
        phase = int(state[walk_state.PHASE])
        if xa.verb == "START" and phase == walk_state.BEGUN:
            state[walk_state.XA] = self.xa.begin(xa.xid).number
            state[walk_state.PHASE] = walk_state.XA_OPEN
        elif xa.verb in ("COMMIT", "ROLLBACK") and phase == walk_state.BEGUN and not xa.one_phase:
            self._decide(xa.xid, xa.verb == "COMMIT")
            state[walk_state.PHASE] = walk_state.BETWEEN
        elif xa.verb != "END" or self.xa.open is None or self.xa.open.xid != xa.xid:
            raise refusals.out_of_place(log_protocol.QUERY, self.where)

    def _xa_prepare(self, xa: events.XaStatement) -> None:
        if self.xa.open is None or self.xa.open.xid != xa.xid or xa.xid in self.xa.undecided:
            raise refusals.out_of_place(log_protocol.XA_PREPARE, self.where)
        self.xa.prepare()
        if xa.one_phase:
            self._decide(xa.xid, True)
        self.state[walk_state.XA] = -1
        self.state[walk_state.PHASE] = walk_state.BETWEEN

    def _decide(self, xid: str, commit: bool) -> None:
        """Record the outcome of a prepared transaction that the current transaction commits or rolls back. The GTID of
        the current transaction determines whether the changes count."""
        state, sets = self.state, self._layouts.sets
        source, number = int(state[walk_state.SOURCE]), int(state[walk_state.NUMBER])
        ignored = not commit or bool(state[walk_state.IGNORED])
        counts: Bytes = np.zeros(len(self._layouts.keyless), np.uint8)
        for index, upper in enumerate(self._layouts.tables.words[walk_state.UPPER :: walk_state.TABLE_WORDS].tolist()):
            within = not upper or in_set(sets, upper, source, number)
            counts[index] = within and not ignored
        state[walk_state.ORDER] += 1
        order, summary = int(state[walk_state.ORDER]), self._summary
        at: Committed | None = None
        if self.changes.wanted:
            when = int(state[walk_state.COMMITTED])
            at = Committed(order_base(summary.segment.number) + order, self._gtid, None if when == NO_TIME else when)
        if xid in self.xa.undecided:
            number = self.xa.undecided[xid].number
            self.xa.resolve(xid, counts, order)
            if at is not None:
                self.changes.outcomes[number] = Outcome(at, counts)
        else:
            for name in self.xa.decided_elsewhere(xid, counts, ignored, order, summary):
                if at is not None:
                    summary.commits[name] = at

    def _payload(self, body: bytes) -> None:
        """Process the events inside a compressed transaction. The inner events have no checksums and no positions in
        the file."""
        payload = self._read(events.transaction_payload, body)
        state = self.state
        outside = [walk_state.AT, walk_state.POSITION, walk_state.STOP, walk_state.CHECKSUM]
        saved = state[outside]
        self._payload_position = int(state[walk_state.POSITION])
        state[outside] = 0, -1, -1, 0
        stream = self._zstd.stream_reader(body[payload.start : payload.stop], read_across_frames=True)
        rest = 0
        # Stop decompressing once it is known that the transaction is ignored and is not an XA transaction.
        while not (state[walk_state.PHASE] == walk_state.OPEN and state[walk_state.IGNORED]):
            if 2 * rest > len(self._inner):
                if rest > log_protocol.MAX_EVENT_BYTES:
                    raise refusals.damaged(refusals.DAMAGE[walk_state.BAD_LENGTH], self.where)
                inner: Bytes = np.empty(2 * len(self._inner), np.uint8)
                inner[:rest] = self._inner[:rest]
                self._inner = inner
            try:
                received = stream.readinto(self._inner[rest:])
            except zstandard.ZstdError as error:
                raise refusals.damaged(f"a compressed transaction cannot be read: {error}", self.where) from error
            if not received:
                if rest or state[walk_state.PHASE] != walk_state.BETWEEN:
                    raise refusals.damaged("a compressed transaction ends early", self.where)
                break
            end = rest + received
            state[walk_state.AT] = 0
            while (code := self._walk(self._inner, end)) != walk_state.MORE:
                self._handle(code, self._inner)
            at = int(state[walk_state.AT])
            rest = end - at
            self._inner[:rest] = self._inner[at:end]
        state[walk_state.PHASE] = walk_state.BETWEEN
        state[outside] = saved
        self._payload_position = -1

    def _breaks(self, error: CdcError) -> None:
        """Raise ``error``. In an XA transaction that is ignored so far, only store the error, because the commit
        decides whether the changes count."""
        if self.xa.open is None or not self.state[walk_state.IGNORED]:
            raise error
        self.xa.open.error = self.xa.open.error or error

    def _read(self, parse: Callable[[bytes], _Read], body: bytes) -> _Read:
        """Return ``parse(body)``; add the position to any error that it raises."""
        try:
            return parse(body)
        except CdcError as error:
            error.where, error.hint = error.where or self.where, error.hint or refusals.REPORT
            raise


def _gtid_text(number: int, tsid: bytes) -> str:
    return str(Gtid(*tsid_parts(tsid), number))
