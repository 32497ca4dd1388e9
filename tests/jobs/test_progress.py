"""A task's log gets few lines, and each of them can be read."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.jobs.progress import Progress, duration, table


def test_lines_come_at_intervals_and_say_what_is_left() -> None:
    now = 0.0
    lines: list[str] = []
    progress = Progress("snapshot", "chunks", 40, 400.0, every=5, clock=lambda: now, out=lines.append)
    for second in range(1, 21):
        now = float(second)
        progress.add(2, 1000, 20.0)
    assert lines == [
        "snapshot: 10 of 40 chunks, 5,000 rows, 1,000 rows/s, about 15 s left",
        "snapshot: 20 of 40 chunks, 10,000 rows, 1,000 rows/s, about 10 s left",
        "snapshot: 30 of 40 chunks, 15,000 rows, 1,000 rows/s, about 5 s left",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"), (59.6, "1 min 00 s")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_lines_up() -> None:
    assert table(("table", "rows"), [("shop.a", 1234567), ("b", 0.25)]).splitlines() == [
        "table        rows",
        "------  ---------",
        "shop.a  1,234,567",
        "b             0.2",
    ]
