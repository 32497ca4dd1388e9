"""Spools the log of a run: reads it in pieces in the driver, while Spark's tasks read the tables.

A piece is read up to the end of the log at that moment, and then recorded in the ledger of the run. Only then may
the source remove the log. Several attempts may spool at once. Each link is created only once, so an attempt that loses
continues after the link of the other attempt, and its own files are never used.

The spool is an additional service. If it fails, the run goes on without it, and `extract_delta` reads the rest of the
log.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from airflow_provider_cdc.core.options.run import OFF
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.results import SNAPSHOT
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.spool_chain import SPOOL, Link, reaching
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import LogGone, TransientError
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.control.controller import check_interrupts
from airflow_provider_cdc.jobs.extract_delta.read_segment import ReadSegment, SegmentRecord
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.spool.kept_pieces import Piece, last_piece_of, pieces_of, tracked_for, tracked_table
from airflow_provider_cdc.sources.api.log import AT_START, Start
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable, UpperBound

# The stretches of log that a run spools: one for the present manifest, and one for each earlier manifest with reads
# that still count.
#
# The present manifest needs the log from its position up to the end of the reads. The earlier reads need no more log at
# this position. But the run may move to a later position once more, and then they need the log up to there. So their
# log is recorded, too, from the position of the present manifest on.


@dataclass
class Line:
    """A stretch of log that is spooled, and its pieces.

    ``key`` is the key of the earlier reads (`PieceTaken.line`). ``source`` is the source as of the manifest of the
    reads, which has the position ``initial``. ``begins`` is the piece after which the chain begins; None: the chain
    begins at ``initial``. ``identity`` returns what the checks of
    the source expect. ``tracked`` returns the tables of a piece with this bound. ``last`` is the time of the last
    piece. ``obstacle`` is the reason why the log cannot be read now.
    """

    key: str
    run: Run
    source: Source
    initial: Position
    begins: Link | None
    identity: Callable[[], Facts]
    tracked: Callable[[Position], tuple[TrackedTable, ...]]
    last: float = field(default_factory=time.monotonic)
    obstacle: str = ""

    def refresh(self) -> Link | None:
        """Return the last recorded piece; None: there is none."""
        links = self.run.pieces(self.key)
        return links[-1] if links else self.begins


def present_line(step: Step) -> Line:
    """Return the line of the tables that are read under the present manifest."""
    return Line(
        "",
        step.run,
        step.source,
        step.manifest.initial,
        None,
        step.run.expected_identity,
        lambda upper: tracked_for(step.manifest, upper),
    )


def earlier_lines(step: Step) -> list[Line]:
    """Return the lines of the tables that were read under earlier manifests, if their log was recorded so far."""
    return [line for key in sorted(step.manifest.earlier_reads) if (line := _earlier_line(step, key)) is not None]


def _earlier_line(step: Step, key: str) -> Line | None:
    reads = step.manifest.earlier_reads[key]
    pieces = pieces_of(step, reads)
    if pieces is None:
        return None
    initial = step.manifest.begin_of(reads)
    tables = [entry.table for entry in step.tables if entry.read_in == key]

    def identity() -> Facts:
        return reaching(reads.identity, last_piece_of(step, key) or pieces.links[-1])

    def tracked(upper: Position) -> tuple[TrackedTable, ...]:
        return tuple(tracked_table(pieces.tables[str(table.name)], table, upper) for table in tables)

    return Line(key, step.run, step.source.of_run(identity(), initial), initial, pieces.links[-1], identity, tracked)


# Decides whether a run spools its log.


def why_not(step: Step) -> str:
    """Return why the run does not spool its log, for its log. Empty: it spools."""
    options = step.manifest.options
    read = [entry.table for entry in step.tables if entry.is_read]
    if options.log.spool == OFF:
        return "the option `spool` is `off`"
    if not read:
        return "no table is read"
    if step.manifest.at_upper:
        return "touched rows are read again, so the run needs only the keys in the log"
    if options.keep_slot:
        return "the slot stays at the run's position for another program (`keep_slot`)"
    if cascading := [str(table.name) for table in read if table.cascades_from]:
        return (
            f"foreign keys change rows of {cascading[0]} without an entry in the log, and it is known only after the "
            "read which of these changes matter"
        )
    return ""


NAME = "spool"
LOOK_SECONDS = 30.0
"""How often the spool looks whether a piece is due. A shorter run does not spool."""
PIECE_BYTES = 64 * 2**20
"""A piece is due when this much log has been written."""
PIECE_SECONDS = 120.0
"""A piece is due after this time, if at least `LEAST_BYTES` of log have been written."""
LEAST_BYTES = 2**20
QUIET_SECONDS = 600.0
"""A piece is due after this time in any case, so that the source does not remove a log that hardly grows."""
FINISH_SECONDS = 120.0
"""How long the end of the reads waits for a piece of several log files. Such a piece is long: the position of the run
is in the past, or the run was paused. The spool reads it in one thread."""
EARLIER_BYTES = 4 * 2**30
"""The most log before the window that is searched for prepared transactions."""

_JOIN_SECONDS = 0.5
Result = TypeVar("Result")
_running: dict[str, Spooler] = {}


class Spooler:
    """Spools the log for one attempt of the snapshot step."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._source = step.source
        self.lines = [present_line(step), *earlier_lines(step)]
        self._token = uuid.uuid4().hex
        self._closed = threading.Event()
        self._bounding = threading.Lock()
        self._several_files = False
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        """Begin no more pieces. After this call, the end of every piece of this attempt is before the end of the
        log."""
        with self._bounding:
            self._closed.set()

    def close(self, *, wait: bool) -> None:
        """End the spool.

        :param wait: wait until a piece that was begun is recorded. Do not wait for long if the tasks of `extract_delta`
            can read this stretch of the log in parallel.
        :raises RunStopped: an operator stopped the run. The thread then waits for the end of the process.
        """
        self._closed.set()
        began = time.monotonic()
        while wait and self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
            check_interrupts()
            if self._several_files and time.monotonic() - began > FINISH_SECONDS:
                log("spool: the last piece is long and not finished; its log is read after the tables")
                return

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            try:
                self.poll()
            except TransientError as error:
                log(f"spool: could not read a piece of the log, and will try again: {error.message}")
            except Exception as error:
                log(f"spool: ended; the rest of the log is read after the tables: {_described(error)}")
                return

    def poll(self) -> None:
        """Read and record the pieces that are due."""
        own, *earlier = self.lines
        self._look_at(own)
        for line in earlier:
            try:
                self._look_at(line)
            except TransientError:
                raise
            except Exception as error:
                # This log is needed only if the run moves once more. Then the rest of the log is searched.
                log(f"spool: no more log is recorded for tables that were read earlier: {_described(error)}")
                self.lines.remove(line)

    def _look_at(self, line: Line) -> None:
        source, last = line.source, line.refresh()
        waiting = source.waiting(line.initial, line.identity(), last.end if last is not None else AT_START)
        if waiting.obstacle != line.obstacle and (obstacle := waiting.obstacle):
            log(f"spool: no piece for now: {obstacle}")
        line.obstacle = waiting.obstacle
        if waiting.obstacle:
            return
        elapsed = time.monotonic() - line.last
        least = PIECE_BYTES if elapsed < PIECE_SECONDS else LEAST_BYTES if elapsed < QUIET_SECONDS else 1
        # The server decodes older log again for each piece. Pieces of at least that size limit the total work.
        if waiting.bytes >= max(least, waiting.again):
            self.take(line)

    def take(self, line: Line | None = None) -> bool:
        """Read the log up to its present end, and record it as a piece. Return whether this attempt recorded a
        piece.

        :param line: None: the line of the present manifest.
        """
        step, source, line = self._step, self._source, line or self.lines[0]
        last = line.refresh()
        prepared = source.prepared_now() if last is None else set()
        with self._bounding:
            if self._closed.is_set():
                return False
            bound = source.bound_reads()
        current = Run.load(step.folder)
        if current.digest != step.run.digest or current.ended or SNAPSHOT in current.steps:
            # The run began anew, or another attempt has ended the reads. More pieces would be of no use.
            self._closed.set()
            return False
        return self._piece(line, bound, last, prepared)

    def _piece(self, line: Line, bound: UpperBound, last: Link | None, prepared: set[str] | None) -> bool:
        step, source, initial, identity = self._step, line.source, line.initial, line.identity()
        if last is None:
            began = source.incarnation_at(identity)
            restarts = int(bool(began) and began != bound.incarnation)
            segments = source.segments(Start(initial, identity), AT_START, bound.log_end)
        else:
            restarts = last.restarts
            if bound.incarnation != last.incarnation:
                source.check_joined(last.start, last.end, initial, identity)
                restarts += 1
            segments = source.segments(Start(initial, identity), last.end, bound.log_end, number=last.next_segment)
        self._several_files = any(segment.also for segment in segments)
        tracked = line.tracked(bound.upper)
        known = source.note_tables(bound.log_end, [one.table for one in tracked])
        work = self._reader(line, tracked)
        read = [work.read(segment) for segment in segments]
        earlier = self._prepared_earlier(work, read, prepared) if last is None else []
        record = records.write_named(step.folder, f"{SPOOL}/piece", Piece((*earlier, *read)))
        link = Link(
            number=len(line.run.pieces(line.key)) + 1,
            token=self._token,
            start=last.end if last else AT_START,
            end=bound.log_end,
            upper=str(bound.upper),
            incarnation=bound.incarnation,
            restarts=restarts,
            next_segment=max(segment.number for segment in segments) + 1,
            record=record,
            known=known,
        )
        recorded = line.run.take_piece(line.key, link)
        line.last = time.monotonic()
        if recorded:
            images = sum(one.summary.row_images for one in read)
            size = sum(segment.bytes for segment in segments)
            log(f"spool: piece {link.number}: {format_count(images, 'row image')} in {size / 2**20:,.1f} MiB of log")
        if len(links := line.run.pieces(line.key)) > 1:
            # The end of the last piece but one: a server that is set back is detected by the marks in the last piece.
            source.acknowledge(identity, links[-2].end)
        return recorded

    def _reader(self, line: Line, tracked: tuple[TrackedTable, ...]) -> ReadSegment:
        step = self._step
        keyless = tuple(one.index for one in tracked if one.table.keyless)
        # A piece leaves out no table. It has more images than `extract_delta` decodes, so a value that no Arrow type
        # can hold ends the spool, and `extract_delta` decides whether this value matters.
        return ReadSegment(step.staging, NAME, line.source, NAME, line.initial, tracked, events=keyless)

    def _prepared_earlier(
        self, work: ReadSegment, read: list[SegmentRecord], prepared: set[str] | None
    ) -> list[SegmentRecord]:
        """Read the log before the window in which transactions were prepared that had not ended. Later, the server may
        have removed it.

        :param prepared: the transactions that were prepared before the piece was bounded. None: unknown.
        """
        source = self._source
        if prepared is None:
            log("spool: this user may not run XA RECOVER, so earlier log is searched only if it is needed later")
        _, unmatched = net_change_files.match_prepared([one.summary for one in read])
        wanted = (prepared or set()) | {*unmatched}
        wanted -= {xid for one in read for xid in one.summary.prepared}
        earlier: list[SegmentRecord] = []
        size = 0
        while wanted and size < EARLIER_BYTES:
            first: LogSegment = (earlier or read)[0].summary.segment
            if not (segments := source.segments_before(first, 1)):
                break
            earlier = [work.read(segment) for segment in segments] + earlier
            size += sum(segment.bytes for segment in segments)
            wanted -= {xid for one in earlier for xid in one.summary.prepared}
        return earlier


