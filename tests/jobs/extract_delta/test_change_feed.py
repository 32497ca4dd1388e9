"""The published changes lead from each copy to the next, whatever happens while they are written."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.copies import retention
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import ChangesMissing, DecodeError, FileDamaged
from airflow_provider_cdc.jobs.extract_delta import change_feed
from airflow_provider_cdc.jobs.extract_delta.change_feed import GroupCount, Slice, slices_of
from airflow_provider_cdc.jobs.extract_delta.window_changes import (
    ChangeRowGroup,
    ChangeSlice,
    Late,
    WindowChanges,
    window_changes,
)
from airflow_provider_cdc.jobs.extract_delta.window_changes import read_changes as read_windows
from airflow_provider_cdc.jobs.log.read_segment import SegmentRecord
from airflow_provider_cdc.lake import open_dataset, read_changes
from airflow_provider_cdc.sources.api.window import Committed, LogSegment, SegmentSummary
from tests.format_5 import to_format_5
from tests.interrupting import Interrupted, interrupt_at
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import NAMES, HistorySource, at, random_history
from tests.jobs.test_two_tries import race
from tests.seeds import seeds

LENGTH = 90
EXTRACT, PUBLISH = 1, 2


def night_id(number: int) -> str:
    return f"202601{number:02}T000000Z-00000000"


Night = Callable[..., Runner]


@pytest.fixture
def seed() -> int:
    return 5


@pytest.fixture
def night(here: MakeRunner, seed: int) -> Night:
    """Makes the run of a night, whose copies are rolled forward from those of the night before."""
    rng = random.Random(seed)
    source = HistorySource(random_history(rng, LENGTH), seed, segment_length=rng.choice([3, 7, 20, 1000]))

    def make(number: int, base: int | None = None, position: int = 0, run: bool = True, **more: Any) -> Runner:
        source.end = position or 20 * number
        before = number - 1 if base is None else base
        bases = dict.fromkeys(NAMES, night_id(before)) if before else {}
        runner = here(source, source.end, run_id=night_id(number), bases=bases, **{"changes": True, **more})
        if run:
            runner.all()
        return runner

    return make


def changes_of(runner: Runner, name: str, since: str = "") -> pa.Table:
    found = read_changes(runner.target.uri, name, since)
    table = open_dataset(found).to_table()
    assert table.num_rows == found.rows
    return table


def check(runner: Runner, before: int, since: str = "") -> None:
    """The changes are those of the history, one by one and in their order."""
    history = runner.source.history
    for index, name in enumerate(NAMES):
        expected = [one for one in history.effects(runner.source.initial) if one[0] == index]
        expected = expected[sum(1 for one in history.effects(before) if one[0] == index) :]
        found = changes_of(runner, name, since).to_pylist()
        assert [(_row(one["before"]), _row(one["after"])) for one in found] == [one[1:] for one in expected]
        orders = [one["order"] for one in found]
        assert orders == sorted(set(orders))
        # A change of the history is called by its place there.
        places = [int(one["position"]) for one in found]
        assert places == sorted(places)
        assert all(before <= place < runner.source.initial for place in places)
        assert [one["commit_time"].microsecond for one in found] == places


def _row(values: dict[str, Any] | None) -> tuple[Any, ...] | None:
    if values is None:
        return None
    return tuple(str(value) if type(value).__name__ == "Decimal" else value for value in values.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
@pytest.mark.parametrize("slice_rows", [1, 4, 1000])
def test_changes_of_random_histories(night: Night, seed: int, slice_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "SLICE_ROWS", slice_rows)
    for number in range(1, 5):
        runner = night(number)
        if number == 1:
            with pytest.raises(ChangesMissing, match="the changes before the copy of run"):
                read_changes(runner.target.uri, NAMES[0])
        else:
            check(runner, 20 * (number - 1))
            # Nothing between two feeds, and nothing twice.
            check(runner, 20, night_id(1))
            orders = changes_of(runner, NAMES[0], night_id(1))["order"].to_pylist()
            assert orders == list(range(1, len(orders) + 1))


@pytest.mark.slow
def test_the_feed_of_a_large_table_is_written_by_several_tasks_in_the_order_of_its_files(night: Night) -> None:
    night(1)
    runner = night(2)
    check(runner, 20)
    files = read_changes(runner.target.uri, NAMES[0]).files
    firsts = []
    for uri in files:
        folder, _, name = uri.rpartition("/")
        orders = pq.read_table(f"{folder.removeprefix('file://')}/{name}")["order"].to_pylist()
        # Each task calls its files by the order of the first change that it writes.
        firsts.append((int(name.split("-")[1]), orders[0]))
    assert len({first for first, _ in firsts}) > 1
    assert firsts == sorted(firsts)
    assert all(first <= order for first, order in firsts)


def test_changes_that_were_prepared_earlier_go_to_the_slice_of_their_commit() -> None:
    def place(group: int) -> ChangeRowGroup:
        return ChangeRowGroup(0, 0, group)

    counts = [
        GroupCount(place(0), 7, "", 2, 10, 20),
        GroupCount(place(0), 7, "x", 5, 3, 4),
        GroupCount(place(1), 7, "", 2, 30, 40),
        GroupCount(place(1), 8, "", 9, 30, 40),
        GroupCount(place(2), 7, "y", 1, 50, 50),
    ]
    # x is committed between two row groups, and y, in another segment, after all of them. z changed another table.
    at = {pending: Committed(order, str(order), None) for pending, order in (("z", 24), ("x", 25), ("y", 99))}
    late = {pending: Late(0, pending, at[pending]) for pending in at}
    window = WindowChanges((7, 8), (ChangeSlice(0, ()),), tuple(late.values()))
    found = slices_of(window, 7, counts, 2)
    assert found == [Slice((place(0),), (), 2), Slice((place(1),), (late["x"], late["y"]), 8)]
    assert slices_of(window, 8, counts, 2) == [Slice((place(1),), (), 9)]
    assert slices_of(window, 7, counts, 3) == [Slice((place(0), place(1)), (late["x"], late["y"]), 10)]
    with pytest.raises(DecodeError, match="not in the order of the log"):
        slices_of(window, 7, [replace(counts[0], last=31), *counts[1:]], 2)


@pytest.mark.slow
def test_changes_that_join_are_found_from_any_copy_on(night: Night) -> None:
    for number in (1, 2, 3):
        runner = night(number)
    target, name = runner.target.uri, NAMES[0]
    found = read_changes(target, name, str(at(40)))
    assert (found.from_run_id, found.from_position, found.run_id, found.position) == (
        night_id(2),
        str(at(40)),
        night_id(3),
        str(at(60)),
    )
    assert found == read_changes(target, name, night_id(2)) == read_changes(target, name)
    nothing = read_changes(target, name, night_id(3))
    assert (nothing.rows, nothing.files, nothing.from_position, nothing.position) == (0, (), str(at(60)), str(at(60)))
    head = runner.target.read_json(f"{name}/_latest.json")["changes"]
    assert {key: head[key] for key in ("from", "to", "rows", "from_run_id")} == {
        "from": str(at(40)),
        "to": str(at(60)),
        "rows": found.rows,
        "from_run_id": night_id(2),
    }


@pytest.mark.slow
def test_a_run_of_format_5_is_a_base_and_its_feed_goes_on(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first night after the upgrade rolls the copies forward, and the changes have no gap."""
    monkeypatch.setattr(retention, "UNANNOUNCED", timedelta(0))
    for number in (1, 2):
        to_format_5(Path(night(number).run.path()))
    third = night(3)
    assert third.published() == third.expected()
    check(third, 40)
    assert [Run.load(third.run).result_of(SnapshotResult).rows] == [0]
    assert read_changes(third.target.uri, NAMES[0], str(at(20))).rows
    # The copies of both formats go when they expire.
    to_format_5(Path(third.run.path()))
    fourth = night(4, keep=2)
    assert [name for name in fourth.target.folders(NAMES[0]) if night_id(2) in name] == []
    fifth = night(5, position=LENGTH - 1, keep=2)
    assert fifth.run.parent().folders() == [night_id(number) for number in (3, 4, 5)]
    assert fifth.published() == fifth.expected()


