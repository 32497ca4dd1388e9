"""What a person sees of a running step: plain lines, few enough for a task's log, and a table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

EVERY_SECONDS = 5.0


def say(line: str) -> None:
    """Print at once: the log of a task is read while it runs."""
    print(line, flush=True)


class Progress:
    """Prints how far a step is, at most every few seconds.

    :param title: the step.
    :param unit: what is counted, in the plural.
    :param total: how many of them there are.
    :param weight: the work they make in all, in any unit; the time left is judged by it.
    """

    def __init__(
        self,
        title: str,
        unit: str,
        total: int,
        weight: float,
        *,
        every: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        out: Callable[[str], None] = say,
    ) -> None:
        self._title = title
        self._unit = unit
        self._total = total
        self._weight = weight
        self._every = every
        self._clock = clock
        self._out = out
        self._started = self._printed = clock()
        self._count = 0
        self._rows = 0
        self._done = 0.0

    def add(self, count: int, rows: int, weight: float) -> None:
        """Tell of finished work."""
        self._count += count
        self._rows += rows
        self._done += weight
        now = self._clock()
        if now - self._printed >= self._every and self._count < self._total:
            self._printed = now
            self._out(self._line(now - self._started))

    def _line(self, seconds: float) -> str:
        rate = self._rows / seconds if seconds > 0 else 0.0
        line = f"{self._title}: {self._count} of {self._total} {self._unit}, {self._rows:,} rows, {rate:,.0f} rows/s"
        if self._done > 0 and self._weight > self._done:
            line += f", about {duration(seconds * (self._weight - self._done) / self._done)} left"
        return line


def duration(seconds: float) -> str:
    """``7 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


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
