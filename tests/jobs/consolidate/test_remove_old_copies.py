"""Older copies are removed, copies that may still be needed are kept, and no fault damages the remaining copies."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.copies import retention
from airflow_provider_cdc.core.copies.removal import check_not_removed, mark, read_removed
from airflow_provider_cdc.core.positions.facts import History, Superseded
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.ledger import FIRST
from airflow_provider_cdc.core.run.results import CONSOLIDATE
from airflow_provider_cdc.core.run.run import Run, was_announced
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.chunk import partition
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.errors import CdcError, FileDamaged, ManifestError, StorageUnavailable
from airflow_provider_cdc.jobs.consolidate import remove_old_copies, stage
from airflow_provider_cdc.report.facts import DagRunName, report_of
from airflow_provider_cdc.sinks.parquet import ParquetSink
from airflow_provider_cdc.sources.api.source import Source
from tests.interrupting import Interrupted, interrupt_at
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import NAMES, HistorySource, random_history
from tests.seeds import seeds

ORDERS = TableName.parse(NAMES[0])
LENGTH = 60


def night_id(number: int) -> str:
    return f"202601{number:02}T000000Z-00000000"


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> HistorySource:
    # It is the number of files that takes time here.
    monkeypatch.setattr(HistorySource, "plan_chunks", lambda self, table, chunk_rows: partition([]))
    # Only these runs read their records.
    monkeypatch.setattr(retention, "was_announced", lambda run: True)
    return HistorySource(random_history(random.Random(5), LENGTH), 5, segment_length=20)


@pytest.fixture
def night(here: MakeRunner, source: HistorySource) -> Callable[..., Runner]:
    """Creates a nightly run with its own position that rolls forward another run's copies."""

    def make(number: int, base: int = 0, run: bool = True, id: int = 0, **more: Any) -> Runner:
        source.end = 5 * number
        bases = dict.fromkeys(NAMES, night_id(base)) if base else {}
        runner = here(source, 5 * number, run_id=night_id(id or number), bases=bases, **more)
        if run:
            runner.all()
        return runner

    return make


def copies(night: Runner, name: str = NAMES[0]) -> list[int]:
    """The nights whose copies of a table a reader of its folders sees."""
    folders = [one.rpartition("snapshot=")[2] for one in night.target.folders(name) if "/snapshot=" in one]
    return [int(folder[6:8]) for folder in folders]


def runs(night: Runner) -> list[int]:
    return [int(name[6:8]) for name in night.run.parent().folders()]


def rows_of(night: Runner, number: int) -> list[Counter[Any]]:
    """The rows of one night's copies, as their folders have them."""
    found = []
    for name in NAMES:
        folder = night.target.folder(name, f"snapshot={night_id(number)}")
        rows = pa.concat_tables([pq.read_table(folder.path(file)) for file in folder.files()]).to_pylist()
        plain = [tuple(str(v) if type(v).__name__ == "Decimal" else v for v in row.values()) for row in rows]
        found.append(Counter(plain))
    return found


@pytest.mark.slow
def test_the_newest_copies_stay_and_are_whole(night: Callable[..., Runner], source: HistorySource) -> None:
    for number in range(1, 8):
        # Files go on from copy to copy, and the one where they were written is removed.
        one = night(number, keep=3, base=number - 1 if number % 4 else 0)
        left = [*range(max(1, number - 2), number + 1)]
        assert [copies(one, name) for name in NAMES] == [left] * len(NAMES)
        assert runs(one) == left
        assert one.published() == one.expected()
        for kept in left:
            assert rows_of(one, kept) == source.history.state(5 * kept), f"night {kept} after night {number}"
    removed = read_removed(one.run)
    assert removed.copies[NAMES[0]] == (one.target.uri_of(f"{NAMES[0]}/snapshot={night_id(4)}"),)
    assert removed.runs == (night_id(4),)
    (section,) = [
        section
        for section in report_of(Run.load(one.run), DagRunName("", "")).sections
        if section.title == "Older copies"
    ]
    assert (NAMES[0], removed.copies[NAMES[0]][0], "removed") in section.rows