@pytest.mark.slow
def test_a_run_that_is_made_again_under_its_id_is_told_by_its_position(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "UNANNOUNCED", timedelta(0))
    for number in (1, 2, 3):
        runner = night(number, keep=1)
    assert not Run.exists(runner.run.parent().folder(night_id(1)))
    # Its DAG run is cleared and gets another position. These positions do not show that it is the latest.
    for name in NAMES:
        runner.target.delete_file(f"{name}/_latest.json")
    again = night(1, base=3, position=70)
    check(again, 60)
    name = NAMES[0]
    assert read_changes(again.target.uri, name, str(at(70))).rows == 0
    assert read_changes(again.target.uri, name, str(at(60))).rows
    # A reader with the first copy still gets an error, not an empty result.
    with pytest.raises(ChangesMissing):
        read_changes(again.target.uri, name, str(at(20)))


def test_a_segment_that_is_read_for_no_table_does_not_say_where_it_commits() -> None:
    def record(segment: int, **found: Any) -> SegmentRecord:
        summary = SegmentSummary(LogSegment(segment, "log", 0, None), **found)
        return SegmentRecord("plan", segment, (), {}, 0, summary)

    # One segment prepares x and y. The next one commits x, and its only table was left out. The last one commits y.
    at = Committed(30, "source:3", 3)
    read = [record(0), record(1, decided={"x": 20}), record(2, decided={"y": 30}, commits={"y": at})]
    found = window_changes([0], read, {(0, "x"): 20, (0, "y"): 30})
    assert found.late == (Late(0, "y", at),)


