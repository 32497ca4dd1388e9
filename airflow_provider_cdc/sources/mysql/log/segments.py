"""Net changes from the binary log: finds the log files of the window and reads the net change of each segment."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pymysql

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Era, Table
from airflow_provider_cdc.errors import LogGone, SchemaChanged, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Waiting
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.log.changes import LOG_BYTES
from airflow_provider_cdc.sources.log.delta import NET_BYTES, delta_batches
from airflow_provider_cdc.sources.mysql.decode.images import carried_images, decode_images
from airflow_provider_cdc.sources.mysql.log import walk_state
from airflow_provider_cdc.sources.mysql.log.dump import Dump
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.walker import LogWalker
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import (
    KEEP_LOGS,
    LogPlace,
    backlog,
    check_continuity,
    check_place,
    end_of_log,
    file_number,
    is_before,
    log_files,
    previous_gtids,
)
from airflow_provider_cdc.sources.mysql.server.session import RunSettings, query, session, value

# Reads the log across statements that change the columns of a table that is rolled forward.
#
# The segments of the window are cut after each such statement. So within a segment, each table has one set of columns:
# its rows are decoded and netted by them. After that, the images become images of the present table, by exactly the
# statements behind them in the log. So everything after the reader sees one kind of images.


def cut(segments: Sequence[LogSegment], tables: Sequence[Table]) -> list[LogSegment]:
    """Return the segments, cut after each statement that begins another era of a table, and numbered again.

    :raises SchemaChanged: the segments do not contain such a statement.
    """
    ends = {era.ends: LogPlace.parse(era.ends) for table in tables for era in table.eras}
    if not ends:
        return list(segments)
    pieces: list[LogSegment] = []
    passed: tuple[str, ...] = ()
    left = sorted(ends, key=lambda text: (file_number(ends[text].file), ends[text].position))
    for segment in segments:
        rest: LogSegment | None = replace(segment, passed=passed)
        while rest is not None and left and _contains(rest, ends[left[0]]):
            before, rest = _cut(rest, ends[left[0]])
            pieces.append(before)
            passed += (left.pop(0),)
            rest = rest and replace(rest, passed=passed)
        if rest is not None:
            pieces.append(rest)
    if left:
        raise SchemaChanged(
            f"the window does not contain the schema change before {left[0]}",
            hint="clear the task `preflight` and all tasks after it",
        )
    return [replace(piece, number=number) for number, piece in enumerate(pieces)]


def _contains(segment: LogSegment, place: LogPlace) -> bool:
    if place.file not in (segment.name, *segment.also):
        return False
    is_after = place.file != segment.name or place.position > segment.start
    return is_after and (place.file != segment.last_name or segment.stop is None or place.position <= segment.stop)


def _cut(segment: LogSegment, place: LogPlace) -> tuple[LogSegment, LogSegment | None]:
    names = (segment.name, *segment.also)
    at = names.index(place.file)
    size = place.position - segment.start if at == 0 else segment.bytes * at // len(names)
    size = min(size, segment.bytes)
    before = replace(segment, also=names[1 : at + 1], stop=place.position, bytes=size)
    if place.file == segment.last_name and place.position == segment.stop:
        return before, None
    rest = replace(segment, name=place.file, start=place.position, also=names[at + 1 :], bytes=segment.bytes - size)
    return before, rest


class SegmentEras:
    """The tables of a segment, with the columns that they have in it. ``begins`` are the places of the statements that
    end the eras of tables."""

    def __init__(self, segment: LogSegment, tables: Sequence[TrackedTable]) -> None:
        self._carried = {one.index: (one.table, era) for one in tables if (era := era_at(one.table, segment))}
        self.tracked = [
            replace(one, table=one.table.in_era(self._carried[one.index][1])) if one.index in self._carried else one
            for one in tables
        ]
        self.begins = frozenset(era.begins for one in tables for era in one.table.eras)

    def carry(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of `DELTA_SCHEMA` with images of the present table. All its rows are of one table."""
        table, era = self._carried.get(batch["table"][0].as_py(), (None, None)) if batch.num_rows else (None, None)
        if table is None or era is None:
            return batch
        before, after = (carried_images(table, era, batch[name]) for name in ("before", "after"))
        columns = {name: batch[name] for name in batch.schema.names} | {"before": before, "after": after}
        if table.keyless:
            names = [column.name for column in table.columns]
            columns["key"] = row_bytes.encode(decode_images(table, before), names)
        return pa.record_batch([*columns.values()], schema=batch.schema)


