"""What a person sees of a running step: plain lines, few enough for a task's log, and a table at the end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import counted, duration
from airflow_provider_cdc.errors import CdcError

EVERY_SECONDS = 5.0
LATELY_SECONDS = 60.0
"""Rates are those of the last minute."""
REPEATED_SECONDS = 60.0
"""A line that says what the one before said is printed only so often."""
SHOWN_TABLES = 5
PROGRESS = "progress.json"


def say(line: str) -> None:
    """Print at once: the log of a task is read while it runs."""
    print(line, flush=True)


class Progress:
    """Says every few seconds how far a step is: in a line, and as JSON data for `note`.

    :param title: the step.
    :param unit: what is counted, in the singular; an s makes its plural.
    :param total: how many of them there are.
    :param weight: the work they make in all, in any unit; how much is done and the time left are judged by it.
    :param at_work: the tables that are at work now.
    :param under_way: the rows that were read, and the weight that was done, of what is not finished.
    :param waiting: what alone is waited for although all work that is counted seems to be done, in words; empty:
        nothing. The time left is not known then.
    :param then: what follows when this is done, in words: the time left does not count it.
    :param backlog: how many bytes of log wait to be read; None: that is not known.
    :param note: takes the same as data: ``step``, ``at`` (ISO 8601), ``percent``, ``done``, ``total``, ``unit``,
        ``rows``, ``bytes``, ``rows_per_second``, ``seconds_left`` (null: not known yet), ``tables``, and
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
        clock: Callable[[], float] = time.monotonic,
        out: Callable[[str], None] = say,
    ) -> None:
        self._title = title
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
        self._looked = self._printed = clock()
        self._last_line = ""
        self._count = 0
        self._rows = 0
        self._bytes = 0
        self._done = 0.0
        self._warm: tuple[float, float] | None = None
        self._lately: deque[tuple[float, int]] = deque([(self._looked, 0)])

    def add(self, count: int, rows: int, weight: float, size: int = 0) -> None:
        """Tell of finished work. ``size`` is in bytes."""
        self._count += count
        self._rows += rows
        self._done += weight
        self._bytes += size
        self._note_warm(self._done)
        self.tick()

    def _note_warm(self, done: float) -> None:
        if self._warm is None and done:
            # What was done until now was done while programs started, caches filled and sessions were opened.
            self._warm = self._clock(), done

    def tick(self) -> None:
        """To be called often: says how far the step is if that is due."""
        now = self._clock()
        if now - self._looked < self._every or self._count >= self._total:
            return
        self._looked = now
        told = self._told(now)
        line = self._line(told)
        if line != self._last_line or now - self._printed >= REPEATED_SECONDS:
            self._printed, self._last_line = now, line
            self._out(line)
        self._note(told)

    def _told(self, now: float) -> dict[str, Any]:
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
        began, done = self._warm
        if work <= done or now <= began:
            return None
        return round((self._weight - work) * (now - began) / (work - done), 1)

    def _line(self, told: dict[str, Any]) -> str:
        parts = [
            f"{self._title}: {told['percent']:.0f} %",
            f"{told['done']:,} of {counted(told['total'], self._unit)}",
            counted(told["rows"], "row"),
        ]
        if told["bytes"]:
            parts.append(f"{told['bytes'] / 2**20:,.1f} MiB")
        parts.append(f"{told['rows_per_second']:,} rows/s")
        if told["seconds_left"] is not None:
            then = f" for this, then {told['then']}" if told["then"] else ""
            parts.append(f"about {duration(told['seconds_left'])} left{then}")
        if told["log_backlog_bytes"] is not None:
            parts.append(f"{told['log_backlog_bytes'] / 2**20:,.1f} MiB of log to read")
        line = ", ".join(parts)
        if told["waiting_for"]:
            line += f"; waiting for {told['waiting_for']}"
        if tables := told["tables"]:
            more = f" and {len(tables) - SHOWN_TABLES} more" if len(tables) > SHOWN_TABLES else ""
            line += f"; at work: {', '.join(tables[:SHOWN_TABLES])}{more}"
        return line


class ProgressFile:
    """``progress.json`` in the run's folder: how far the step that is at work is. For whoever watches; nothing rests on
    it, so a store that is slow or fails holds nothing up.

    :param folder: the run's.
    """

    def __init__(self, folder: Storage) -> None:
        self._folder = folder
        self._writing: threading.Thread | None = None

    def note(self, told: dict[str, Any]) -> None:
        """Write it, unless the last one is still being written."""
        if self._writing is None or not self._writing.is_alive():
            self._writing = threading.Thread(target=self._write, args=(told,), name="progress", daemon=True)
            self._writing.start()

    def _write(self, told: dict[str, Any]) -> None:
        with suppress(CdcError, OSError, pa.ArrowException):
            self._folder.write_json(PROGRESS, told)


def table(header: Sequence[str], rows: Sequence[Sequence[str | int | float]]) -> str:
    """A table in plain text: the first column is aligned left, the others right."""
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