def test_without_the_option_nothing_is_removed(night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remove_old_copies, "_Retention", None)
    for number in range(1, 4):
        one = night(number)
    assert copies(one) == runs(one) == [1, 2, 3]


@pytest.mark.slow
def test_copies_are_as_old_as_their_positions_in_the_last_history(night: Callable[..., Runner]) -> None:
    for number in (5, 6):
        night(number)
    one = night(4, keep=1)
    assert copies(one) == runs(one) == [4, 5, 6]
    assert copies(night(7, keep=2)) == [6, 7]
    ended = Superseded("", night_id(7), "35", "the log was reset", night_id(10), "")
    new = dict.fromkeys(NAMES, History("h", 2, night_id(10), superseded=(ended,)))
    one = night(3, id=10, keep=2, histories=new)
    assert (copies(one), [*one.steps()[2]().superseded]) == ([7, 10], NAMES)
    assert copies(night(4, id=11, keep=2, histories=new)) == runs(one) == [10, 11]
    # A copy that did not become the latest removes nothing. Nor does an earlier copy that is published only now.
    assert copies(night(9, id=12, keep=1)) == [10, 11, 12]


def test_the_base_of_a_run_that_is_not_over_stays_until_it_is(night: Callable[..., Runner]) -> None:
    night(1)
    rolling = night(3, base=1, run=False)
    for step in rolling.steps()[:2]:
        step()
    night(2, keep=1)
    assert copies(rolling) == [1, 2]
    assert any("is not over" in why for why in read_removed(rolling.run.parent().folder(night_id(2))).left.values())
    rolling.steps()[2]()
    assert rolling.published() == rolling.source.history.state(15)
    assert copies(night(4, keep=1)) == [4]


