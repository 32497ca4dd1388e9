"""A task's log gets few lines, and each of them is readable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.jobs.runtime.progress import PROGRESS, Progress, ProgressFile, table


class Watched:
    """Progress with a fake clock."""

    def __init__(self, total: int, weight: float, then: str = "") -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.notes: list[dict[str, Any]] = []
        self.tables = ["shop.a"]
        self.under_way = (0, 0.0)
        self.waiting = ""
        self.paused = 0.0
        self.progress = Progress(
            "snapshot",
            "chunk",
            total,
            weight,
            at_work=lambda: self.tables,
            under_way=lambda: self.under_way,
            waiting=lambda: self.waiting,
            then=then,
            paused=lambda: self.paused,
            note=self.notes.append,
            every=5,
            clock=lambda: self.now,
            out=self.lines.append,
        )


def test_lines_come_at_intervals_and_say_what_is_left_without_the_warm_up() -> None:
    watched = Watched(40, 400.0)
    # The first chunks take long, for all has to start first.
    watched.now = 10.0
    watched.progress.add(2, 1000, 20.0, 2**20)
    for second in range(11, 30):
        watched.now = float(second)
        watched.progress.add(2, 1000, 20.0, 2**20)
    assert watched.lines == [
        "snapshot: 5 %, 2 of 40 chunks, 1,000 rows, 1.0 MiB, 100 rows/s; at work: shop.a",
        "snapshot: 30 %, 12 of 40 chunks, 6,000 rows, 6.0 MiB, 400 rows/s, about 14 s left; at work: shop.a",
        "snapshot: 55 %, 22 of 40 chunks, 11,000 rows, 11.0 MiB, 550 rows/s, about 9 s left; at work: shop.a",
        "snapshot: 80 %, 32 of 40 chunks, 16,000 rows, 16.0 MiB, 640 rows/s, about 4 s left; at work: shop.a",
    ]
    assert [note["percent"] for note in watched.notes] == [5.0, 30.0, 55.0, 80.0]
    assert watched.notes[-1]["seconds_left"] == 4.0


def test_the_time_left_does_not_include_pauses() -> None:
    watched = Watched(40, 400.0)
    watched.progress.add(2, 1000, 20.0)
    watched.now = 10.0
    watched.progress.add(10, 1000, 100.0)
    watched.now, watched.paused = 7210.0, 7200.0
    watched.progress.tick()
    assert watched.notes[-1]["seconds_left"] == 28.0


def test_a_step_that_hangs_goes_on_telling_and_its_rate_falls() -> None:
    watched = Watched(3, 3.0)
    watched.progress.add(1, 6000, 1.0)
    for second in range(1, 186):
        watched.now = float(second)
        watched.progress.tick()
    # Each line is printed when its contents change, and otherwise once a minute.
    assert (len(watched.lines), len(set(watched.lines))) == (15, 13)
    assert len(watched.notes) == 37
    assert watched.notes[0]["rows_per_second"] == 1200
    assert watched.notes[-1]["rows_per_second"] == 0
    assert watched.notes[-1]["seconds_left"] is None


def test_what_is_under_way_counts_until_it_is_finished() -> None:
    watched = Watched(1, 100.0)
    for second, watched.under_way in ((5, (0, 0.0)), (10, (1000, 20.0)), (15, (2000, 40.0)), (20, (3000, 60.0))):
        watched.now = float(second)
        watched.progress.tick()
    assert watched.lines == [
        "snapshot: 0 %, 0 of 1 chunk, 0 rows, 0 rows/s; at work: shop.a",
        "snapshot: 20 %, 0 of 1 chunk, 1,000 rows, 100 rows/s; at work: shop.a",
        "snapshot: 40 %, 0 of 1 chunk, 2,000 rows, 133 rows/s, about 15 s left; at work: shop.a",
        "snapshot: 60 %, 0 of 1 chunk, 3,000 rows, 150 rows/s, about 10 s left; at work: shop.a",
    ]
    # The try that had read these rows was lost, and another one begins.
    watched.now, watched.under_way = 25.0, (0, 0.0)
    watched.progress.tick()
    assert watched.notes[-1]["rows_per_second"] == 0
    assert watched.notes[-1]["seconds_left"] is None


def test_no_time_is_told_of_what_nobody_counts() -> None:
    """99 % and about 1 s left stood there for half a minute, and 2 s left before a minute of passes."""
    watched = Watched(1, 100.0, "rows are read again")
    for second, watched.under_way, watched.waiting in (
        (5, (1000, 50.0), ""),
        (10, (1900, 90.0), ""),
        (15, (2000, 99.0), "1 part to be written"),
        (20, (2000, 99.0), "1 part to be written"),
    ):
        watched.now = float(second)
        watched.progress.tick()
    assert watched.lines[1].endswith("about 1 s left for this, then rows are read again; at work: shop.a")
    assert watched.lines[2].endswith("133 rows/s; waiting for 1 part to be written; at work: shop.a")
    assert watched.notes[2]["waiting_for"] == "1 part to be written"
    assert watched.notes[2]["seconds_left"] is None


def test_one_chunk_and_one_row_are_told_as_such_and_the_unit_of_the_data_stays() -> None:
    watched = Watched(1, 1.0)
    watched.progress._rows = 1
    watched.now = 5.0
    watched.progress.tick()
    assert watched.lines == ["snapshot: 0 %, 0 of 1 chunk, 1 row, 0 rows/s; at work: shop.a"]
    assert watched.notes[0]["unit"] == "chunks"


def test_many_tables_make_no_long_line() -> None:
    watched = Watched(3, 3.0)
    watched.tables = [f"shop.t{number}" for number in range(9)]
    watched.now = 5.0
    watched.progress.tick()
    (line,) = watched.lines
    assert line.endswith("; at work: shop.t0, shop.t1, shop.t2, shop.t3, shop.t4 and 4 more")
    assert watched.notes[0]["tables"] == watched.tables


def test_what_is_noted_can_be_read_while_the_step_runs_and_a_store_that_fails_fails_nothing(tmp_path: Path) -> None:
    folder = Storage(tmp_path.as_uri())
    noting = ProgressFile(folder)
    noting.note({"percent": 5.0})
    deadline = time.monotonic() + 60
    while not folder.exists(PROGRESS):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert folder.read_json(PROGRESS) == {"percent": 5.0}
    (tmp_path / "file").write_text("")
    failing = ProgressFile(Storage((tmp_path / "file" / "lake").as_uri()))
    failing.note({})
    assert failing._writing is not None
    failing._writing.join(60)


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


def test_the_log_that_waits_is_told_once_it_is_known() -> None:
    lines: list[str] = []
    notes: list[dict[str, Any]] = []
    known: list[int | None] = [None]
    now = [0.0]
    progress = Progress(
        "snapshot",
        "chunk",
        10,
        10.0,
        backlog=lambda: known[0],
        note=notes.append,
        clock=lambda: now[0],
        out=lines.append,
    )
    for backlog in (None, 3 * 2**20):
        known[0], now[0] = backlog, now[0] + 6
        progress.tick()
    assert "of log" not in lines[0]
    assert lines[1].endswith(", 3.0 MiB of log to read")
    assert [note["log_backlog_bytes"] for note in notes] == [None, 3 * 2**20]
