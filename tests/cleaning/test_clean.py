"""Only what ended runs left is removed, and a run that resumes can do no harm."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.cleaning import cleaner
from airflow_provider_cdc.cleaning.findings import PLACED, RUN, WORK_FILES, CleaningReport
from airflow_provider_cdc.core.copies import retention
from airflow_provider_cdc.core.run.ledger import FIRST, FilesCommitted, State
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ManifestError, StorageUnavailable
from airflow_provider_cdc.sinks.parquet import ParquetSink
from tests.cleaning.conftest import AnyTarget, Target, night_id
from tests.interrupting import Interrupted, interrupt_at
from tests.jobs.history_source import NAMES, Row

HOUR, WEEK = timedelta(hours=1), timedelta(days=7, hours=1)


def removed(report: CleaningReport) -> list[tuple[str, str]]:
    return [(one.kind, one.run_id) for one in report.removed]


def reason(report: CleaningReport, number: int) -> str:
    (why,) = [one.why for one in report.kept if one.run_id == night_id(number)]
    return why


def published_by(target: Target, number: int, **more: Any) -> list[Counter[Row]]:
    target.night(number, **more)
    return target.published()


@pytest.mark.parametrize(
    ("state", "later", "days", "goes"),
    [
        ("failed", WEEK, 7, True),
        ("success", WEEK, 7, True),
        ("failed", HOUR, 7, False),
        ("failed", HOUR, 0, True),
        ("running", WEEK * 50, 0, False),
        ("queued", WEEK * 50, 0, False),
        ("in an unknown state", WEEK * 50, 0, False),
        # Airflow does not know the DAG run.
        ("", WEEK, 0, True),
        ("", HOUR, 0, False),
        ("", WEEK, 30, False),
        # It wrote something after the clock was read.
        ("failed", -HOUR, 0, False),
    ],
)
def test_a_run_goes_only_if_it_is_proven_to_have_ended(
    target: Target, state: str, later: timedelta, days: int, goes: bool
) -> None:
    target.night(1)
    target.night(2, steps=2, dag_run=True)
    target.states, target.later = {night_id(2): state}, later
    size = sum(path.stat().st_size for path in _files(target, night_id(2)))
    planned = target.clean(dry_run=True, days=days)
    assert target.runs() == [1, 2]
    assert not planned.removed or Run.load(target.lake.folder("_runs", night_id(2))).commit is None
    found = target.clean(days=days)
    assert (found.removed, found.kept) == (planned.removed, planned.kept), "a dry run tells what the other one does"
    assert removed(found) == ([(RUN, night_id(2))] if goes else [])
    assert found.bytes == (size if goes else 0)
    assert target.runs() == ([1] if goes else [1, 2])
    assert target.copies() == [1]


def _files(target: Target, run_id: str) -> list[Any]:
    return [path for path in Path(target.lake.path(f"_runs/{run_id}")).rglob("*") if path.is_file()]


@pytest.mark.parametrize("store", ["disk", pytest.param("s3", marks=pytest.mark.long)])
def test_a_zombie_of_a_cleaned_run_publishes_nothing(store: str, target_on: AnyTarget) -> None:
    target = target_on(store)
    target.night(1)
    zombie, stalled = target.night(2, steps=2), target.night(3, steps=2)
    record_commit = Run.record_commit

    def after_cleaning(self: Run, record: str, token: str) -> FilesCommitted:
        """The zombie stalls right before its commit, with all files staged."""
        if self.run_id == night_id(3):
            assert removed(target.clean()) == [(RUN, night_id(2)), (RUN, night_id(3))]
        return record_commit(self, record, token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "record_commit", after_cleaning)
        with pytest.raises(CdcError):
            stalled.steps()[2]()
    for step in zombie.steps():
        with pytest.raises(ManifestError, match="there is no manifest") as told:
            step()
        assert "clear the task `lock_and_record`" in str(told.value)
    assert target.copies() == [1]
    assert target.published() == target.source.history.state(5)
    # What it wrote after the removal goes a week later.
    target.clean()
    assert target.runs() == [1]
    # The DAG run is cleared completely: the run starts again under its id, and is exact.
    assert published_by(target, 2) == target.source.history.state(10)
    assert target.clean().removed == ()


def test_a_zombie_that_wakes_up_while_its_files_go_is_told_so(target: Target) -> None:
    zombie = target.night(1, steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaner, "remove_folder", lambda *of: (_ for _ in ()).throw(StorageUnavailable("down")))
        assert "the removal failed: [CDC-1502] down" in reason(target.clean(), 1)
    with pytest.raises(ManifestError, match="was stopped or cleaned up"):
        zombie.steps()[2]()
    assert target.copies() == []
    assert removed(target.clean()) == [(RUN, night_id(1))]


def test_a_commit_of_a_zombie_does_not_count_once_the_first_entry_is_deleted(target: Target) -> None:
    """The clean-up is killed when it has deleted the first entry, and nothing else."""
    zombie = Run.load(target.night(1, steps=2).run)

    def killed(folder: Storage) -> None:
        raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "remove_remains", killed)
        with pytest.raises(Interrupted):
            target.clean()
    with pytest.raises(RunRestarted):
        zombie.record_commit("files.json", "zombie")
    assert not Run.exists(zombie.folder)


def test_a_run_that_commits_while_it_is_judged_stays_and_is_published(target: Target) -> None:
    late = target.night(1, steps=2)
    end = Run.end

    def after_the_run(self: Run, why: str) -> State:
        late.steps()[2]()
        return end(self, why)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "end", after_the_run)
        assert reason(target.clean(), 1) == "a task of the run committed meanwhile"
    assert target.published() == target.source.history.state(5)
    assert target.clean().removed == ()


def test_a_run_that_starts_again_while_it_is_judged_stays(target: Target) -> None:
    target.night(1, steps=2)
    again = cleaner.RunFolders._again

    def after_a_restart(self: Any, run: Run) -> Any:
        target.night(1, steps=1, keep=3)
        return again(self, run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaner.RunFolders, "_again", after_a_restart)
        assert reason(target.clean(), 1) == "it changed meanwhile"
    target.later = HOUR
    assert target.clean().removed == ()


def test_work_files_of_published_runs_go_and_the_copies_stay(target: Target) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "clean", lambda self: None)
        one = target.night(1)
        target.night(2, base=1)
    assert target.lake.folders(f"_runs/{night_id(1)}/chunks")
    assert removed(target.clean()) == [(WORK_FILES, night_id(1)), (WORK_FILES, night_id(2))]
    assert target.copies() == [1, 2]
    assert target.published() == target.source.history.state(10)
    # Both are still good as a base, and as a run that is cleared.
    one.steps()[2]()
    assert published_by(target, 3, base=2) == target.source.history.state(15)


def test_what_the_package_did_not_make_stays(target: Target) -> None:
    target.night(1)
    theirs = {
        "_runs/notes.txt": "",
        "_runs/mine/chunks/part.parquet": "",
        "_runs/20260105T000000Z-00000000/chunks/part.parquet": "the folder of a run without a manifest",
        "_runs/20260105T000000Z-00000000/control/events/snapshot-1.json": "of a task that resumed after the removal",
        "_runs/20260106T000000Z-00000000/chunks/part.parquet": "with something else beside",
        "_runs/20260106T000000Z-00000000/ideas.txt": "",
        "_runs/20260107T000000Z-00000000/manifest.json": "of another version",
        f"{NAMES[0]}/snapshot=20260108T000000Z-00000000/part-0.parquet": "a copy that no run recorded",
        f"{NAMES[0]}/snapshot={night_id(1)}/notes.txt": "beside a copy",
        "other/file.parquet": "",
    }
    for name, text in theirs.items():
        target.lake.write_text(name, text)
    other = target.night(9, steps=2)
    foreign = target.night(10, steps=2)
    for run, field, value in ((other.run, "lake", f"{target.lake.uri}-2"), (foreign.run, "source_conn_id", "another")):
        begun = run.read_json(FIRST)
        begun["entry"]["manifest"][field] = value
        run.write_json(FIRST, begun)
    report = target.clean()
    assert removed(report) == [(RUN, night_id(5))]
    theirs = {name: text for name, text in theirs.items() if night_id(5) not in name}
    assert [name for name in theirs if not target.lake.exists(name)] == []
    assert "ideas.txt" in reason(report, 6)
    assert "cannot be read" in reason(report, 7)
    assert "another target" in reason(report, 9)
    assert "another connection" in reason(report, 10)
    target.lake.delete_file(f"{NAMES[0]}/snapshot={night_id(1)}/notes.txt")
    assert target.published() == target.source.history.state(5)


def test_temporary_files_of_killed_processes_go_after_a_day(target: Target) -> None:
    target.night(1)
    digits = "0123456789abcdef" * 2
    killed = [
        f"_probe-{digits}",
        f"_runs/_probe-{digits}",
        f"_runs/_probe-{digits}.{digits}.tmp",
        f"_runs/_turns/_probe-{digits}",
        f"{NAMES[0]}/_latest.json.{digits}.tmp",
    ]
    theirs = [f"{NAMES[0]}/notes.tmp", "_probe-mine", f"{NAMES[0]}/_latest.json.{digits}"]
    for name in (*killed, *theirs):
        target.lake.write_text(name, "x")
    target.later = HOUR
    assert target.clean().removed == ()
    target.later = timedelta(days=1, hours=1)
    report = target.clean()
    assert {one.what for one in report.removed} == {target.lake.uri_of(name) for name in killed}
    assert report.bytes == len(killed)
    assert [name for name in (*killed, *theirs) if target.lake.exists(name)] == theirs


def test_a_wrong_target_is_an_error(target: Target) -> None:
    with pytest.raises(ConfigurationError, match="no folders of runs"):
        target.clean()
    assert not target.lake.exists("_runs")


def stopped_after(files: int) -> Callable[..., Any]:
    """Replaces `ParquetSink._place`: it places only some files of each table, and dies."""
    from airflow_provider_cdc.core.storage.folder import Storage

    move, moved = Storage.move_to, [0]

    def stopping(self: Storage, *arguments: Any) -> str:
        if moved[0] == files:
            raise Interrupted
        moved[0] += 1
        return move(self, *arguments)

    return stopping


def dying(target: Target, number: int, patched: str, replacement: Any) -> Any:
    runner = target.night(number, steps=2)
    from airflow_provider_cdc.core.storage.folder import Storage

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage if patched == "move_to" else ParquetSink, patched, replacement)
        with pytest.raises(Interrupted):
            runner.steps()[2]()
    return runner


@pytest.mark.slow
@pytest.mark.parametrize("store", ["disk", "s3"])
def test_copies_that_a_run_half_placed_go_once_newer_ones_exist(store: str, target_on: AnyTarget) -> None:
    target = target_on(store)
    dead = dying(target, 1, "move_to", stopped_after(2))
    placed = sum(len(target.lake.files(f"{name}/snapshot={night_id(1)}")) for name in NAMES)
    assert placed == 2
    assert "clear the task `consolidate`" in reason(target.clean(), 1)
    target.night(2)
    report = target.clean()
    assert removed(report) == [(PLACED, night_id(1))]
    assert target.runs() == [2]
    assert [target.copies(name) for name in NAMES] == [[2]] * len(NAMES)
    with pytest.raises(ManifestError, match="there is no manifest"):
        dead.steps()[2]()
    assert target.published() == target.source.history.state(10)


def test_a_zombie_that_resumes_while_its_half_placed_copies_go_leads_no_reader_to_them(target: Target) -> None:
    dead = dying(target, 1, "move_to", stopped_after(2))
    target.night(2)
    remove = ParquetSink.remove
    resumed: list[BaseException] = []

    def resuming(self: ParquetSink, *arguments: Any) -> list[str]:
        if not resumed:
            with pytest.raises(CdcError) as error:
                dead.steps()[2]()
            resumed.append(error.value)
        return remove(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetSink, "remove", resuming)
        target.clean()
    assert "is gone" in str(resumed[0])
    assert target.published() == target.source.history.state(10)
    target.clean()
    assert (target.runs(), target.copies()) == ([2], [2])


def test_a_zombie_that_completes_its_copies_first_keeps_them(target: Target) -> None:
    slow = dying(target, 1, "move_to", stopped_after(2))
    target.night(2)
    mark = target.source.history.state(5)

    def completing(self: Run) -> None:
        """The last moment at which the zombie can place its files."""
        with pytest.MonkeyPatch.context() as patch:
            patch.undo()
            slow.steps()[2]()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "clean", _once(completing))
        assert "all files of its copies are in place" in reason(target.clean(), 1)
    assert target.copies() == [1, 2]
    assert mark == target.source.history.state(5)
    assert target.clean().removed == ()


def _once(act: Callable[[Run], None]) -> Callable[[Run], None]:
    clean = Run.clean
    done: list[int] = []

    def replacement(run: Run) -> None:
        if not done:
            done.append(1)
            act(run)
        clean(run)

    return replacement


def test_copies_that_are_whole_but_not_announced_stay(target: Target) -> None:
    def interrupted(*arguments: Any) -> bool:
        raise Interrupted

    slow = dying(target, 1, "_announce", interrupted)
    target.night(2)
    assert "all files of its copies are in place" in reason(target.clean(), 1)
    slow.steps()[2]()
    assert target.copies() == [1, 2]


@pytest.mark.slow
def test_a_clean_up_that_is_killed_anywhere_is_completed_by_the_next_one(target: Target, tmp_path: Path) -> None:
    dying(target, 1, "move_to", stopped_after(2))
    target.night(3)
    target.night(2, steps=2)
    lake, before = Path(target.lake.path()), tmp_path / "before"
    shutil.copytree(lake, before)
    number, interrupted = 0, True
    while interrupted:
        number += 1
        with pytest.MonkeyPatch.context() as patch:
            # The clock's probe is written and deleted first.
            interrupt_at(patch, number + 2)
            try:
                target.clean()
                interrupted = False
            except Interrupted:
                pass
        target.clean()
        assert (target.runs(), target.copies()) == ([3], [3]), f"killed at change {number}"
        assert target.published() == target.source.history.state(15)
        shutil.rmtree(lake)
        shutil.copytree(before, lake)
    assert number > 15


@pytest.mark.slow
def test_two_cleaners_at_once_remove_the_same(target: Target) -> None:
    target.night(9)
    for number in range(1, 5):
        target.night(number, steps=2)
    with target.clock(), ThreadPoolExecutor(2) as cleaners:
        reports = list(cleaners.map(lambda _: target.cleaner().clean(dry_run=False), range(2)))
    assert {run for report in reports for run in removed(report)} == {(RUN, night_id(one)) for one in range(1, 5)}
    # One of them may have fenced a run again while the other one removed it. The next clean-up removes this fence.
    target.clean()
    assert target.runs() == [9]
    assert target.published() == target.source.history.state(45)