def era_at(table: Table, segment: LogSegment) -> Era | None:
    """Return the era of a table in a segment. None: the table has its present columns."""
    number = sum(era.ends in segment.passed for era in table.eras)
    return table.eras[number] if number < len(table.eras) else None


class EraWalker(LogWalker):
    """A walker that goes on at the statements that end an era of a table. Such a statement concerns no other table."""

    def __init__(
        self,
        segment: LogSegment,
        initial: GtidSet,
        tracked: Sequence[TrackedTable],
        summary: SegmentSummary,
        begins: Collection[str],
    ) -> None:
        stop = None if segment.also else segment.stop
        super().__init__(segment.name, segment.start, stop, initial, tracked, summary)
        self._begins = begins

    def _check(self, statement: Statement) -> None:
        if not self._begins or str(LogPlace(self._file, self.position)) not in self._begins:
            super()._check(statement)


TOGETHER_BYTES = 1 << 29
"""The target size of a segment of several neighbouring files: half the default size of a log file."""
LEAST_BYTES = 1 << 24
"""The minimum size of a segment. For a smaller segment, a separate task costs more than it saves."""


def log_segments(
    settings: ConnectionSettings, start: GtidSet, end: LogPlace, begun: LogPlace | None = None, slots: int = 0
) -> list[LogSegment]:
    """Return segments whose files contain every change after ``start`` and up to ``end``.

    :param begun: the place in the log where the run began. The server must not have crashed since then. The segments
        include the file of this place and all later files. None of these files can be skipped because of its GTIDs: a
        file may also contain anonymous transactions, which have no GTID.
    :param slots: how many segments are read at the same time; 0: make one segment for each file.
    :raises LogGone: files that the run needs were purged, or the log is not complete.
    :raises SourceReplaced: ``end`` belongs to another log.
    :raises SourceUnavailable: the server cannot be reached.
    """
    with session(settings) as connection:
        purged = GtidSet.parse(value(connection, "@@gtid_purged"))
        if not purged <= start:
            raise LogGone(
                f"transactions after the initial position are purged: {purged - start}",
                where=settings.address,
                hint=KEEP_LOGS,
            )
        files = log_files(connection)
        names = list(files)
        check_place(settings, files, end)
        first = last = names.index(end.file)
        if begun is not None:
            # Detect restarts from the marks in the log, because the marks do not depend on the server's clock.
            check_place(settings, files, begun)
            check_continuity(settings, {name: files[name] for name in names[: last + 1]}, begun)
            first = min(last, names.index(begun.file))
        while not previous_gtids(connection, names[first]) <= start:
            if first == 0:
                raise LogGone(
                    f"the oldest log file, {names[0]}, begins after the initial position",
                    where=settings.address,
                    hint=KEEP_LOGS,
                )
            first -= 1
    sizes = {name: end.position if name == end.file else files[name] for name in names[first : last + 1]}
    return [
        LogSegment(
            number,
            segment_files[0],
            log_protocol.FIRST_POSITION,
            end.position if segment_files[-1] == end.file else None,
            also=tuple(segment_files[1:]),
            bytes=sum(sizes[name] for name in segment_files),
        )
        for number, segment_files in enumerate(together(sizes, slots))
    ]