def test_a_run_that_begins_while_its_base_is_removed_gives_way(
    night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    night(1)
    begun: list[Runner] = []

    def mark_late(run: Run, table: TableName, by: str) -> None:
        if not begun:
            begun.append(night(3, base=1, run=False))
        mark(run, table, by)

    monkeypatch.setattr(remove_old_copies, "mark", mark_late)
    two = night(2, keep=1)
    assert copies(two) == [1, 2], "the run is seen by the one that removes"
    with pytest.raises(ManifestError, match="was removed"):
        begun[0].all()
    assert two.published() == two.source.history.state(10)


def test_what_a_manifest_that_cannot_be_read_may_rest_on_stays(night: Callable[..., Runner]) -> None:
    night(1)
    newer = night(3, base=1, run=False).run
    newer.write_json(FIRST, {"kind": "Begun", "token": "", "entry": {"shape": [{"rests on": [night_id(1)]}]}})
    two = night(2, keep=1)
    assert copies(two) == [1, 2]
    assert runs(two) == [1, 2, 3]
    newer.write_json(FIRST, {"kind": "of another version"})
    assert copies(night(4, keep=1)) == [4]


def test_what_no_record_names_stays_and_is_told(night: Callable[..., Runner]) -> None:
    one = night(1)
    theirs = one.target.folder(NAMES[0], "snapshot=20250101T000000Z-theirs")
    theirs.write_text("part-0.parquet", "theirs")
    beside = one.target.folder(NAMES[1], f"snapshot={night_id(1)}")
    beside.write_text("notes.txt", "mine")
    for number in (2, 3):
        last = night(number, keep=1)
        assert theirs.files() == ["part-0.parquet"]
        assert beside.files() == ["notes.txt"]
        left = read_removed(last.run).left
        assert "no finished run" in left[theirs.uri]
        assert left[beside.uri_of("notes.txt")] == "the record of its copy does not name it"
    assert not last.target.exists(f"{NAMES[2]}/snapshot={night_id(1)}")
    assert runs(last) == [1, 3], "the record that says what the files were stays as long as anything does"


def test_the_run_of_another_lake_stays(night: Callable[..., Runner]) -> None:
    night(1)
    two = night(2, run=False)
    begun = two.run.read_json(FIRST)
    begun["entry"]["manifest"]["lake"] += "-2"
    two.run.write_json(FIRST, begun)
    two.all()
    three = night(3, keep=1)
    assert copies(three) == [3]
    assert runs(three) == [2, 3]


@pytest.mark.slow
def test_a_removal_that_is_interrupted_anywhere_is_completed_by_the_next_one(
    night: Callable[..., Runner], source: HistorySource, tmp_path: Path
) -> None:
    one = night(8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remove_old_copies._Retention, "done", lambda self: None)
        two = night(9, keep=1)
    lake, before = Path(two.target.path()), tmp_path / "before"
    shutil.copytree(lake, before)
    rows = source.history.state(40)[0].total()
    assert len(one.target.folder(NAMES[0], f"snapshot={night_id(8)}").files()) > 1
    number, interrupted = 0, True
    while interrupted:
        number += 1
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(patch, number)
            try:
                remove_old_copies.prune_old_copies(Run.load(two.run), source)
                interrupted = False
            except Interrupted:
                pass
        assert two.published() == source.history.state(45), "the head"
        folder = two.target.folder(NAMES[0], f"snapshot={night_id(8)}")
        if folder.files():
            seen = [pq.read_metadata(folder.path(file)).num_rows for file in folder.files()]
            assert sum(seen) == rows, "on a disk a copy is seen whole or not at all"
        remove_old_copies.prune_old_copies(Run.load(two.run), source)
        assert [copies(two, name) for name in NAMES] == [[9]] * len(NAMES), f"interrupted at change {number}"
        assert not [one for name in NAMES for one in two.target.folders(name) if "_removed" in one]
        assert runs(two) == [9], f"interrupted at change {number}"
        shutil.rmtree(lake)
        shutil.copytree(before, lake)
    assert number > 15


def test_a_removal_that_fails_fails_no_run_and_is_tried_again(
    night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    night(1)
    remove = ParquetSink.remove

    def failing(self: Any, run_id: str, table: TableName, *files: Any) -> list[str]:
        if table == ORDERS:
            raise StorageUnavailable("the store does not answer")
        return remove(self, run_id, table, *files)

    monkeypatch.setattr(ParquetSink, "remove", failing)
    two = night(2, keep=1)
    assert copies(two) == [1, 2]
    assert copies(two, NAMES[1]) == [2]
    assert "does not answer" in capsys.readouterr().out
    monkeypatch.setattr(ParquetSink, "remove", remove)
    monkeypatch.setattr(remove_old_copies, "Runs", lambda *arguments: (_ for _ in ()).throw(StorageUnavailable("down")))
    assert CONSOLIDATE in Run.load(night(3, keep=1).run).steps
    assert "could not remove older copies; the next run tries again: [CDC-1502] down" in capsys.readouterr().out


def test_a_run_whose_copies_were_removed_is_not_published_again(night: Callable[..., Runner]) -> None:
    one = night(1, run=True)
    one.target.folder(NAMES[0], f"snapshot={night_id(1)}").write_text("keeps-the-record", "")
    night(2, keep=1)
    with pytest.raises(ManifestError, match="a later run keeps only the newest copies"):
        one.steps()[2]()
    assert copies(one, NAMES[1]) == [2]
    assert one.published() == one.source.history.state(10)


def test_a_run_that_has_shown_no_life_can_publish_no_more_and_goes(
    night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = night(1, run=False)
    released: list[str] = []
    monkeypatch.setattr(Source, "release", lambda source, run_id: released.append(run_id))
    for step in dead.steps()[:2]:
        step()
    assert runs(night(2, keep=1)) == [1, 2], "it may go on yet"
    monkeypatch.setattr(retention, "LIFELESS", timedelta(seconds=-1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            remove_old_copies, "remove_folder", lambda *arguments: (_ for _ in ()).throw(StorageUnavailable("down"))
        )
        assert runs(night(3, keep=1)) == [1, 2, 3]
    with pytest.raises(ManifestError, match="was stopped or cleaned up"):
        dead.steps()[2]()
    removed = night(4, keep=1)
    assert runs(removed) == [4]
    assert released.count(night_id(1)) == 2
    # A try of it that wakes up now has nothing to publish with.
    with pytest.raises(CdcError):
        dead.steps()[2]()
    assert copies(removed) == [4]


def test_a_run_that_decided_to_publish_is_never_taken_for_dead(
    night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = night(1, run=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetSink, "publish", lambda *arguments: (_ for _ in ()).throw(Interrupted))
        with pytest.raises(Interrupted):
            slow.all()
    monkeypatch.setattr(retention, "LIFELESS", timedelta(seconds=-1))
    assert runs(night(2, keep=1)) == [1, 2]
    slow.steps()[2]()
    assert rows_of(slow, 1) == slow.source.history.state(5)


@pytest.mark.slow
@pytest.mark.parametrize("late", ["left by a removal that was interrupted", "written by one that had stalled", "both"])
def test_marks_of_copies_that_are_gone_say_nothing_of_a_run_that_is_made_again_under_their_id(
    late: str, night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, after a DAG run of last month was cleared."""
    one = night(1)
    first = Run.load(one.run)
    with monkeypatch.context() as patch:
        if late != "written by one that had stalled":
            patch.setattr(retention, "remove_remains", lambda folder: None)
        assert copies(night(2, keep=1)) == [2]
    assert one.run.exists("removed") == (late != "written by one that had stalled")
    again = night(3, id=1)
    if late != "left by a removal that was interrupted":
        for name in NAMES:
            mark(first, TableName.parse(name), "late")
    assert copies(night(4, keep=3)) == [1, 2, 4], "it is none of the oldest"
    assert rows_of(again, 1) == again.source.history.state(15)
    check_not_removed(Run.load(again.run), [ORDERS])
    assert night(5, base=1).published() == again.source.history.state(25)


def test_a_removal_that_had_stalled_takes_nothing_from_a_run_that_is_made_again_under_the_id(
    night: Callable[..., Runner],
) -> None:
    one = night(1)
    first = Run.load(one.run)
    old = {name: decision_of(first).files_of(name) for name in NAMES}
    night(2, keep=1)
    again = night(3, id=1)
    lake = ParquetSink(again.target)
    for name in NAMES:
        lake.remove(night_id(1), TableName.parse(name), old[name])
    retention.remove_folder(first, "late")
    assert rows_of(again, 1) == again.source.history.state(15)
    assert Run.load(again.run).digest != first.digest
    # Where there are no files yet, none can be removed.
    again.target.make_folder(f"{NAMES[0]}/snapshot={night_id(7)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "rename_folder", None)
        lake.remove(night_id(7), ORDERS, old[NAMES[0]])


def test_marks_of_earlier_versions_count_for_any_manifest(night: Callable[..., Runner]) -> None:
    one = night(1)
    one.run.write_json(f"removed/{folder_name(ORDERS)}/mark.json", {"table": NAMES[0], "by": "", "since": ""})
    with pytest.raises(ManifestError, match="was removed"):
        check_not_removed(Run.load(one.run), [ORDERS])
    assert copies(night(2, keep=2)) == [2], "what they began is completed"


@pytest.mark.parametrize("placed", [False, True])
def test_a_run_that_can_never_be_published_holds_nothing_up(
    placed: bool, night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its commit, and a file that this takes over from the copy before is gone for good."""
    one = night(1)
    stuck = night(2, base=1, run=False)
    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "publish", lambda *arguments: (_ for _ in ()).throw(Interrupted))
        with pytest.raises(Interrupted):
            stuck.all()
    kept = decision_of(Run.load(stuck.run)).kept
    (name, *_) = [name for name in NAMES if kept.get(name)]
    shutil.rmtree(one.target.folder(name, f"snapshot={night_id(1)}").path())
    if placed:
        with pytest.raises(FileDamaged, match="is gone"):
            stuck.steps()[2]()
    three = night(3, keep=1)
    assert not any(1 in copies(three, other) for other in NAMES), "no copy can be made from these any more"
    assert 2 in runs(three), "it may not know yet"
    monkeypatch.setattr(retention, "LIFELESS", timedelta(seconds=-1))
    four = night(4, keep=1)
    assert runs(four) == [4]
    assert [copies(four, other) for other in NAMES] == [[4]] * len(NAMES)
    with pytest.raises(CdcError):
        stuck.steps()[2]()
    assert four.published() == four.source.history.state(20)


def test_a_run_that_has_put_its_files_in_place_needs_the_copy_before_no_more(
    night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any try of it that wakes up publishes it."""
    one = night(1)
    slow = night(2, base=1, run=False)
    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "_announce", lambda *arguments: (_ for _ in ()).throw(Interrupted))
        with pytest.raises(Interrupted):
            slow.all()
    for name in NAMES:
        shutil.rmtree(one.target.folder(name, f"snapshot={night_id(1)}").path())
    monkeypatch.setattr(retention, "LIFELESS", timedelta(seconds=-1))
    assert 2 in runs(night(3, keep=1))
    slow.steps()[2]()
    assert rows_of(slow, 2) == slow.source.history.state(10)


def test_a_run_that_waits_for_its_own_end_keeps_its_records(
    night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two were published at almost the same time, and what Airflow reads of the first one must still be there."""
    monkeypatch.setattr(retention, "was_announced", was_announced)
    one = night(1)
    two = night(2, keep=1)
    assert (copies(two), runs(two)) == ([2], [1, 2])
    Run.load(one.run).record_announced()
    assert runs(night(3, keep=1)) == [2, 3]
    monkeypatch.setattr(retention, "UNANNOUNCED", timedelta(seconds=-1))
    assert runs(night(4, keep=1)) == [4]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
def test_runs_that_are_published_and_remove_older_copies_at_the_same_time(
    seed: int, night: Callable[..., Runner], source: HistorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they read and change the lake."""
    chance = random.Random(seed)
    for number in (1, 2, 3):
        night(number)
    five, six = night(5, keep=2, base=3, run=False), night(6, keep=2, run=False)
    for number, one in ((5, five), (6, six)):
        source.end = 5 * number
        for step in one.steps()[:2]:
            step()
    for name in ("write_json", "create_json", "delete_file", "rename_folder", "adopt", "files", "folders"):
        original = getattr(Storage, name)

        def slowly(*arguments: Any, original: Any = original, **more: Any) -> Any:
            time.sleep(chance.choice([0, 0, 0.001, 0.004]))
            return original(*arguments, **more)

        monkeypatch.setattr(Storage, name, slowly)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(one.steps()[2]) for one in (five, six)]:
            done.result()
    assert six.published() == source.history.state(30)
    assert rows_of(six, 5) == source.history.state(25)
    # One of them may have been looking when the other's copies were not there yet.
    night(7, keep=2)
    assert [copies(six, name) for name in NAMES] == [[6, 7]] * len(NAMES)
    assert runs(six) == [6, 7]
    for number in (6, 7):
        assert rows_of(six, number) == source.history.state(5 * number)


@pytest.mark.slow
def test_a_copy_stays_for_as_many_days_as_are_asked_for_however_many_newer_ones_there_are(
    night: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        days = 0

        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 1, 1, 12, tzinfo=UTC) + timedelta(days=cls.days)

    monkeypatch.setattr(stage, "datetime", Clock)
    for day, number in ((0, 1), (0, 3), (2, 2), (3, 4)):
        Clock.days = day
        night(number)
    Clock.days = 3
    assert copies(night(5, keep=2, keep_days=3)) == [2, 4, 5]
    Clock.days = 5
    assert copies(night(6, keep=3, keep_days=2)) == [4, 5, 6], "these are new enough, or few enough"
    assert copies(night(7, keep=1, keep_days=1)) == [6, 7]


def test_two_runs_that_remove_the_same_copies_at_once(night: Callable[..., Runner]) -> None:
    night(1)
    two, three = night(2, keep=1, run=False), night(3, keep=1, run=False)
    for step in [*two.steps()[:2], *three.steps()[:2]]:
        step()
    remove = ParquetSink.remove
    with pytest.MonkeyPatch.context() as patch:

        def meanwhile(self: Any, run_id: str, table: TableName, *files: Any) -> list[str]:
            patch.setattr(ParquetSink, "remove", remove)
            three.steps()[2]()
            return remove(self, run_id, table, *files)

        patch.setattr(ParquetSink, "remove", meanwhile)
        two.steps()[2]()
    assert copies(three) == [3]
    assert three.published() == three.source.history.state(15)
