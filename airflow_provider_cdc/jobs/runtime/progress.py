"""The output of a running step: plain lines, few enough for a task's log, a table at the end, and the progress of the
pieces at work."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_provider_cdc.core.parquet.writer import FILE_BYTES
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import duration, format_count
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sources.api.window import LogSegment

EVERY_SECONDS = 5.0
LATELY_SECONDS = 60.0
"""The period, in seconds, over which rates are measured."""
REPEATED_SECONDS = 60.0
"""The time after which an unchanged line is printed again."""
SHOWN_TABLES = 5
PROGRESS = "progress.json"


def log(line: str) -> None:
    """Print a line without buffering, because users read the log of a task while the task runs."""
    print(line, flush=True)


class Progress:
    """Reports the progress of a step every few seconds: as a line, and as JSON data for `note`.

    :param title: the name of the step.
    :param unit: the unit that is counted, in the singular. The plural must end in s.
    :param total: the number of units.
    :param weight: the total work of all units, in any unit. The percentage and the time left are calculated from this
        total.
    :param at_work: returns the tables that are being processed.
    :param under_way: returns the rows and the weight of the work that was done so far for unfinished units.
    :param waiting: returns a description of the remaining work, if all counted work seems to be done; otherwise empty.
        While there is such a description, the time left is unknown.
    :param then: a description of the work that follows. The time left does not include it.
    :param backlog: returns the number of bytes of log that are still to be read; None: unknown.
    :param paused: returns for how many seconds operators have paused the step so far. The time left does not include
        pauses.
    :param note: receives the JSON data of each report: ``step``, ``at`` (ISO 8601), ``percent``, ``done``, ``total``,
        ``unit``, ``rows``, ``bytes``, ``rows_per_second``, ``seconds_left`` (null: not known yet), ``tables``, and
        ``log_backlog_bytes`` (null: not known), ``waiting_for``, ``then``.
    """

    def __init__(
        self,
        title: str,
        unit: str,
        total: int,
        weight: float,
        *,
        at_work: Callable[[], Sequence[str]] = lambda: (),
        under_way: Callable[[], tuple[int, float]] = lambda: (0, 0.0),
        waiting: Callable[[], str] = lambda: "",
        then: str = "",
        backlog: Callable[[], int | None] = lambda: None,
        note: Callable[[dict[str, Any]], None] = lambda told: None,
        every: float = EVERY_SECONDS,
        paused: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
        out: Callable[[str], None] = log,
    ) -> None:
        self._title = title
        self._paused = paused
        self._unit = unit
        self._total = total
        self._weight = weight
        self._at_work = at_work
        self._under_way = under_way
        self._waiting = waiting
        self._then = then
        self._backlog = backlog
        self._note = note
        self._every = every
        self._clock = clock
        self._out = out
        self._reported = self._printed = clock()
        self._last_line = ""
        self._count = 0
        self._rows = 0
        self._bytes = 0
        self._done = 0.0
        self._warm: tuple[float, float] | None = None
        self._left: float | None = None
        self._lately: deque[tuple[float, int]] = deque([(self._reported, 0)])

    @property
    def seconds_left(self) -> float | None:
        """The time that was left at the last report, in seconds. None: unknown."""
        return self._left

    def add(self, count: int, rows: int, weight: float, size: int = 0) -> None:
        """Record finished work. ``size`` is in bytes."""
        self._count += count
        self._rows += rows
        self._done += weight
        self._bytes += size
        self._note_warm(self._done)
        self.tick()

    def _note_warm(self, done: float) -> None:
        if self._warm is None and done:
            # Measure the speed from here, because the earlier work includes starting programs and opening sessions.
            self._warm = self._working(self._clock()), done

    def _working(self, now: float) -> float:
        return now - self._paused()

    def tick(self) -> None:
        """Report the progress if a report is due. Call this often."""
        now = self._clock()
        if now - self._reported < self._every or self._count >= self._total:
            return
        self._reported = now
        state = self._state(now)
        self._left = state["seconds_left"]
        line = self._line(state)
        if line != self._last_line or now - self._printed >= REPEATED_SECONDS:
            self._printed, self._last_line = now, line
            self._out(line)
        self._note(state)

    def _state(self, now: float) -> dict[str, Any]:
        more, weight = self._under_way()
        count, work = self._rows + more, self._done + weight
        self._note_warm(work)
        self._lately.append((now, count))
        while len(self._lately) > 2 and self._lately[1][0] <= now - LATELY_SECONDS:
            self._lately.popleft()
        since, rows = self._lately[0]
        waiting = self._waiting()
        return {
            "step": self._title,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "percent": round(100 * work / self._weight, 1) if self._weight else 0.0,
            "done": self._count,
            "total": self._total,
            "unit": f"{self._unit}s",
            "rows": count,
            "bytes": self._bytes,
            "rows_per_second": max(0, round((count - rows) / (now - since))) if now > since else 0,
            "seconds_left": None if waiting else self._seconds_left(now, work),
            "tables": list(self._at_work()),
            "log_backlog_bytes": self._backlog(),
            "waiting_for": waiting,
            "then": self._then,
        }

    def _seconds_left(self, now: float, work: float) -> float | None:
        if self._warm is None:
            return None
        (began, done), now = self._warm, self._working(now)
        if work <= done or now <= began:
            return None
        return round((self._weight - work) * (now - began) / (work - done), 1)

    def _line(self, state: dict[str, Any]) -> str:
        parts = [
            f"{self._title}: {state['percent']:.0f} %",
            f"{state['done']:,} of {format_count(state['total'], self._unit)}",
            format_count(state["rows"], "row"),
        ]
        if state["bytes"]:
            parts.append(f"{state['bytes'] / 2**20:,.1f} MiB")
        parts.append(f"{state['rows_per_second']:,} rows/s")
        if state["seconds_left"] is not None:
            then = f" for this, then {state['then']}" if state["then"] else ""
            parts.append(f"about {duration(state['seconds_left'])} left{then}")
        if state["log_backlog_bytes"] is not None:
            parts.append(f"{state['log_backlog_bytes'] / 2**20:,.1f} MiB of log to read")
        line = ", ".join(parts)
        if state["waiting_for"]:
            line += f"; waiting for {state['waiting_for']}"
        if tables := state["tables"]:
            more = f" and {len(tables) - SHOWN_TABLES} more" if len(tables) > SHOWN_TABLES else ""
            line += f"; at work: {', '.join(tables[:SHOWN_TABLES])}{more}"
        return line


class ProgressFile:
    """The file ``progress.json`` in the run's folder: the progress of the current step.

    The file is only for display, so errors of the store are ignored, and a slow store does not delay the step.

    :param folder: the run's folder.
    """

    def __init__(self, folder: Storage) -> None:
        self._folder = folder
        self._writing: threading.Thread | None = None

    def note(self, state: dict[str, Any]) -> None:
        """Write the file in the background, unless the last version is still being written."""
        if self._writing is None or not self._writing.is_alive():
            self._writing = threading.Thread(target=self._write, args=(state,), name="progress", daemon=True)
            self._writing.start()

    def _write(self, state: dict[str, Any]) -> None:
        with suppress(CdcError, OSError, pa.ArrowException):
            self._folder.write_json(PROGRESS, state)


def table(header: Sequence[str], rows: Sequence[Sequence[str | int | float]]) -> str:
    """Format a table as plain text. The first column is aligned left, the other columns right."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _cell(value: str | int | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