def together(sizes: Mapping[str, int], slots: int) -> list[list[str]]:
    """Group neighbouring files into segments. A file is added to the previous segment if this brings the segment's size
    closer to the target size.

    If a key changes in several files of a segment, it is decoded, written and composed only once. A segment of several
    files is never larger than twice the target size.
    """
    aim = min(TOGETHER_BYTES, max(LEAST_BYTES, sum(sizes.values()) // slots)) if slots else 0
    groups: list[list[str]] = []
    held = 0
    for name, size in sizes.items():
        if groups and size < 2 * (aim - held):
            groups[-1].append(name)
            held += size
        else:
            groups.append([name])
            held = size
    return groups


def segments_before(settings: ConnectionSettings, segment: LogSegment, count: int) -> list[LogSegment]:
    """Return up to ``count`` segments. Each one is a single file; these files directly precede the files of
    ``segment``.

    :raises LogGone: the file of ``segment`` was purged.
    :raises SourceUnavailable: the server cannot be reached.
    """
    with session(settings) as connection:
        files = log_files(connection)
    names = list(files)
    if segment.name not in names:
        raise LogGone(f"the log file {segment.name} is purged", where=settings.address, hint=KEEP_LOGS)
    last = names.index(segment.name)
    before = names[max(0, last - count) : last]
    return [
        LogSegment(segment.number - len(before) + number, name, log_protocol.FIRST_POSITION, None, bytes=files[name])
        for number, name in enumerate(before)
    ]


class MysqlSegmentReader:
    """Implements ``sources.api.source.SegmentReader`` for binary log files. Iterate over the reader once to read the
    files.

    :param open_dump: a function that opens a dump. Its arguments are the name of a file and the position to start at.
    """

    def __init__(
        self,
        open_dump: Callable[[str, int], Dump],
        segment: LogSegment,
        initial: GtidSet,
        tables: Sequence[TrackedTable],
        changes: Callable[[pa.RecordBatch], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.summary = SegmentSummary(segment)
        self._emit = changes
        self._progress = progress
        self._open_dump = open_dump
        self._dump: Dump | None = None
        self._eras = SegmentEras(segment, tables)
        self._tables = self._eras.tracked
        self._walker = EraWalker(segment, initial, self._tables, self.summary, self._eras.begins)

    def refuse_transactions_of(self, server_id: int) -> None:
        """Stop at transactions that sessions of this server committed. The others are those of its source."""
        self._walker.state[walk_state.REPLICA] = server_id

    def close(self) -> None:
        """End the session."""
        if self._dump is not None:
            self._dump.close()
            self._dump = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        change, xa = self._walker.change, self._walker.xa
        for _ in self._read():
            # A segment contains whole transactions, and a single transaction may be larger than memory. The changes of
            # prepared transactions are kept until their outcome is known.
            if change.used_bytes > NET_BYTES and not xa.undecided and xa.open is None:
                yield from self._net_change()
                change.clear()
                self.summary.parts += 1
            if self._walker.changes.used_bytes > LOG_BYTES:
                self._emit_changes(
                    [transaction.number for transaction in (*xa.undecided.values(), *([xa.open] if xa.open else []))]
                )
        self._emit_changes()
        yield from self._net_change()

    def _net_change(self) -> Iterator[pa.RecordBatch]:
        walker, number = self._walker, self.summary.segment.number
        batches = delta_batches(walker.change, self._tables, number, decode_images, walker.xa.pending)
        return map(self._eras.carry, batches)

    def _emit_changes(self, undecided: Sequence[int] = ()) -> None:
        walker = self._walker
        if self._emit is not None and walker.changes.wanted:
            for batch in walker.changes.batches(undecided, walker.xa.pending):
                self._emit(batch)

    def _read(self) -> Iterator[None]:
        """Process the whole segment, yielding after each batch of events received."""
        started = time.perf_counter()
        walker, summary, segment = self._walker, self.summary, self.summary.segment
        yield from self._read_file(segment.name, segment.start)
        for name in segment.also:
            walker.begin_file(name, segment.stop if name == segment.last_name else None)
            yield from self._read_file(name, log_protocol.FIRST_POSITION)
        summary.transactions = int(walker.state[walk_state.TRANSACTIONS])
        summary.row_images = int(walker.state[walk_state.IMAGES])
        walker.xa.close(summary)
        summary.seconds = time.perf_counter() - started

    def _read_file(self, name: str, start: int) -> Iterator[None]:
        walker = self._walker
        self._dump = dump = self._open_dump(name, start)
        while not walker.run(dump.data, dump.end):
            dump.at = int(walker.state[walk_state.AT])
            if not dump.fill():
                raise SourceUnavailable(
                    f"the server has no more events at {walker.where}, before the end of the segment",
                    where=name,
                    hint="the task can be retried as it is",
                )
            walker.state[walk_state.AT] = 0
            if self._progress is not None:
                self._progress(self.summary.bytes + dump.bytes, int(walker.state[walk_state.IMAGES]))
            yield
        self.summary.bytes += dump.bytes
        self.close()


def check_parents(settings: RunSettings, table: Table, upper: GtidSet) -> None:
    """Check that no unlogged cascade reached ``table`` between the run's initial position and ``upper``.

    ``extract_delta`` also finds such a cascade, but only after all tables were read.

    :raises CascadeNotLogged: a cascade may have reached the table.
    """
    with session(settings) as connection:
        end = end_of_log(settings, connection)
    for segment in log_segments(settings, settings.position, end):
        with open_segment(settings, segment, settings.position, [TrackedTable(0, table, upper)]) as reader:
            for _ in reader:
                pass


@contextmanager
def open_segment(
    settings: ConnectionSettings,
    segment: LogSegment,
    start: GtidSet,
    tables: Sequence[TrackedTable],
    changes: Callable[[pa.RecordBatch], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    of_replica: bool = False,
) -> Iterator[MysqlSegmentReader]:
    """Open one segment of the log.

    :param start: transactions in this set are ignored.
    :param changes, progress: see `Source.read_segment`.
    :param of_replica: whether the log is that of a replica, which must have no transactions of its own.
    :raises LogGone: the server can no longer read the file.
    :raises SourceUnavailable: the server cannot be reached.
    :raises ConfigurationError: the privilege REPLICATION SLAVE is missing.
    """
    reader = MysqlSegmentReader(partial(Dump, settings), segment, start, tables, changes, progress)
    if of_replica:
        with session(settings) as connection:
            reader.refuse_transactions_of(int(value(connection, "@@global.server_id")))
    try:
        yield reader
    finally:
        reader.close()


# Pieces of the binary log, between two places in the log. A place is inside a file, between two transactions.


_DENIED = 1401


def waiting(settings: ConnectionSettings, facts: MysqlFacts, place: LogEnd) -> Waiting:
    """`Source.waiting`."""
    with session(settings) as connection:
        return Waiting(backlog(connection, LogPlace.parse(place) if place else facts.place))


def segments_from(
    settings: ConnectionSettings, start: LogEnd, end: LogEnd, facts: MysqlFacts, number: int, slots: int
) -> list[LogSegment]:
    """Return the segments from the place ``start``, at which a recorded piece ends, to the place ``end``."""
    begin, stop = LogPlace.parse(start), LogPlace.parse(end)
    with session(settings) as connection:
        files = log_files(connection)
        names = list(files)
        for place in (begin, stop):
            check_place(settings, files, place)
        first, last = names.index(begin.file), names.index(stop.file)
        check_continuity(settings, {name: files[name] for name in names[: last + 1]}, begin, _restarts(facts))
    sizes = {name: stop.position if name == stop.file else files[name] for name in names[first : last + 1]}
    sizes[begin.file] -= begin.position
    return [
        LogSegment(
            number + place,
            group[0],
            begin.position if group[0] == begin.file else log_protocol.FIRST_POSITION,
            stop.position if group[-1] == stop.file else None,
            also=tuple(group[1:]),
            bytes=sum(sizes[name] for name in group),
        )
        for place, group in enumerate(together(sizes, slots))
    ]


def check_joined(settings: ConnectionSettings, end: LogEnd, facts: MysqlFacts) -> None:
    """`Source.check_joined`. The server must have closed each file since ``end`` cleanly, so it has not crashed."""
    place = LogPlace.parse(end)
    with session(settings) as connection:
        files = log_files(connection)
        check_place(settings, files, place)
        check_continuity(settings, files, place, _restarts(facts))


def _restarts(facts: MysqlFacts) -> int:
    return 0 if facts.reached is None else facts.reached.restarts


def place_is_before(one: LogEnd, other: LogEnd) -> bool:
    """`Source.is_before`."""
    return is_before(LogPlace.parse(one), LogPlace.parse(other))


def is_within(position: str, upper: Position) -> bool:
    """`Source.is_within`."""
    return GtidSet.parse(position) <= GtidSet.expect(upper)


def prepared_now(settings: ConnectionSettings) -> set[str] | None:
    """`Source.prepared_now`."""
    with session(settings) as connection:
        try:
            rows = query(connection, "XA RECOVER CONVERT XID")
        except pymysql.MySQLError as error:
            if error.args[0] != _DENIED:
                raise
            return None
    return {_xid(int(form), int(of_transaction), str(data)) for form, of_transaction, _, data in rows}


def _xid(form: int, of_transaction: int, data: str) -> str:
    digits = data.removeprefix("0x").lower()
    return f"X'{digits[: 2 * of_transaction]}',X'{digits[2 * of_transaction :]}',{form}"
