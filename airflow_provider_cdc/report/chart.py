"""The timeline of a run as a picture: a lane for each worker, a bar for each part that it read. As SVG, in the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from airflow_provider_cdc.core.timeline import Bar
from airflow_provider_cdc.counted import counted

LANES = 40
"""More lanes than that nobody can tell apart."""
_WIDTH, _LANE, _GAP, _AXIS = 1000, 16, 4, 24
_FINEST = 1 / 2000
"""What is shorter than this part of the whole is drawn together with its neighbour."""
_HUES = 12


def to_svg(bars: Sequence[Bar]) -> str:
    """The picture; empty if there are no bars. A pointer that rests on a bar is told what it is."""
    if not bars:
        return ""
    begin = min(bar.began for bar in bars)
    whole = max(max(bar.began + bar.seconds for bar in bars) - begin, 0.001)
    lanes = list(dict.fromkeys(bar.lane for bar in sorted(bars, key=lambda bar: bar.lane)))[:LANES]
    tables = {name: number for number, name in enumerate(dict.fromkeys(bar.table for bar in bars))}
    height = len(lanes) * (_LANE + _GAP) + _AXIS
    drawn = []
    for row, lane in enumerate(lanes):
        own = _merged([bar for bar in bars if bar.lane == lane], whole * _FINEST)
        top = row * (_LANE + _GAP)
        drawn.append(
            f'<rect x="0" y="{top}" width="{_WIDTH}" height="{_LANE}" fill="#8883"><title>{escape(lane)}</title></rect>'
        )
        for bar, parts in own:
            x = _WIDTH * (bar.began - begin) / whole
            width = max(1.0, _WIDTH * bar.seconds / whole)
            hue = tables[bar.table] * 360 // _HUES % 360
            drawn.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_LANE}" fill="hsl({hue} 60% 50%)">'
                f"<title>{escape(_told(bar, parts, lane))}</title></rect>"
            )
    for step in range(5):
        x = _WIDTH * step / 4
        anchor = ("start", "middle", "middle", "middle", "end")[step]
        drawn.append(
            f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}" font-size="14" fill="currentColor">'
            f"{whole * step / 4:,.1f} s</text>"
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" role="img" aria-label="timeline of the parts">'
        f"{''.join(drawn)}</svg>"
    )


def _merged(bars: Sequence[Bar], gap: float) -> list[tuple[Bar, int]]:
    """Bars of one lane, short neighbours of one table as one; each with how many parts it stands for."""
    found: list[tuple[Bar, int]] = []
    for bar in sorted(bars, key=lambda bar: bar.began):
        if found:
            last, parts = found[-1]
            end = last.began + last.seconds
            if last.table == bar.table and bar.began - end < gap and bar.seconds < gap:
                seconds = max(end, bar.began + bar.seconds) - last.began
                both = Bar(
                    bar.table, last.part, bar.lane, last.began, seconds, last.rows + bar.rows, last.bytes + bar.bytes
                )
                found[-1] = both, parts + 1
                continue
        found.append((bar, 1))
    return found


def _told(bar: Bar, parts: int, lane: str) -> str:
    what = f"part {bar.part}" if parts == 1 else f"{counted(parts, 'part')} from part {bar.part} on"
    rows, size = counted(bar.rows, "row"), f"{bar.bytes / 2**20:,.1f} MiB"
    return f"{bar.table}, {what}: {bar.seconds:,.1f} s, {rows}, {size}, by {lane}"