# Reports progress within a piece of work (a part or a log segment), if the piece is large or takes long.
#
# Without these reports, a table that is read in one part, or a log of one segment, would show 0 % until its end. Small
# parts that one Spark task reads together would also show 0 %. Tasks write their progress to files in the run's folder.
# No result depends on these files, so errors of the store are ignored.


LARGE_BYTES = 2 * FILE_BYTES
"""Smaller pieces report progress only if they take longer than `EVERY_SECONDS`."""
PARTS, SEGMENTS = "chunks/under-way", "delta/under-way"
"""The folders of the progress files."""
_MOST = 0.99
"""The maximum fraction of its work that a piece can report as done. The size of a piece is only an estimate, and only
the record of a piece shows that the piece is done."""
_LOOKED_AT = 64
"""The maximum number of pieces whose progress files are read at a time."""


class PartPiece(NamedTuple):
    """A piece of work, which reports its progress in the file ``name``.

    ``weight`` is its size in bytes. ``expected`` is the total that the task reads: rows of a part, or bytes of a
    segment."""

    name: str
    weight: int
    expected: int


class PieceState(NamedTuple):
    """The progress of several pieces. ``rows`` is the number of rows that were read, or that will be published.
    ``weight`` is the weight of the work that is done. ``read_whole`` is the number of pieces that have read as much as
    expected. Such a piece is still writing, or has more to read than expected."""

    rows: int
    weight: float
    read_whole: int = 0