@pytest.mark.slow
def test_a_night_without_the_option_is_a_gap_that_is_said(night: Night) -> None:
    for number in (1, 2, 3, 4):
        runner = night(number, changes=number != 3)
    check(runner, 60)
    assert not Path(runner.target.path(f"{NAMES[0]}/_changes/{night_id(3)}")).exists()
    for since in (night_id(2), night_id(1), "no such run"):
        with pytest.raises(ChangesMissing, match=night_id(3)):
            read_changes(runner.target.uri, NAMES[0], since)


def test_without_changes_there_is_a_feed_of_none(night: Night) -> None:
    night(1)
    runner = night(2, position=20)
    found = read_changes(runner.target.uri, NAMES[0])
    assert (found.rows, found.from_position, found.position) == (0, str(at(20)), str(at(20)))
    assert changes_of(runner, NAMES[0]).schema.names[-2:] == ["before", "after"]


def test_readers_of_copies_do_not_see_changes(night: Night) -> None:
    night(1)
    runner = night(2)
    assert runner.published() == runner.expected()
    folder = Path(runner.target.path(NAMES[0]))
    assert {path.parent.name for path in folder.glob("snapshot=*/*.parquet")} == {
        f"snapshot={night_id(number)}" for number in (1, 2)
    }
    assert not [name for name in runner.run.files("staged") if name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "stride"),
    [(EXTRACT, 9), (PUBLISH, 60), *(pytest.param(step, 1, marks=pytest.mark.long) for step in (EXTRACT, PUBLISH))],
)
def test_a_step_that_is_killed_anywhere_and_done_again_leaves_one_feed(
    night: Night, step: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    night(1)
    for number in range(1, 400, stride):
        # Each time in another nightly run, from the same copy.
        runner = night(number + 1, base=1, position=40, run=False)
        for one in runner.steps()[:step]:
            one()
        with monkeypatch.context() as patch:
            interrupt_at(patch, number)
            try:
                runner.steps()[step]()
                break
            except Interrupted:
                pass
        for one in runner.steps()[step:]:
            one()
        check(runner, 20)
        # The next one is the latest again, although it is at the same position.
        runner.target.delete_file(f"{NAMES[0]}/_latest.json")
    else:
        pytest.fail("it changes the lake more often than that")


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.long) for turn in (1, 2))])
@pytest.mark.parametrize("step", [EXTRACT, PUBLISH])
def test_two_tries_of_a_step_leave_one_feed(
    night: Night, step: int, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    night(1)
    runner = night(2, run=False)
    for one in runner.steps()[:step]:
        one()
    first, second = race(runner, monkeypatch, turn, [step, step], 0.02)
    assert first == second
    for one in runner.steps()[step:]:
        one()
    check(runner, 20)


def test_what_extract_delta_left_is_checked_before_it_is_published(night: Night) -> None:
    night(1)
    runner = night(2, run=False)
    for one in runner.steps()[:PUBLISH]:
        one()
    file = Path(runner.run.path(read_windows(Run.load(runner.run))[0].files[0].name))
    file.write_bytes(file.read_bytes()[:-9] + b"x" + file.read_bytes()[-8:])
    with pytest.raises(FileDamaged, match="the changes of the window"):
        runner.steps()[PUBLISH]()


@pytest.mark.slow
def test_changes_go_with_their_copies(night: Night) -> None:
    for number in (1, 2, 3, 4):
        runner = night(number, keep=2)
    folder = Path(runner.target.path(f"{NAMES[0]}/_changes"))
    assert sorted(path.name for path in folder.iterdir()) == [night_id(3), night_id(4)]
    check(runner, 60)
    check(runner, 40, night_id(2))
    with pytest.raises(ChangesMissing, match=night_id(2)):
        read_changes(runner.target.uri, NAMES[0], night_id(1))


@pytest.mark.slow
def test_a_removal_of_changes_that_is_killed_anywhere_is_completed(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        night(number)
    runner = night(3, keep=1, run=False)
    for one in runner.steps()[:PUBLISH]:
        one()
    for number in range(8, 200, 7):
        with monkeypatch.context() as patch:
            interrupt_at(patch, number)
            try:
                runner.steps()[PUBLISH]()
                break
            except Interrupted:
                pass
    runner.steps()[PUBLISH]()
    for name in NAMES:
        folder = Path(runner.target.path(f"{name}/_changes"))
        assert sorted(path.name for path in folder.iterdir()) == [night_id(3)]
    check(runner, 40)
