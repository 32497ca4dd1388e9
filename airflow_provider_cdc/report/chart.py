"""Computes the timeline of a run. The timeline has a lane for each worker, and a bar for each part that the worker
read.

The template ``timeline.svg.jinja`` draws the timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.run.timeline import Bar
from airflow_provider_cdc.counted import counted

LANES = 40
"""The maximum number of lanes. With more lanes, the chart would be unreadable."""
_WIDTH, _LANE, _GAP, _AXIS = 1000, 16, 4, 24
_FINEST = 1 / 2000
"""A bar that is shorter than this fraction of the whole timeline is drawn together with its neighbour."""
_HUES = range(40, 330, 26)
"""Hues in degrees on the colour wheel. Red is left out, because it would look like a failure."""
_LEGEND = 12
"""The number of tables that the legend names. With more tables, colours repeat."""


@dataclass(frozen=True)
class DrawnBar:
    """A bar, in pixels. ``text`` is the tooltip of the bar."""

    x: float
    width: float
    hue: int
    text: str


@dataclass(frozen=True)
class Lane:
    """The bars of one worker. ``top`` is the distance of the lane from the upper edge, in pixels."""

    name: str
    top: int
    bars: tuple[DrawnBar, ...]


@dataclass(frozen=True)
class Tick:
    """A label of the time axis."""

    x: float
    anchor: str
    text: str


@dataclass(frozen=True)
class LegendEntry:
    """A table and its colour."""

    table: str
    hue: int


@dataclass(frozen=True)
class Chart:
    """The picture, in pixels."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    legend: tuple[LegendEntry, ...]
    height: int
    width: int = _WIDTH
    lane_height: int = _LANE


def chart_of(bars: Sequence[Bar]) -> Chart:
    """Return the chart that shows ``bars``.

    :param bars: at least one bar.
    """
    begin = min(bar.began for bar in bars)
    seconds = max(max(bar.began + bar.seconds for bar in bars) - begin, 0.001)
    workers = sorted({bar.lane for bar in bars})[:LANES]
    tables = dict.fromkeys(bar.table for bar in bars)
    hues = {table: _HUES[number % len(_HUES)] for number, table in enumerate(tables)}
    lanes = []
    for row, worker in enumerate(workers):
        merged = _merged([bar for bar in bars if bar.lane == worker], seconds * _FINEST)
        drawn = tuple(
            DrawnBar(
                _WIDTH * (bar.began - begin) / seconds,
                max(1.0, _WIDTH * bar.seconds / seconds),
                hues[bar.table],
                _tooltip(bar, parts, worker),
            )
            for bar, parts in merged
        )
        lanes.append(Lane(worker, row * (_LANE + _GAP), drawn))
    legend = tuple(LegendEntry(table, hue) for table, hue in list(hues.items())[:_LEGEND])
    return Chart(tuple(lanes), tuple(_ticks(seconds)), legend, len(workers) * (_LANE + _GAP) + _AXIS)


def _ticks(seconds: float) -> Iterable[Tick]:
    for number, anchor in enumerate(("start", "middle", "middle", "middle", "end")):
        yield Tick(_WIDTH * number / 4, anchor, f"{seconds * number / 4:,.1f} s")


def _merged(bars: Sequence[Bar], gap: float) -> list[tuple[Bar, int]]:
    """Merge short neighbouring bars of one table. Return each resulting bar with the number of parts that it
    represents."""
    merged: list[tuple[Bar, int]] = []
    for bar in sorted(bars, key=lambda bar: bar.began):
        if merged:
            last, parts = merged[-1]
            end = last.began + last.seconds
            if last.table == bar.table and bar.began - end < gap and bar.seconds < gap:
                seconds = max(end, bar.began + bar.seconds) - last.began
                both = Bar(
                    bar.table, last.part, bar.lane, last.began, seconds, last.rows + bar.rows, last.bytes + bar.bytes
                )
                merged[-1] = both, parts + 1
                continue
        merged.append((bar, 1))
    return merged


def _tooltip(bar: Bar, parts: int, worker: str) -> str:
    what = f"part {bar.part}" if parts == 1 else f"{counted(parts, 'part')} from part {bar.part} on"
    rows, size = counted(bar.rows, "row"), f"{bar.bytes / 2**20:,.1f} MiB"
    return f"{bar.table}, {what}: {bar.seconds:,.1f} s, {rows}, {size}, by {worker}"