def piece_of_segment(window: str, segment: LogSegment) -> PartPiece:
    """Return the piece of work of a segment of the window with this name."""
    return PartPiece(f"{SEGMENTS}/{window}-{segment.number:06}.json", segment.bytes, segment.bytes)


class UnderWay:
    """Reports the progress of a task's piece, if the piece is large or takes long."""

    def __init__(self, folder: Storage, piece: PartPiece) -> None:
        self._folder = folder
        self._name = piece.name
        self._read = self._rows = 0
        self._noted = time.monotonic()
        if piece.weight > LARGE_BYTES:
            # Overwrite progress that an earlier try of the same task has left.
            self._write_note()

    def add(self, read: int, rows: int) -> None:
        """Report that ``read`` more units were read, and that ``rows`` more rows will be published."""
        self.reached(self._read + read, self._rows + rows)

    def reached(self, read: int, rows: int) -> None:
        """Report that ``read`` units were read in total, and that ``rows`` rows will be published in total."""
        self._read, self._rows = read, rows
        if time.monotonic() - self._noted >= EVERY_SECONDS:
            self._write_note()

    def _write_note(self) -> None:
        self._noted = time.monotonic()
        with suppress(CdcError, OSError, pa.ArrowException):
            self._folder.note_json(self._name, {"read": self._read, "rows": self._rows})


def under_way(folder: Storage, place: str, pieces: Iterable[PartPiece]) -> PieceState:
    """Read the progress of ``pieces`` that are not done.

    :param place: the folder of the progress files.
    """
    rows, weight, read_whole = 0, 0.0, 0
    present = set[str]()
    with suppress(CdcError, OSError, pa.ArrowException):
        present = set(folder.files(place))
    for piece in islice((piece for piece in pieces if piece.name in present), _LOOKED_AT):
        with suppress(CdcError, OSError, pa.ArrowException, KeyError, TypeError):
            progress = folder.read_json(piece.name)
            share = progress["read"] / max(1, piece.expected)
            rows += progress["rows"]
            weight += piece.weight * min(share, _MOST)
            read_whole += share >= 1
    return PieceState(rows, weight, read_whole)


class PieceWatch:
    """Watches the progress of the pieces that are not done.

    :param place: the folder of the progress files.
    :param left: returns the pieces that are not done.
    """

    def __init__(self, folder: Storage, place: str, left: Callable[[], Sequence[PartPiece]]) -> None:
        self._folder = folder
        self._place = place
        self._left = left
        self._all_read = 0

    def poll(self) -> tuple[int, float]:
        """Return the rows and the weight of the work that the pieces have done."""
        left = self._left()
        done = under_way(self._folder, self._place, left)
        self._all_read = len(left) if done.read_whole >= len(left) else 0
        return done.rows, done.weight

    @property
    def all_read(self) -> int:
        """Return the number of pieces that were not done at the last call of `look`, if all of them had read as much as
        expected; otherwise 0."""
        return self._all_read


def forget(folder: Storage, place: str) -> None:
    """Delete the progress files of earlier tries, because their pieces begin again."""
    with suppress(CdcError, OSError, pa.ArrowException):
        folder.delete_folder(place)