def _described(error: Exception) -> str:
    where = f"{where}: " if (where := getattr(error, "where", "")) else ""
    return f"{where}{getattr(error, 'message', f'{type(error).__name__}: {error}')}"


def spooled(work: Callable[[Step], Result]) -> Callable[[Step], Result]:
    """Return ``work`` with a spool that runs beside it."""

    def with_spool(step: Step) -> Result:
        with spooling(step):
            return work(step)

    return with_spool


@contextmanager
def spooling(step: Step) -> Iterator[None]:
    """Spool the log of the run while the context is open."""
    if why := why_not(step):
        log(f"spool: off: {why}")
        yield
        return
    _running[step.token] = spooler = Spooler(step)
    spooler.start()
    try:
        yield
    except BaseException:
        spooler.close(wait=False)
        raise
    else:
        spooler.close(wait=True)
    finally:
        _running.pop(step.token, None)


def end_spool(step: Step) -> None:
    """End the spool before the run moves to another position. A piece that is still read would hold a replication slot,
    and would let log go that the new manifest may need."""
    if (spooler := _running.get(step.token)) is not None:
        spooler.close(wait=True)


def has_let_log_go(step: Step) -> bool:
    """Return whether the source no longer has the log since the initial position. It may have removed the log behind
    the recorded pieces. Call `end_spool` first."""
    try:
        check = partial(step.source.check_identity, step.manifest.identity, step.manifest.initial)
        retry("check whether the source still has the log since the initial position", check)
    except LogGone:
        return True
    return False


def pause_spool(step: Step) -> None:
    """Begin no more pieces, because the end of the reads is noted next."""
    if (spooler := _running.get(step.token)) is not None:
        spooler.pause()
