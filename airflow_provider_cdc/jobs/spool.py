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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_cdc.core.options.run import OFF
from airflow_provider_cdc.core.run.results import SNAPSHOT
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.jobs.log.log import NAME, RunLog, logs_of
from airflow_provider_cdc.jobs.runtime.controller import check_interrupts
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.source import Source


@dataclass
class Line:
    """The log since one start, as the spool reads it. ``last`` is the time of the last piece, and ``obstacle`` the
    reason why the log cannot be read now."""

    log: RunLog
    last: float = field(default_factory=time.monotonic)
    obstacle: str = ""

    @property
    def source(self) -> Source:
        return self.log.source


def lines_of(step: Step) -> list[Line]:
    """Return the lines that an attempt spools: that of the present position first.

    The reads from earlier starts need no more log at this position. But the run may move to a later position once more,
    and then they need the log up to there.
    """
    spooled = [entry for entry in step.tables if entry.is_read or entry.basis]
    logs = [one for one in logs_of(step, spooled) if one.id == step.manifest.start or one.pieces]
    return [Line(one) for one in sorted(logs, key=lambda one: (one.id != step.manifest.start, one.id))]


# Decides whether a run spools its log.


def why_not(step: Step) -> str:
    """Return why the run does not spool its log, for its log. Empty: it spools."""
    options = step.manifest.options
    read = [entry.table for entry in step.tables if entry.is_read]
    if options.log.spool == OFF:
        return "`Read.spool` is `off`"
    if not read:
        return "no table is read"
    if step.manifest.at_upper:
        return "touched rows are read again, so the run needs only the keys in the log"
    if options.keep_slot:
        return "the slot stays at the run's position for another program (`Read.keep_slot`)"
    if cascading := [str(table.name) for table in read if table.cascades_from]:
        return (
            f"foreign keys change rows of {cascading[0]} without an entry in the log, and it is known only after the "
            "read which of these changes matter"
        )
    return ""


POLL_SECONDS = 30.0
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
_JOIN_SECONDS = 0.5
Result = TypeVar("Result")
_running: dict[str, Spooler] = {}


class Spooler:
    """Spools the log for one attempt of the snapshot step."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.lines = lines_of(step)
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
        while not self._closed.wait(POLL_SECONDS):
            try:
                self.poll()
            except TransientError as error:
                log(f"spool: could not read a piece of the log, and will try again: {error.message}")
            except Exception as error:
                log(f"spool: ended; the rest of the log is read after the tables: {_described(error)}")
                return

    def poll(self) -> None:
        """Read and record the pieces that are due."""
        for line in [*self.lines]:
            try:
                self._refresh(line)
            except TransientError:
                raise
            except Exception as error:
                if line.log.id == self._step.manifest.start:
                    raise
                # This log is needed only if the run moves once more. Then the rest of the log is searched.
                log(f"spool: no more log is recorded for tables that were read earlier: {_described(error)}")
                self.lines.remove(line)

    def _refresh(self, line: Line) -> None:
        one = line.log.refreshed()
        waiting = line.source.waiting(one.position, one.identity, one.end)
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

        :param line: None: the line of the present position.
        """
        step, line = self._step, line or self.lines[0]
        one = line.log.refreshed()
        prepared = step.source.prepared_now() if not one.pieces else set()
        with self._bounding:
            if self._closed.is_set():
                return False
            bound = step.source.bound_reads()
        current = Run.load(step.folder)
        if current.digest != step.run.digest or current.ended or SNAPSHOT in current.steps:
            # The run began anew, or another attempt has ended the reads. More pieces would be of no use.
            self._closed.set()
            return False
        segments = one.segments_to(line.source, bound)
        self._several_files = any(segment.also for segment in segments)
        link, images = one.read_on(line.source, bound, segments, step.run.generation, prepared)
        recorded = step.run.take_piece(one.id, link)
        line.last = time.monotonic()
        if recorded:
            size = sum(segment.bytes for segment in segments)
            log(f"spool: piece {link.number}: {format_count(images, 'row image')} in {size / 2**20:,.1f} MiB of log")
        if len(links := step.run.pieces(one.id)) > 1:
            # The end of the last piece but one: a server that is set back is detected by the marks in the last piece.
            step.source.acknowledge(one.start.facts, links[-2].end)
        return recorded


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


def pause_spool(step: Step) -> None:
    """Begin no more pieces, because the end of the reads is noted next."""
    if (spooler := _running.get(step.token)) is not None:
        spooler.pause()
