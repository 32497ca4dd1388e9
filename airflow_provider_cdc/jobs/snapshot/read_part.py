"""The tasks of snapshot: read parts of tables to files."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.run.table_files import table_files
from airflow_provider_cdc.core.run.timeline import Bar, write_timeline
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.published import published_columns
from airflow_provider_cdc.errors import CdcError, SourceUnavailable
from airflow_provider_cdc.jobs.changes.filter_images import copied
from airflow_provider_cdc.jobs.reads import OddRow, ReadFiles, Unit, check_count, noted
from airflow_provider_cdc.jobs.runtime.progress import UnderWay, log
from airflow_provider_cdc.jobs.runtime.skipped import TABLE_ERRORS, reason
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.turn import GivenUp, ReadTurn
from airflow_provider_cdc.jobs.snapshot.parts import Extent, KeyExtents, Part, check_key_order, piece_of_part
from airflow_provider_cdc.sources.api.source import ChunkReader, ReplicaRead, Source

DONE = "chunks/done"


@dataclass(frozen=True)
class PartRecord:
    """The record of a part that was read: its files, its plan, and the incarnation of the server.

    ``upper``: the exact position of the read, as text; empty: each chunk was read at its own time. ``odd``: the result
    of `unrepresentable_rows.noted`. ``extents``: the extents of its chunks (`parts.KeyExtents`). ``refused``: the
    reason why the table cannot be copied; such a part has no files. ``began`` and ``lane`` are for the run's report:
    when the part was read (Unix seconds), and by which worker. ``replica_reads`` are the reads on replicas, one for
    each session; empty: the part was read on the source.
    """

    plan: str
    part: int
    files: tuple[StagedFile, ...]
    rows: int
    bytes: int
    upper: str
    incarnation: str
    lock_seconds: float
    nulled: dict[str, int]
    odd: tuple[OddRow, ...]
    extents: tuple[Extent, ...]
    chunks: int
    seconds: float
    refused: str = ""
    began: float = 0.0
    lane: str = ""
    replica_reads: tuple[ReplicaRead, ...] = ()


@dataclass
class _Sessions:
    """The results of the sessions that read one part. There are several sessions if the run was paused meanwhile."""

    table: str
    incarnation: str = ""
    upper: Position | None = None
    lock_seconds: float = 0.0
    nulled: Counter[str] = field(default_factory=Counter)
    replica_reads: list[ReplicaRead] = field(default_factory=list)

    def end(self, reader: ChunkReader) -> None:
        """Add the result of a session that has read its last chunk.

        :raises SourceUnavailable: the server was restarted between two sessions, so the part must be read again.
        """
        incarnation = reader.wait_until_durable()
        if self.incarnation not in ("", incarnation):
            what = "the server was restarted while the read was paused"
            raise SourceUnavailable(what, where=self.table, hint="retry the task")
        self.incarnation, self.upper = incarnation, reader.upper
        self.lock_seconds = max(self.lock_seconds, reader.lock_seconds)
        self.nulled.update(reader.nulled)
        self.replica_reads += [reader.replica_read] if reader.replica_read is not None else []


@dataclass(frozen=True)
class ReadPart:
    """A task that reads parts. Spark sends this object to executors.

    ``skips`` says whether the step continues if a table cannot be copied. If so, the record of the part has the reason.
    """

    staging: Staging
    plan: str
    source: Source
    tables: tuple[RunTable, ...]
    lock: LockPolicy
    pause: float
    skips: bool = False

    @contextmanager
    def session(self) -> Iterator[ReadPart]:
        """Return a task for several parts that uses as few sessions as possible. The files and records of the parts
        become durable together when the context ends. No record exists before the context ends.
        """
        with self.staging.folder.together() as folder, self.source.one_session() as source:
            try:
                yield replace(self, staging=replace(self.staging, folder=folder), source=source)
            finally:
                ReadTurn(self.staging.folder).leave()

    def __call__(self, part: Part) -> PartRecord:
        """Read one part, write its rows to files, and write its record."""
        turn = ReadTurn(self.staging.folder, self._let_go)
        turn.wait()
        began, started = time.time(), time.monotonic()
        try:
            record = self._read(part, started, turn)
        except TABLE_ERRORS as error:
            if not self.skips:
                raise
            record = PartRecord(
                plan=self.plan,
                part=part.number,
                files=(),
                rows=0,
                bytes=0,
                upper="",
                incarnation="",
                lock_seconds=0.0,
                nulled={},
                odd=(),
                extents=(),
                chunks=len(part.chunks),
                seconds=round(time.monotonic() - started, 3),
                refused=reason(error),
            )
        record = replace(record, began=round(began, 3), lane=f"{socket.gethostname()}:{os.getpid()}")
        records.write(self.staging.folder, f"{DONE}/{part.name}.json", record)
        if part.within is not None:
            # This task may read a whole table, range by range.
            self.staging.folder.flush()
        return record

    def _let_go(self) -> None:
        """Make the parts durable that this task has read, and close its sessions."""
        self.staging.folder.flush()
        self.source.close_idle()

    def _read(self, part: Part, started: float, turn: ReadTurn) -> PartRecord:
        while True:
            try:
                return self._read_chunks(part, started, turn)
            except GivenUp:
                turn.wait()

    def _read_chunks(self, part: Part, started: float, turn: ReadTurn) -> PartRecord:
        entry = self.tables[part.table]
        files = table_files(self.staging, entry, self.source.arrow_schema(entry.table))
        extents = KeyExtents(self.source.key_order(entry.table))
        odd: list[OddRow] = []
        under_way = UnderWay(self.staging.folder, piece_of_part(part, self.tables))
        sessions = _Sessions(str(entry.table.name))
        at = 0
        with files.writer("chunks", part.name) as writer:
            while at < len(part.chunks):
                if at:
                    turn.wait()
                with self.source.reader(entry.table, entry.consistency, self.lock) as reader:
                    goes_on = True
                    while goes_on and at < len(part.chunks):
                        chunk = part.chunks[at]
                        if at and self.pause:
                            time.sleep(self.pause)
                        turn.began()
                        read = 0
                        for batch in reader.read(chunk):
                            matches, stopping_values = copied(entry.table, batch, reader.odd)
                            if stopping_values:
                                odd += noted(entry.table, batch, stopping_values)
                                check_count(odd)
                            extents.add(chunk.number, batch)
                            rows = published_columns(entry.table, batch)
                            rows = rows if matches is None else rows.filter(matches)
                            writer.write(rows)
                            under_way.add(batch.num_rows, rows.num_rows)
                            read += batch.num_rows
                            turn.beat()
                        at += 1
                        if at == len(part.chunks):
                            turn.ended(read)
                        else:
                            goes_on = turn.may_go_on(read, in_transaction=reader.upper is not None)
                    sessions.end(reader)
        check_key_order(entry.table, extents.found)
        return PartRecord(
            plan=self.plan,
            part=part.number,
            files=tuple(writer.files),
            rows=sum(file.rows for file in writer.files),
            bytes=sum(file.bytes for file in writer.files),
            upper=str(sessions.upper) if sessions.upper is not None else "",
            incarnation=sessions.incarnation,
            lock_seconds=sessions.lock_seconds,
            nulled=dict(sessions.nulled),
            odd=tuple(odd),
            extents=tuple(extents.found),
            chunks=len(part.chunks),
            seconds=round(time.monotonic() - started, 3),
            replica_reads=tuple(sessions.replica_reads),
        )


# Decides which finished parts of an earlier try count, and at which positions a keyless table was read.
#
# All rows of a keyless table must be of one exact position, because no key tells to which row a change belongs. There
# is one exception: a table that is divided by values. Each of its ranges may be of a position of its own
# (docs/design/resume.md).


LARGE_BYTES = 2**30
"""The size of a table from which on a message tells that it counts only as a whole."""


def log_undivided(tables: Sequence[RunTable], parts: Sequence[Part]) -> None:
    """Name the large tables of which nothing is kept if the step is killed before they are read in full."""
    divided = {part.table for part in parts if part.within is not None}
    for index, entry in enumerate(tables):
        table = entry.table
        if entry.is_read and table.keyless and index not in divided and table.bytes >= LARGE_BYTES:
            log(
                f"snapshot: {table.name} has {table.bytes / 2**30:.1f} GiB, no key, and no indexed column by which it "
                "can be divided: if this attempt is killed, it is kept only if it was read in full"
            )


def drop_half_read(tables: Sequence[RunTable], parts: Sequence[Part], done: dict[int, PartRecord]) -> None:
    """Drop the records of tables that need one exact position and were not read in full, because the next try has
    another position. The ranges of a table that is divided by values count one by one."""
    uppers: dict[int, set[str | None]] = defaultdict(set)
    for part in parts:
        uppers[part.table].add(done[part.number].upper if part.number in done else None)
    for part in parts:
        if tables[part.table].table.needs_one_position and part.within is None and len(uppers[part.table]) > 1:
            done.pop(part.number, None)


def files_by_table(
    tables: Sequence[RunTable], parts: Sequence[Part], done: Mapping[int, PartRecord]
) -> dict[str, ReadFiles]:
    """Return the files of each table, by name. A part without a record belongs to a table that was altered, so it is
    read again under another manifest."""
    read: dict[int, list[Part]] = {index: [] for index in range(len(tables))}
    for part in sorted(parts, key=lambda part: (part.table, part.chunks[0].number)):
        if part.number in done:
            read[part.table].append(part)
    return {str(tables[index].table.name): _files(tables[index], own, done) for index, own in read.items()}


def _files(entry: RunTable, parts: Sequence[Part], done: Mapping[int, PartRecord]) -> ReadFiles:
    files: list[StagedFile] = []
    odd: list[OddRow] = []
    uppers: set[str] = set()
    for part in parts:
        record = done[part.number]
        files += record.files
        odd += record.odd
        uppers.add(record.upper)
    if not entry.table.needs_one_position or not parts:
        return ReadFiles(tuple(files), "", tuple(odd))
    if len(uppers) == 1:
        return ReadFiles(tuple(files), uppers.pop(), tuple(odd))
    units = tuple(Unit(part.within, done[part.number].upper) for part in parts if part.within is not None)
    return ReadFiles(tuple(files), "", tuple(odd), units)


# Writes the timeline of the reads, which the report shows.


def note_timeline(step: Step, parts: Sequence[Part], done: Mapping[int, PartRecord]) -> None:
    """Write one bar for each part that was read."""
    read = ((str(step.tables[part.table].table.name), part, done[part.number]) for part in parts if part.number in done)
    bars = [
        Bar(name, part.number, record.lane, record.began, record.seconds, record.rows, record.bytes)
        for name, part, record in read
        if record.began
    ]
    # The timeline is only for the report, so a failure to write it does not fail the step.
    with suppress(CdcError, OSError):
        write_timeline(step.folder, bars)
